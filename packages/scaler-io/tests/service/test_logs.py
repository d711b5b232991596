"""Log lines: format, targets, errors."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TextIO

import pytest

from scaler_io.links.effects import Log
from scaler_io.service.logs import LOGGER, LOGGING_OPTIONS, TextFormatter, announce, configure, write
from support.mounts import fill, small_memory


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    handlers, level, propagate = LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    LOGGER.handlers[:] = []
    yield
    for handler in LOGGER.handlers:
        handler.close()
    LOGGER.handlers[:] = handlers
    LOGGER.setLevel(level)
    LOGGER.propagate = propagate


@pytest.mark.parametrize(
    ("zone", "moment", "stamp"),
    [
        ("Europe/Paris", 1749208395, "2025-06-06 13:13:15+0200"),
        ("Europe/Paris", 1736165595, "2025-01-06 13:13:15+0100"),
        ("UTC", 1749208395, "2025-06-06 11:13:15+0000"),
        ("XXX+3:30", 1749208395, "2025-06-06 07:43:15-0330"),
    ],
)
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of a process cannot be changed here")
def test_line_format(zone: str, moment: int, stamp: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        record = logging.LogRecord("scaler", logging.INFO, "", 0, "text %s", ("x",), None)
        record.created = moment
        assert TextFormatter().format(record) == f"[INFO]{stamp}: text x"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_own_output_stream(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure([path])
    announce([path])
    output, error = capsys.readouterr()
    assert error == ""
    assert re.fullmatch(rf"\[INFO\]\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{{4}}: logging to \('{path}',\)\n", output)


def test_own_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    configure(["/dev/stderr"])
    LOGGER.info("text")
    output, error = capsys.readouterr()
    assert (output, error.endswith(": text\n")) == ("", True)


def test_several_targets_get_each_line_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_text("before\n", encoding="utf-8")
    configure([str(one), str(two), "-", "/dev/stdout", str(two)])
    LOGGER.warning("é")
    assert one.read_text(encoding="utf-8").splitlines()[0] == "before"
    assert [line[-1] for line in one.read_text(encoding="utf-8").splitlines()[1:]] == ["é"]
    assert two.read_text(encoding="utf-8").count("é") == capsys.readouterr().out.count("é") == 1


def test_children_of_the_logger_are_included(capsys: pytest.CaptureFixture[str]) -> None:
    configure(["-"])
    logging.getLogger("scaler.part").info("text")
    assert capsys.readouterr().out.endswith(": text\n")


@pytest.mark.parametrize(("level", "lines"), [("debug", 3), ("INFO", 2), ("Error", 1), ("CRITICAL", 0)])
def test_level(level: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    configure(["-"], level)
    for log in (LOGGER.debug, LOGGER.info, LOGGER.error):
        log("text")
    assert capsys.readouterr().out.count("text") == lines


def test_no_path_is_silence(capsys: pytest.CaptureFixture[str]) -> None:
    configure([])
    LOGGER.critical("text")
    assert capsys.readouterr() == ("", "")


def test_root_is_not_touched() -> None:
    root = logging.getLogger()
    before = (root.level, root.handlers[:])
    configure(["-"], "DEBUG")
    assert (root.level, root.handlers) == before


def test_again_replaces(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    configure([str(one)])
    configure([str(two)])
    LOGGER.info("text")
    assert one.read_text(encoding="utf-8") == ""
    assert "text" in two.read_text(encoding="utf-8")


def test_bad_path_names_value_and_remedy_and_changes_nothing(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.log", tmp_path / "missing" / "bad.log"
    configure([str(good)])
    with pytest.raises(ValueError) as raised:
        configure([str(tmp_path / "other.log"), str(bad)])
    remedy = "name a file that can be written, or - for standard output"
    assert str(raised.value) == f"cannot log to {bad}: No such file or directory; {remedy}"
    LOGGER.info("text")
    assert "text" in good.read_text(encoding="utf-8")


def test_bad_level_names_value_and_remedy() -> None:
    with pytest.raises(ValueError, match="'LOUD' is not one of DEBUG, INFO, WARNING, ERROR, CRITICAL"):
        configure(["-"], "LOUD")


LOGGING_FILE = """
[loggers]
keys=root,scaler
[handlers]
keys=file
[formatters]
keys=plain
[logger_root]
handlers=
[logger_scaler]
qualname=scaler
level=DEBUG
handlers=file
[handler_file]
class=FileHandler
formatter=plain
args=({path!r}, "a", "utf-8")
[formatter_plain]
format=configured %(message)s
"""


def test_configuration_file_wins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    file, log = tmp_path / "logging.ini", tmp_path / "it.log"
    file.write_text(LOGGING_FILE.format(path=str(log)), encoding="utf-8")
    try:
        configure(["-"], "ERROR", str(file))
        announce(["-"], str(file))
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert log.read_text(encoding="utf-8") == f"configured logging as configured in {file}\n"
    assert capsys.readouterr() == ("", "")


def test_configuration_file_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"logging configuration .*no\.ini: .*No such file"):
        configure(["-"], "INFO", str(tmp_path / "no.ini"))


@pytest.mark.parametrize("text", ["", "words", "[loggers]\n", "[loggers]\nkeys=root\n"])
def test_configuration_file_broken(text: str, tmp_path: Path) -> None:
    file = tmp_path / "logging.ini"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"logging configuration .* is not a file of logging\.config"):
        configure(["-"], "INFO", str(file))


def test_options() -> None:
    assert {option.destination: option.default for option in LOGGING_OPTIONS} == {
        "logging_paths": ("/dev/stdout",),
        "logging_level": "INFO",
        "log_format": "text",
        "logging_config_file": None,
    }
    assert [option.names[1] for option in LOGGING_OPTIONS] == ["-lp", "-ll", "-lf", "-lcf"]


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_full_disk_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", FullDisk())
    configure(["-"])
    LOGGER.info("text")
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no small disk can be mounted there")
def test_lines_that_a_full_disk_has_not_taken_are_counted(tmp_path: Path) -> None:
    file, filler = tmp_path / "log", tmp_path / "filler"
    with small_memory(tmp_path, 1):
        configure([str(file)])
        LOGGER.info("first")
        fill(filler)
        for number in range(200):
            LOGGER.info("%d %s", number, "x" * 100)
        filler.unlink()
        LOGGER.info("last")
        lines = [line.partition(": ")[2] for line in file.read_text().splitlines()]
        configure([])
    kept = [f"{number} {'x' * 100}" for number in range(len(lines) - 3)]
    dropped = (
        f"{200 - len(kept)} log lines before this one were dropped: they were not read in time, or the disk was full"
    )
    assert len(kept) < 100 and lines == ["first", *kept, dropped, "last"]


def test_mistake_in_a_log_call_is_loud(capsys: pytest.CaptureFixture[str]) -> None:
    configure(["-"])
    LOGGER.info("%d", "no number")
    assert "TypeError" in capsys.readouterr().err


GONE_READER = """
import sys
from scaler_io.service.logs import LOGGER, configure
configure(["-"])
print("ready", file=sys.stderr, flush=True)
sys.stdin.readline()
for _ in range(3):
    LOGGER.info("text")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently there")
