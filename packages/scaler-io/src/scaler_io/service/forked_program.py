"""ForkedProgram: a program of ours in a fork of this process, whose imports it need not repeat."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from scaler_io.service import logs
from scaler_io.service.process import end_process

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

_POLL_SECONDS: Final = 0.005
# proc(5): fields of /proc/self/stat behind the name, which is the second one.
_ARG_START: Final = 48 - 3


class ForkedProgram:
    """A child process that runs `main`; poll, wait, terminate and kill are those of subprocess.Popen.

    This process must have neither threads nor sockets yet. The child has a session of its own and, of the files of this
    process, standard output and error; in a list of processes it is `python -m module words`. Raises OSError.
    """

    def __init__(self, module: str, words: Sequence[str], main: Callable[[], int]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # a collection would change, and so copy, all memory that both have
        self._code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _run(module, words, main)

    def poll(self) -> int | None:
        """The exit code, negative if a signal has ended it; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; returns the exit code. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(_POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:  # its id is not that of another process yet
            os.kill(self.pid, number)


def _run(module: str, words: Sequence[str], main: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        os.setsid()
        logs.configure(())  # it closes what the log of this process has open
        _close_files()
        sys.argv = [module, *words]
        show_command([sys.executable, "-m", module, *words])
        code = main()
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        end_process(code)


def _close_files() -> None:
    """Close all files but standard output and error; standard input is empty."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the one of this list
                os.close(int(name))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def show_command(command: Sequence[str]) -> None:
    """Write the command line into the place of the one that this process was forked with, as far as there is room."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[_ARG_START : _ARG_START + 2])
    text = os.fsencode("\0".join(command))[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
