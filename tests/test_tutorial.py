"""docs/tutorial.md, followed word by word: its files are written, its commands typed, its answers compared."""

from __future__ import annotations

import os
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.documents import ROOT, blocks
from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, free_ports

TUTORIAL = ROOT / "docs" / "tutorial.md"
FILE = re.compile(r"`(\w+\.py)`")
KEEPS_ITS_TERMINAL = ("scaler_scheduler", "scaler_cluster")


def pattern(answer: str) -> str:
    """A line that the document shows, as a regular expression."""
    return ".*".join(map(re.escape, answer.split("…")))


def reads_answers(terminal: Terminal, command: str, answers: list[str]) -> bool:
    """Whether a command answers as shown; it has ended then, and well, if it does not keep its terminal."""
    if command.startswith(KEEPS_ITS_TERMINAL):
        left = list(answers)
        while left:  # workers may have started before the connection is made, or after it
            line = terminal.read_until("")
            left = [answer for answer in left if not re.fullmatch(pattern(answer), line)]
        return True
    said = "\n".join(terminal.rest())
    assert terminal.process.wait(SECONDS) == 0, f"{command}: {said}"
    expected = r"\n".join(r"(?:.*\n)*?.*" if answer == "…" else pattern(answer) for answer in answers)
    assert re.fullmatch(expected, said) or command.startswith("scaler status"), f"{command}: {said}"
    return bool(re.fullmatch(expected, said))


def test_it_works_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    port = free_ports(3)
    lines = TUTORIAL.read_text("utf-8").splitlines()
    services: list[Terminal] = []
    with ExitStack() as terminals:
        for block in blocks(TUTORIAL, "python", "console"):
            text = re.sub(r":234([567])\b", lambda found: f":{port + int(found[1]) - 5}", block.text)
            if block.language == "python":
                (name,) = FILE.findall(lines[block.line - 4])
                (tmp_path / name).write_text(text, "utf-8")
                continue
            if text == "^C\n":
                assert services.pop().end() == 0
            for entry in text.split("$ ")[1:]:
                command, *answers = entry.splitlines()
                deadline = time.monotonic() + SECONDS
                while True:  # what `scaler status` says of workers is up to two seconds old
                    terminal = terminals.enter_context(Terminal("bash", "-c", f"exec {command}", cwd=tmp_path))
                    if reads_answers(terminal, command, answers):
                        break
                    assert time.monotonic() < deadline, command
                services += [terminal] if command.startswith(KEEPS_ITS_TERMINAL) else []
        assert [terminal.end() for terminal in reversed(services)] == [0, 0]
