"""docs/migration.md is true: names are importable, parameters are there, options are in the help or are refused."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import scaler
from support.processes import PROGRAMS
from support.warm_programs import run_warm

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "migration.md").read_text("utf-8")
SERVERS = {
    "scaler_scheduler": "scaler_scheduler",
    "scaler_cluster": "scaler_worker",
    "scaler_object_storage_server": "scaler_storage",
}
"""By program: its module."""
CODE = re.compile(r"`([^`]+)`")
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def section(title: str) -> str:
    """The page from a heading to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(title)}[^\n]*\n(.*?)(?=^#|\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[1]


def rows(title: str) -> list[tuple[str, str, str]]:
    """The rows of the tables of a section; two cells are followed by an empty one."""
    found = []
    for line in section(title).splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and "`" in cells[0]:
            found.append((cells[0], cells[1], cells[2] if len(cells) > 2 else ""))
    assert found, title
    return found


def resolve(path: str) -> Any:
    """What a dotted name stands for; raises ImportError, AttributeError."""
    module, _, name = path.rpartition(".")
    if not module:
        return importlib.import_module(name)
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(path)


@pytest.mark.parametrize(("earlier", "verdict", "now"), rows("Python names") + rows("Errors"))
def test_names(earlier: str, verdict: str, now: str) -> None:
    name, *others = CODE.findall(earlier)
    assert not others
    if verdict == "gone":
        with pytest.raises((ImportError, AttributeError)):
            resolve(name)
        return
    assert verdict in ("same", "renamed")
    value, named = resolve(name), resolve(CODE.findall(now)[0])
    assert value is named or name.endswith(".Processor")
    assert verdict == "renamed" or value is not named or name.endswith(CODE.findall(now)[0].rpartition(".")[2])


def test_whoever_asks_for_the_processor_outside_of_tasks_is_told_there_is_none() -> None:
    assert resolve("scaler.worker.agent.processor.processor.Processor").get_current_processor() is None


@pytest.mark.parametrize("kind", [scaler.Client, scaler.SchedulerClusterCombo])
def test_parameters(kind: type[Any]) -> None:
    parameters = inspect.signature(kind).parameters
    for names, verdict, _ in rows(kind.__name__):
        for name in CODE.findall(names):
            assert (name in parameters) == (verdict == "same"), name


def test_methods() -> None:
    methods = rows("Methods of Client")
    for method, verdict, _ in methods:
        for spelled in CODE.findall(method):
            name, _, parameters = spelled.rstrip(")").partition("(")
            is_of_future = re.search(
                rf"^\| of a future \|.*`{re.escape(spelled)}`", section("Methods of Client"), re.M | re.S
            )
            owner = scaler.ScalerFuture if is_of_future else scaler.Client
            assert hasattr(owner, name) and verdict == "same", spelled
            known = inspect.signature(getattr(owner, name)).parameters if parameters else {}
            wanted = [parameter.strip(" *") for parameter in parameters.split(",") if parameter]
            assert all(parameter in known for parameter in wanted), spelled


@cache
def helped(program: str) -> set[str]:
    """The options in the help of a program."""
    text = subprocess.run([PROGRAMS / program, "-h"], capture_output=True, text=True, check=True).stdout
    return set(OPTION.findall(text))


def options() -> list[tuple[str, str, str]]:
    """Program, option and verdict of every row of the tables of options."""
    found = []
    for title, programs in (("Every server", SERVERS), *((f"`{program}`", (program,)) for program in SERVERS)):
        for spelled, verdict, _ in rows(title):
            for option in OPTION.findall(" ".join(CODE.findall(spelled))):
                found += [(program, option, verdict) for program in programs]
    return found


@pytest.mark.parametrize(("program", "option", "verdict"), options())
def test_options(program: str, option: str, verdict: str) -> None:
    if verdict.startswith(("kept", "new")):
        assert option in helped(program) or (option == "--insecure" and program == "scaler_cluster")
    else:
        assert option not in helped(program)


@pytest.mark.parametrize(("program", "option", "verdict"), [row for row in options() if row[2].startswith("refused")])
def test_refused_options(program: str, option: str, verdict: str) -> None:
    ended = run_warm(SERVERS[program], option, "1")
    sentence = verdict.removeprefix("refused: ").replace("`", "")
    assert ended.returncode == 2
    assert sentence in ended.stderr or sentence.startswith("use ")


@pytest.mark.parametrize(
    ("program", "table", "key"),
    [
        ("scaler_scheduler", "scheduler", "bind_address"),
        ("scaler_object_storage_server", "object_storage_server", "bind_address"),
        ("scaler_cluster", "cluster", "scheduler_address"),
        ("scaler_top", "top", "monitor_address"),
        ("scaler_ui", "gui", "monitor_address"),
        ("scaler_why", "why", "monitor_address"),
    ],
)
def test_earlier_names_of_addresses_in_toml(program: str, table: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "earlier.toml"
    file.write_text(f'[{table}]\n{key} = "nowhere"\n')
    ended = subprocess.run([PROGRAMS / program, "-c", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and f"{key}: address 'nowhere'" in ended.stderr


def test_an_earlier_key_that_means_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "earlier.toml"
    file.write_text('[gui]\ngui_address = "0.0.0.0:50001"\n')
    ended = subprocess.run([PROGRAMS / "scaler_ui", "-c", file], capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "gui_address: say --host and --port" in ended.stderr
