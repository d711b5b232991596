"""What tasks print: kept within a limit, passed on unchanged, or as JSON."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from scaler_protocol.outputs import KEPT
from scaler_worker.worker.kept_output import LINE_BYTES, KeptOutput


class Printing:
    """A run that prints, and what is sent of that."""

    def __init__(self, limit: int, *, as_json: bool = False) -> None:
        self.run_and_task = (0, 0)
        self.sent: list[tuple[int, int, bytes]] = []
        self.output = KeptOutput(
            limit, "w", "vm", lambda: self.run_and_task, lambda *said: self.sent.append(said), as_json=as_json
        )

    @contextmanager
    def run(self, run: int, task: int) -> Iterator[None]:
        """A run of a task whose standard streams are kept."""
        self.run_and_task = run, task
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self.output.stream(1), self.output.stream(2)
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            if self.output.is_unfinished:
                self.output.finish()
            self.run_and_task = (0, 0)


def test_what_is_printed_is_kept_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    printing = Printing(1000)
    with printing.run(7, 1):
        print("one")
        print("wrong", file=sys.stderr)
        sys.stdout.buffer.write(b"\xffbytes\n")
        print("the end", end="")
    assert printing.sent[:2] == [(KEPT + 1, 7, b"one\n"), (KEPT + 2, 7, b"wrong\n")]
    assert b"".join(text for _, _, text in printing.sent[2:]) == b"\xffbytes\nthe end"
    passed = capfd.readouterr()
    assert passed.out.startswith("one\n") and passed.out.endswith("bytes\nthe end") and passed.err == "wrong\n"


def test_of_each_run_as_much_is_kept_as_the_limit_allows(capfd: pytest.CaptureFixture[str]) -> None:
    printing = Printing(10)
    for run in (7, 8):
        with printing.run(run, 1):
            for _ in range(100):
                print("äääää")
    kept = {run: b"".join(text for _, of, text in printing.sent if of == run).decode() for run in (7, 8)}
    assert kept[7] == kept[8]
    assert kept[7].startswith("ääää") and kept[7].count("of each run 10 bytes are kept") == 1 and len(kept[7]) < 100
    assert capfd.readouterr().out.count("äääää\n") == 200, "nothing of the output itself is lost"


def test_what_is_printed_between_tasks_is_nobodys(capfd: pytest.CaptureFixture[str]) -> None:
    printing = Printing(1000)
    with printing.run(0, 0):
        print("a thread")
    assert not printing.sent and capfd.readouterr().out == "a thread\n"


def test_a_task_that_spoils_the_streams_harms_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    printing = Printing(1000, as_json=True)
    with printing.run(7, 1):
        sys.stdout.buffer.write(b"half a line")
        print("lost", end="", file=sys.stderr)
        cast(io.TextIOWrapper, sys.stderr).detach()
        sys.stdout.close()
    with printing.run(8, 1):
        print("whole")
    assert [json.loads(line)["message"] for line in capfd.readouterr().out.splitlines()] == ["half a line", "whole"]
    assert [text for _, run, text in printing.sent if run == 8] == [b"whole\n"]


@pytest.mark.parametrize("text", ["x", "é", "€", "💩", "\r12 %"])
def test_a_line_that_does_not_end_is_written_in_pieces(capfd: pytest.CaptureFixture[str], text: str) -> None:
    printing, written, lines = Printing(0, as_json=True), "", list[str]()
    with printing.run(7, 1):
        for count in range(1000, 9000, 1000):
            sys.stdout.write(text * count)
            sys.stdout.flush()
            written += text * count
            lines += capfd.readouterr().out.splitlines()
            told = "".join(json.loads(line)["message"] for line in lines)
            assert written.startswith(told) and len(written[len(told) :].encode()) <= LINE_BYTES
    lines += capfd.readouterr().out.splitlines()
    pieces = [json.loads(line)["message"] for line in lines]
    assert "".join(pieces) == written and max(len(piece.encode()) for piece in pieces) <= LINE_BYTES


def test_json_lines_name_task_worker_and_host(capfd: pytest.CaptureFixture[str]) -> None:
    printing = Printing(0, as_json=True)
    with printing.run(7, 0x3F):
        print('say "hi"\nthe', end=" ")
        print("end", end="")
    with printing.run(0, 0):
        print("nobody", file=sys.stderr)
    passed = capfd.readouterr()
    lines = [json.loads(line) for line in passed.out.splitlines()]
    assert [line["message"] for line in lines] == ['say "hi"', "the end"]
    assert {(line["task"], line["worker"], line["host"], line["stream"]) for line in lines} == {
        ("3f", "w", "vm", "stdout")
    }
    (line,) = map(json.loads, passed.err.splitlines())
    assert line["stream"] == "stderr" and "task" not in line and line.keys() >= {"time", "level", "process"}
    assert not printing.sent, "nothing is kept"
