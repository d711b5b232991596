"""Real programs: start them, read their output, end them by process id."""

from __future__ import annotations

import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count as counting
from itertools import islice
from pathlib import Path
from types import TracebackType

from support.gates import SECONDS

PROGRAMS = Path(sys.executable).parent
_PORT_SHARES = 8
_SHARE = 10_000 // _PORT_SHARES
_port_turns = counting(random.SystemRandom().randrange(_SHARE))


class Terminal:
    """A program as if in a terminal: its lines and Ctrl-C. It ends with the test."""

    def __init__(self, *words: str | Path, cwd: Path | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            cwd=cwd,
        )
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._reading = threading.Event()
        self._reading.set()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
            self._reading.wait()
        self._queue.put(None)

    def pause(self) -> None:
        """Stop reading after at most one more line, as a terminal does after Ctrl-S."""
        self._reading.clear()

    def read_until(self, text: str) -> str:
        """The next line that contains `text`."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line with {text!r} within {SECONDS} s, only {self.lines}") from None
            if line is None:
                raise AssertionError(f"ended before a line with {text!r}: {self.lines}")
            self.lines.append(line)
            if text in line:
                return line

    def rest(self) -> list[str]:
        """All further lines of a program that has ended."""
        return list(iter(partial(self._queue.get, timeout=SECONDS), None))

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reading.set()
        self._reader.join(SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


def run_script(script: Path, *words: str, cwd: Path | None = None, seconds: float = 60) -> str:
    """Standard output of a Python program that must end well and say nothing on stderr."""
    return _run(str(script), *words, cwd=cwd, seconds=seconds)


def run_code(code: str, *words: str, seconds: float = 60) -> str:
    """As `run_script`, for the text of a program, which may be indented."""
    return _run("-c", textwrap.dedent(code), *words, cwd=None, seconds=seconds)


def _run(*words: str, cwd: Path | None, seconds: float) -> str:
    command = [sys.executable, "-W", "error", *words]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=seconds, cwd=cwd
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def free_ports(count: int = 3) -> int:
    """The first of consecutive ports of the loopback that were free a moment ago.

    They are below those that connections and local clusters are given, and no other process of this test run takes
    them. They are given in turns, because who has just been given some may not have taken them yet.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = 10_000 + number % _PORT_SHARES * _SHARE
    while True:
        turn, *_ = islice(_port_turns, count)
        first = begin + turn % _SHARE
        if first + count <= begin + _SHARE and taken_port(range(first, first + count)) is None:
            return first


def taken_port(ports: Iterable[int]) -> int | None:
    """The first of these that is in use; None if all are free."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return port
    return None


def _living() -> Iterator[tuple[int, int, int]]:
    """Process, parent and group, for every process but those that have ended and are not waited for."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, group = (folder / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if state != "Z":
            yield int(folder.name), int(parent), int(group)


def _parents() -> dict[int, int]:
    """The parent of each living process."""
    return {pid: parent for pid, parent, _ in _living()}


def descendants(ancestor: int) -> list[int]:
    """The living children of a process, their children, and so on."""
    parents = _parents()
    found = [ancestor]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def children(parent: int) -> list[int]:
    """The living processes that a process has started itself."""
    return [pid for pid, its, _ in _living() if its == parent]


def group_members(group: int) -> list[int]:
    """The living processes of a process group."""
    return [pid for pid, _, its in _living() if its == group]


def command_line(pid: int) -> str:
    """The words that a process was started with; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def listener_of(address: str) -> int:
    """The child process that is the scheduler of a local cluster, by its address."""
    found = [pid for pid in descendants(os.getpid()) if "scaler_launch.local" in command_line(pid)]
    here = [pid for pid in found if address in command_line(pid)] or found
    # Its template and workers are forks of it.
    parents = _parents()
    here = [pid for pid in here if parents.get(pid) not in here]
    assert len(here) == 1, [command_line(pid) for pid in found]
    return here[0]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is stopped (SIGSTOP) within the context."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Watched:
    """Waits for the end of any processes; holds their pidfds, so that a reused pid does not mislead."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids: dict[int, int] = {}
        for pid in pids:
            try:
                self._pids[os.pidfd_open(pid)] = pid
            except ProcessLookupError:
                continue

    def wait_gone(self, seconds: float) -> list[int]:
        """Wait at most `seconds`; return the pids of processes that still live."""
        deadline = time.monotonic() + seconds
        left = dict(self._pids)
        poll = select.poll()
        for descriptor in left:
            poll.register(descriptor, select.POLLIN)
        while left and time.monotonic() < deadline:
            for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                poll.unregister(descriptor)
                del left[descriptor]
        return list(left.values())

    def close(self) -> None:
        """Kill the processes that are left and free the pidfds."""
        for descriptor in self._pids:
            with ExitStack() as ignoring:
                ignoring.callback(os.close, descriptor)
                try:
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._pids = {}

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
