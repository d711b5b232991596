"""How the programs of this package begin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

SHOW = """
import signal, sys
from scaler_ui.programs import guarded
guarded("program", lambda: print([each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are not blocked there")
def test_signals_that_the_parent_has_blocked_are_heard() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, encoding="utf-8", timeout=60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (done.stdout, done.stderr) == ("[]\n", "")


INTERRUPTED = """
import signal, sys
from importlib import import_module

class Finder:
    def find_spec(self, name, *_):
        if name == module:
            signal.raise_signal(int(number))

_, module, number, entry, *words = sys.argv
sys.argv[1:] = words
place, _, main = entry.partition(":")
sys.meta_path.insert(0, Finder())
sys.exit(getattr(import_module(place), main)())
"""
NOWHERE = "ipc:///nowhere/at/all"
MORE = {"scaler_why": ["1"], "scaler_ui": ["--port", "0"]}
"""What the command lines need besides the address."""


def script(program: str) -> str:
    """The entry point of an installed program."""
    [found] = [each.value for each in entry_points(group="console_scripts") if each.name == program]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Ctrl-C during imports prints a traceback")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("program", "module"),
    [
        *(("scaler_ui", module) for module in ("scaler_io.service.cli", "zmq", "numpy", "nicegui", "uvicorn")),
        *(("scaler_top", module) for module in ("scaler_io.service.cli", "zmq", "textual")),
        *(("scaler_why", module) for module in ("scaler_io.service.cli", "zmq")),
    ],
)
def test_a_signal_during_an_import_ends_a_program_silently(program: str, module: str, number: int) -> None:
    entry = script(program)
    words = [sys.executable, "-c", INTERRUPTED, module, str(int(number)), entry, NOWHERE, *MORE.get(program, ())]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


SWALLOWED = """
import signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "nicegui":
            try:
                signal.raise_signal(signal.SIGTERM)
            except SystemExit:
                pass

sys.meta_path.insert(0, Finder())
from scaler_ui.programs import ui
sys.exit(ui())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere SIGTERM ends a program at once")
def test_a_signal_that_an_import_has_swallowed_ends_the_pages(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SWALLOWED, "utf-8")
    environment = {name: text for name, text in os.environ.items() if "PYTEST" not in name}  # for NiceGUI
    words = [sys.executable, str(program), NOWHERE, *MORE["scaler_ui"]]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", timeout=60, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