def test_reader_gone_is_silent() -> None:
    command, pipe = [sys.executable, "-c", GONE_READER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        process.stdout.close()
        process.stdin.write(b"go\n")
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


def test_lines_as_json(tmp_path: Path) -> None:
    target = tmp_path / "log"
    configure([str(target)], "INFO", None, "json")
    LOGGER.info('said "%s"\nand more', "ü")
    try:
        raise KeyError("lost")
    except KeyError:
        LOGGER.exception("broken")
    write(Log(logging.WARNING, "it died", task=0xABC1, worker="Worker[3]"), "Agent")
    first, second, third = map(json.loads, target.read_text(encoding="utf-8").splitlines())
    assert (first["level"], first["message"], first["process"]) == ("INFO", 'said "ü"\nand more', os.getpid())
    assert first["host"] == socket.gethostname() and "task" not in first
    assert datetime.fromisoformat(first["time"]).tzinfo is not None and "traceback" not in first
    assert (third["task"], third["worker"], third["message"]) == ("abc1", "Worker[3]", "Agent: it died")
    assert second["level"] == "ERROR" and second["traceback"].endswith("KeyError: 'lost'")


def test_a_format_is_text_or_json() -> None:
    with pytest.raises(ValueError, match="'xml'"):
        configure(["-"], "INFO", None, "xml")


def full_pipe() -> tuple[int, TextIO]:
    """A pipe that nothing more goes into, as in a program whose reader has stopped."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for size in (select.PIPE_BUF, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"x" * size)
    os.set_blocking(write, True)
    return read, open(write, "w", encoding="utf-8")


def drained(read: int) -> bytes:
    """What is in a pipe."""
    os.set_blocking(read, False)
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(read, 65536):
            pieces.append(piece)
    os.set_blocking(read, True)
    return b"".join(pieces)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes cannot be polled there")
class TestReaderThatHasStopped:
    """Nobody waits for it, and how many lines it has missed is said once."""

    @pytest.fixture(autouse=True)
    def stdout(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.read, stream = full_pipe()
        monkeypatch.setattr(sys, "stdout", stream)
        configure(["-"])
        yield
        configure([])
        stream.close()
        os.close(self.read)

    def test_lines_are_dropped_and_counted(self) -> None:
        for number in range(20):
            LOGGER.info("missed %d", number)
        assert b"missed" not in drained(self.read)
        LOGGER.info("text")
        LOGGER.info("more")
        lines = [line.split(": ", 1)[1] for line in drained(self.read).decode().splitlines()]
        assert lines == [
            "20 log lines before this one were dropped: they were not read in time, or the disk was full",
            "text",
            "more",
        ]

    def test_a_long_line_that_was_cut_is_completed(self) -> None:
        drained(self.read)
        text = "long " * 100_000
        LOGGER.info(text)
        LOGGER.info("missed")
        found = drained(self.read)
        assert found and b"\n" not in found
        while b"text" not in found:
            LOGGER.info("text")
            found += drained(self.read)
        first, dropped, last = found.decode().splitlines()
        assert first.endswith(": " + text)
        assert "dropped" in dropped and last.endswith(": text")

    def test_others_who_share_the_stream_still_wait(self) -> None:
        LOGGER.info("missed")
        assert os.get_blocking(sys.stdout.fileno())


@pytest.mark.skipif(sys.platform == "win32", reason="pipes cannot be polled there")
def test_lines_to_a_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, open(os.dup(ours.fileno()), "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        configure(["-"])
        for _ in range(10_000):
            LOGGER.info("text")
        theirs.setblocking(False)
        assert theirs.recv(1 << 24).startswith(b"[INFO]")
        LOGGER.info("end")
        assert b"were dropped" in theirs.recv(1 << 24)
        configure([])


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nobody_forges_lines_or_steers_the_terminal(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    configure(["-"], log_format=log_format)
    hostile = "x\n[ERROR]2025-06-06 13:13:15+0200: forged\x1b[2J\u202e\x9b"
    LOGGER.info("agent %s connected", hostile)
    try:
        raise ValueError(hostile)
    except ValueError:
        logging.getLogger("scaler.part").exception("it failed")
    output = capsys.readouterr().out
    assert output.isascii() and output.replace("\n", "").isprintable()
    begun = [line for line in output.splitlines() if not line.startswith("  ")]
    assert len(begun) == 2 and "agent x" in begun[0] and "it failed" in begun[1]
