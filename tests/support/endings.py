"""User scripts and our programs, ended at any moment; whether processes of them are left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.faults import TESTS
from support.gates import SECONDS
from support.processes import command_line
from support.waiting import wait_until

MARK = "SCALER_TEST_MARK"
GONE_SECONDS = 5.0


class Marked:
    """A program whose descendants are found by a mark in their environment, even without their parents."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._mark = secrets.token_hex(16)
        self.output = folder / f"{self._mark}.out"
        self.errors = folder / f"{self._mark}.err"
        environment = {**os.environ, MARK: self._mark, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        self.pid = self.process.pid

    def said(self) -> str:
        """Its standard output, that of its descendants included."""
        return self.output.read_text("utf-8", "replace")

    def complained(self) -> str:
        """Its standard error."""
        return self.errors.read_text("utf-8", "replace")

    def wait_for(self, text: str) -> None:
        """Block until it has printed this text."""
        wait_until(lambda: text in self.said() or self.process.poll() is not None, f"{text!r}")
        assert text in self.said(), self.said() + self.complained()

    def living(self) -> list[int]:
        """The living processes with the mark."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def wait_gone(self, seconds: float = GONE_SECONDS) -> float:
        """Block until none of its processes is left; return the seconds that took."""
        try:
            return wait_until(lambda: not self.living(), "everything of it has ended", seconds)
        except AssertionError as error:
            left = [command_line(pid) for pid in self.living()]
            raise AssertionError(f"{error}: {left} {self.said()} {self.complained()}") from None

    def is_under_guard(self) -> bool:
        """Whether its main guard handles SIGTERM."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text("utf-8")
        except OSError:
            return False
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1))

    def close(self) -> None:
        """Kill the processes that are left."""
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(SECONDS)


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Marked]:
    """A program of ours by module name, or a script by its text."""
    if "\n" in words[0]:
        script = folder / "script.py"
        script.write_text(words[0], "utf-8")
        words = (str(script), *words[1:])
    else:
        words = ("-m", *words)
    program = Marked(folder, sys.executable, *words)
    try:
        yield program
    finally:
        program.close()


def sleep_a_moment(seconds: float) -> None:
    """Sleep, so that a program reaches an arbitrary point: the test varies this moment."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)
