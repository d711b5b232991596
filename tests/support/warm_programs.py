"""Programs of the engine in forks of processes that have imported what they import: a start takes a tenth of the time.

`python -m support.warm_programs MODULE DESCRIPTOR …` imports what MODULE does before it reads its options, and forks
for each request that comes through the socket. A fork has the command line, environment and files of a program that was
started by itself, and ends as one. What depends on a start of the interpreter is tested with programs of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

IMPORTED: Final = {
    "scaler_scheduler": ("scaler_scheduler.service.shell",),
    "scaler_storage": ("scaler_storage.options", "scaler_storage.service"),
    "scaler_worker": ("scaler_worker.config", "scaler_worker.forking.template_link"),
    "scaler_worker.symphony": ("scaler_worker.symphony.proxy_options", "scaler_worker.symphony.proxy_process"),
}
"""By program: what it imports before it starts a thread or forks."""
START_SECONDS: Final = 30.0
_REQUEST_BYTES: Final = 1 << 17
_FILES: Final = 8
_ENDED: Final = struct.Struct("=ii")
"""A process id, and its wait status; or _FORKED, of one that has become a program."""
_FORKED: Final = -1
_ROOM: Final = " " * 4096
"""Room for the command line of a program."""
_ABOVE: Final = 100
"""Descriptors from here on are in the way of none that has to have a certain number."""


class WarmProgram:
    """A program that was forked, with the methods of subprocess.Popen that tests use."""

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        env: Mapping[str, str],
        output: int,
        *passed: int,
        errors: int | None = None,
    ) -> None:
        self._parent = _parent(module)
        self.pid = self._parent.fork(words, env, [output, output if errors is None else errors], passed)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative if a signal has ended it; None while it runs."""
        if self.returncode is None:
            self.returncode = self._parent.code(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._parent.code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def run_warm(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends by itself; what it has written."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        program = WarmProgram(module, words, os.environ, output.fileno(), errors=errors.fileno())
        try:
            code = program.wait(START_SECONDS)
        finally:
            program.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, output.read().decode(), errors.read().decode())


class _Parent:
    """A process that forks programs of one module. Thread-safe."""

    def __init__(self, module: str) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, module, str(theirs.fileno()), _ROOM]
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        environment = {**os.environ, "PYTHONPATH": here, "PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            cwd=os.sep,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._lock = threading.RLock()
        self._codes: dict[int, int] = {}
        self._new: list[int] = []

    def fork(self, words: Sequence[str], env: Mapping[str, str], outputs: Sequence[int], passed: Sequence[int]) -> int:
        request = json.dumps({"words": list(words), "env": dict(env), "passed": list(passed)}).encode()
        with self._lock:
            socket.send_fds(self._channel, [request], [*outputs, *passed])
            while not self._new:
                assert self._read(START_SECONDS), "a warm program was not forked"
            return self._new.pop()

    def code(self, pid: int, timeout: float | None) -> int | None:
        """The exit code of a process, as soon as there is one; None if there is none in time."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                while pid not in self._codes and self._read(0.0):
                    pass
                if pid in self._codes:
                    return self._codes[pid]
            left = 1.0 if until is None else min(1.0, until - time.monotonic())
            if left <= 0:
                return None
            self._is_readable(left)

    def _is_readable(self, seconds: float) -> bool:
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def _read(self, seconds: float) -> bool:
        """Read one message of the process; whether there was one within `seconds`."""
        if not self._is_readable(seconds):
            return False
        message = self._channel.recv(_ENDED.size)
        assert message, f"the process that forks programs has ended: {self._process.wait()}"
        pid, status = _ENDED.unpack(message)
        if status == _FORKED:
            self._new.append(pid)
        else:
            self._codes[pid] = os.waitstatus_to_exitcode(status)
        return True


_parent = cache(_Parent)


def _serve(module: str, channel: socket.socket) -> list[str] | None:
    """Fork for each request; returns the words of a program in a fork, and None when nobody needs more of them."""
    for name in IMPORTED[module]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake[1])
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    poller.register(wake[0], select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poller.poll()}
        if wake[0] in ready:
            os.read(wake[0], 4096)
            _reap(channel)
        if channel.fileno() not in ready:
            continue
        request, files, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, _FILES)
        if not request:
            return None
        if not os.fork():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in wake:
                os.close(descriptor)
            words = _become(module, json.loads(request), files)
            channel.send(_ENDED.pack(os.getpid(), _FORKED))
            channel.close()
            return words
        for descriptor in files:
            os.close(descriptor)


def _reap(channel: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            channel.send(_ENDED.pack(pid, status))


def _become(module: str, request: dict[str, Any], files: list[int]) -> list[str]:
    """Take session, environment, files and command line of a new program; returns its words."""
    from scaler_io.service.forked_program import show_command

    os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in folders if folder and folder not in sys.path]
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for descriptor in files]
    for descriptor in files:
        os.close(descriptor)
    for source, number in zip(moved, [1, 2, *request["passed"]], strict=True):
        os.dup2(source, number)
        os.close(source)
    words: list[str] = request["words"]
    show_command([sys.executable, "-m", module, *words])
    return words


def main() -> None:
    """Serve, and run the program in each fork."""
    module = sys.argv[1]
    inherited = int(sys.argv[2])
    channel = socket.socket(fileno=fcntl.fcntl(inherited, fcntl.F_DUPFD_CLOEXEC, _ABOVE))
    os.close(inherited)
    words = _serve(module, channel)
    if words is not None:
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
