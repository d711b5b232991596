"""Command lines: sources, precedence, names, help, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from scaler_io.security.keyring import KeyRole
from scaler_io.service.cli import Command, default_text
from scaler_io.service.options import (
    PARENT_PID,
    REFUSED,
    Option,
    comma_list,
    one_of,
    positive_seconds,
    whole_number,
)


@dataclass(frozen=True, slots=True)
class BakeryConfig:
    address: str
    street: str | None
    num_of_workers: int
    worker_names: tuple[str, ...]
    oven_seconds: float
    protected: bool
    flour: str
    paths: tuple[str, ...]
    parent_pid: int | None

    def __post_init__(self) -> None:
        if self.worker_names and len(self.worker_names) != self.num_of_workers:
            raise ValueError("--worker-names must name each worker")


BAKERY = Command(
    "bakery",
    "Bake bread.",
    "bakery",
    BakeryConfig,
    (
        Option(("address",), "where to bake", metavar="ADDRESS", environment="BAKERY_ADDRESS"),
        Option(("street",), "which street", default=None),
        Option(("--num-of-workers", "-n"), "how many bakers", whole_number(-1), default=2, environment="BAKERY_N"),
        Option(("--worker-names", "-wn"), "their names", comma_list, default=()),
        Option(("--oven-seconds", "-os", "-ovs"), "at 100 % heat", positive_seconds, default=60.0),
        Option(("--protected", "-p"), "lock the door", default=True, flag=True, environment="BAKERY_PROTECTED"),
        Option(("--flour", "-f"), "the flour", one_of("rye", "wheat", corn="wheat"), default="rye"),
        Option(("--paths", "-lp"), "where to deliver", default=("-",), repeated=True, environment="BAKERY_PATHS"),
        PARENT_PID,
    ),
    REFUSED,
    "bakery main:1 -n 4",
)


def read(*words: str, **environ: str) -> BakeryConfig:
    return BAKERY.read(words, environ)


def test_defaults() -> None:
    assert read("a") == BakeryConfig("a", None, 2, (), 60.0, True, "rye", ("-",), None)


def test_command_line_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = str(write(tmp_path, "num_of_workers = 7"))
    assert read("a").num_of_workers == 2
    assert read("a", "-c", file).num_of_workers == 7
    assert read("a", "-c", file, BAKERY_N="8").num_of_workers == 8
    assert read("a", "-c", file, "-n", "9", BAKERY_N="8").num_of_workers == 9


def test_empty_variable_says_nothing() -> None:
    assert read("a", BAKERY_N="").num_of_workers == 2


def test_variables_of_flags_and_repeated_options() -> None:
    config = read("a", BAKERY_PROTECTED="no", BAKERY_PATHS="x,y")
    assert (config.protected, config.paths) == (False, ("x", "y"))


@pytest.mark.parametrize("words", [["-n", "4"], ["-n4"], ["-n=4"], ["--num-of-workers=4"], ["--num-of-workers", "4"]])
def test_spellings_of_a_value(words: list[str]) -> None:
    assert read(*words, "a").num_of_workers == 4
    assert read("a", *words).num_of_workers == 4


def test_negative_value() -> None:
    assert read("a", "-n", "-1").num_of_workers == -1


@pytest.mark.parametrize(
    ("words", "protected"),
    [(["--no-protected"], False), (["-p"], True), (["--protected"], True), (["-p", "--no-protected"], False)],
)
def test_flag_is_a_pair(words: list[str], protected: bool) -> None:
    assert read("a", *words, BAKERY_PROTECTED=str(not protected)).protected is protected


def test_repeated_option_takes_words_and_repetitions() -> None:
    assert read("a", "-lp", "x", "-", "--paths", "y").paths == ("x", "-", "y")


def test_positionals_may_stand_apart() -> None:
    config = read("a", "-n", "4", "b", "-p")
    assert (config.address, config.street) == ("a", "b")


@dataclass(frozen=True, slots=True)
class MarketConfig:
    address: str
    stalls: tuple[int, ...]
    open: bool


MARKET = Command(
    "market",
    "Open a market.",
    "market",
    MarketConfig,
    (
        Option(("address",), "where"),
        Option(("stalls",), "which stalls", whole_number(), default=(), repeated=True, metavar="STALL"),
        Option(("--open", "-o"), "let people in", default=False, flag=True),
    ),
)


@pytest.mark.parametrize("words", [["a", "1", "2", "-o", "3"], ["-o", "a", "1", "2", "3"], ["a", "-o", "1", "2", "3"]])
def test_a_repeated_positional_takes_all_words_that_are_left(words: list[str]) -> None:
    assert MARKET.read(words, {}) == MarketConfig("a", (1, 2, 3), True)
    assert MARKET.read(["a"], {}) == MarketConfig("a", (), False)


def test_help_shows_a_repeated_positional(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        MARKET.read(["-h"], {})
    assert ended.value.code == 0
    assert "usage: market ADDRESS [STALL ...] [option ...]" in capsys.readouterr().out


def test_words_after_two_dashes_are_positional() -> None:
    assert read("-n", "4", "--", "-odd").address == "-odd"


def test_file_takes_native_values_and_both_spellings(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'address = "a"\nstreet = "b"\nnum-of-workers = 2\nworker_names = ["x", "y"]\noven-seconds = 2\n'
        'protected = false\nflour = "Corn"\npaths = ["p", "q"]',
    )
    assert read("-c", str(file)) == BakeryConfig("a", "b", 2, ("x", "y"), 2.0, False, "wheat", ("p", "q"), None)


def test_file_takes_text_for_everything(tmp_path: Path) -> None:
    file = write(tmp_path, 'num_of_workers = "3"\nprotected = "off"\npaths = "p"\noven_seconds = 0.5')
    config = read("a", "--config", str(file))
    assert (config.num_of_workers, config.protected, config.paths, config.oven_seconds) == (3, False, ("p",), 0.5)


def test_other_tables_and_arrays_are_other_programs(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('title = "x"\n[mill]\nwind = 3\n[[worker_manager]]\ntype = "x"\n', encoding="utf-8")
    assert read("a", "-c", str(file)) == read("a")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a --protectd", "unknown option --protectd; did you mean --protected?"),
        ("a --no-protectd", "unknown option --no-protectd; did you mean --no-protected?"),
        ("a -protected", "unknown option -protected; did you mean --protected?"),
        ("a --num_of_workers 3", "unknown option --num_of_workers; did you mean --num-of-workers?"),
        ("a --num-of-work=3", "unknown option --num-of-work; did you mean --num-of-workers?"),
        ("a -ov 3", "unknown option -ov; did you mean -ovs?"),
        ("a -p1", "unknown option -p1; did you mean -p?"),
        ("a -ct60", "unknown option -ct60"),
        ("a -h4", "unknown option -h4; did you mean -h?"),
        ("a --zzz", "unknown option --zzz"),
        ("a -n", "--num-of-workers/-n: expected one argument"),
        ("a -n many", "--num-of-workers: 'many' is not a whole number"),
        ("a -n -2", "--num-of-workers: -2 is less than -1"),
        ("a --protected=yes", "--protected/--no-protected/-p: ignored explicit argument 'yes'"),
        ("a b c", "unexpected argument 'c'"),
        (
            "",
            "missing ADDRESS: give it on the command line or in BAKERY_ADDRESS "
            "or as address under [bakery] of a --config file",
        ),
        ("-lp x a", "missing ADDRESS: give it before --paths, which takes every word that follows"),
        ("a -wn x", "--worker-names must name each worker"),
        ("a -c no/such.toml", "--config no/such.toml: No such file or directory"),
        (
            "a -hps",
            "-hps: a task that waits for its own tasks gives its place to them, and nothing is suspended; leave it out",
        ),
        ("--io-threads=2 a", "--io-threads: every process has one ZeroMQ thread, which is enough; leave it out"),
    ],
)
def test_refused_in_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *words.split()) == message


def test_refused_variable_names_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "a", BAKERY_N="x") == "BAKERY_N: 'x' is not a whole number"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("protectd = true", "FILE [bakery]: unknown key protectd; did you mean protected?"),
        ("n = 3", "FILE [bakery]: unknown key n"),
        ("num_of_workers = 1.5", "FILE [bakery] num_of_workers: '1.5' is not a whole number"),
        (
            "num_of_workers = true",
            "FILE [bakery] num_of_workers: NUM_OF_WORKERS is a text or a number, not true or false",
        ),
        ("address = false", "FILE [bakery] address: ADDRESS is a text or a number, not true or false"),
        ("paths = ['a', true]", "FILE [bakery] paths: PATHS holds texts or numbers, not true or false"),
        (
            "num_of_workers = {a = 1}",
            "FILE [bakery] num_of_workers: NUM_OF_WORKERS is a text or a number, not a table",
        ),
        (
            "paths = [1979-05-27]",
            "FILE [bakery] paths: PATHS holds texts or numbers, not a date",
        ),
        (
            "paths = [['a']]",
            "FILE [bakery] paths: PATHS holds texts or numbers, not an array",
        ),
        ("protected = {}", "FILE [bakery] protected: PROTECTED is true or false, not a table"),
        ("protected = 'perhaps'", "FILE [bakery] protected: 'perhaps' is neither true nor false"),
        ("oven-seconds = 1\noven_seconds = 1", "FILE [bakery] oven_seconds: given twice"),
        (
            "tls_cert = 'x'",
            "FILE [bakery] tls_cert: there is no TLS here; connections are encrypted with --keys",
        ),
    ],
)
def test_refused_key(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(write(tmp_path, text))
    assert refused(capsys, "a", "-c", file).replace(file, "FILE") == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_of_workers = 3\n", "FILE: num_of_workers stands outside every table; put it under [bakery]"),
        ("[[bakery]]\n", "FILE: bakery must be one table, [bakery]"),
        ("[bakry]\n", "FILE: no table bakery; did you mean bakry?"),
        ("[bakery\n", "--config FILE: not TOML: "),
    ],
)
def test_refused_file(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.toml"
    file.write_text(text, encoding="utf-8")
    assert refused(capsys, "a", "-c", str(file)).replace(str(file), "FILE").startswith(message)


def test_file_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "binary.toml"
    file.write_bytes(b"\xff\xfe")
    assert "not TOML" in refused(capsys, "a", "-c", str(file))


def test_help_shows_defaults_variables_and_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        read("-h")
    text = " ".join(capsys.readouterr().out.split())
    assert raised.value.code == 0
    for part in (
        "usage: bakery ADDRESS [STREET] [option ...]",
        "at 100 % heat (default: 60)",
        "lock the door (default: on; environment: BAKERY_PROTECTED)",
        "-f rye|wheat",
        "-c FILE",
        "example: bakery main:1 -n 4",
    ):
        assert part in text
    assert "parent-pid" not in text
    assert "default: )" not in text


@pytest.mark.parametrize(
    ("default", "text"), [(KeyRole.CLIENT, "client"), ({}, ""), (0, "0"), (False, "off"), (("a", "b"), "a b")]
)
def test_default_as_help_shows_it(default: object, text: str) -> None:
    assert default_text(Option(("--of",), "what", default=default)) == text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        read("--version")
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"bakery {version('scaler-io')}\n"


def test_words_and_variables_of_the_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bakery", "a"])
    monkeypatch.setenv("BAKERY_N", "5")
    assert BAKERY.read().num_of_workers == 5


@dataclass(frozen=True)
class KioskConfig:
    name: str


def test_fields_and_options_must_agree() -> None:
    with pytest.raises(TypeError, match="kiosk: fields and options differ: name, title"):
        Command("kiosk", "", "kiosk", KioskConfig, (Option(("title",), ""),))


def test_nothing_is_both_offered_and_refused() -> None:
    options = (Option(("--name", "-it"), ""),)
    with pytest.raises(TypeError, match="kiosk: offered and refused: -it"):
        Command("kiosk", "", "kiosk", KioskConfig, options, REFUSED)


COMPLETING = """
from dataclasses import make_dataclass
from scaler_io.service.cli import Command
from scaler_io.service.options import Option, PARENT_PID, one_of
options = (Option(("--event-loop", "-el"), "", one_of("builtin", "uvloop")), PARENT_PID)
Command("kiosk", "", "kiosk", make_dataclass("C", [o.destination for o in options]), options).read()
"""


@pytest.mark.parametrize(
    ("line", "words"),
    [("kiosk --e", {"--event-loop"}), ("kiosk --event-loop ", {"builtin", "uvloop"}), ("kiosk --p", set())],
)
def test_shell_completion(line: str, words: set[str], tmp_path: Path) -> None:
    pytest.importorskip("argcomplete")
    answers = tmp_path / "answers"
    request = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run([sys.executable, "-c", COMPLETING], env=os.environ | request, check=True, timeout=60)
    assert {word.strip() for word in answers.read_text(encoding="utf-8").split("\n")} - {""} == words


def write(folder: Path, text: str) -> Path:
    file = folder / "all.toml"
    file.write_text(f"[mill]\nprotectd = 1\n\n[bakery]\n{text}\n", encoding="utf-8")
    return file


def refused(capsys: pytest.CaptureFixture[str], *words: str, **environ: str) -> str:
    """The message of a refusal, after asserting that it is one line on stderr and exit code 2."""
    with pytest.raises(SystemExit) as raised:
        read(*words, **environ)
    output, error = capsys.readouterr()
    assert (raised.value.code, output) == (2, "")
    assert error.startswith("bakery: ")
    assert error.count("\n") == 1
    return error.removeprefix("bakery: ").removesuffix("\n")
