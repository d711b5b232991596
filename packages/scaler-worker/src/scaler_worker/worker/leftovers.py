"""Leftovers: what a task may leave behind in its worker's process that would meet later tasks, and that can be undone.

Theory. To look at everything takes many microseconds, more than a task does. So the functions that change something
note that they were called, and only then everything is looked at when the run ends. What is changed past them, by C
code, is found when the process is examined (scaler_worker.worker.damage).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TextIO

_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGNALS: Final = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_NOTED: Final = {
    "signal": ("signal", "setitimer", "alarm", "set_wakeup_fd", "pthread_sigmask"),
    "resource": ("setrlimit", "prlimit"),
    "sys": ("setrecursionlimit",),
    "faulthandler": ("dump_traceback_later",),
    "os": ("chroot", "setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setregid", "setresgid"),
}
"""What notes that it was called: its effects are undone or found to be damage."""
_IMPLEMENTED_BY: Final = {"signal": "_signal", "os": "posix"}
"""Pickles name functions by these modules."""
_getsignal: Final[Callable[[int], Any]] = sys.modules["_signal"].getsignal
"""signal.getsignal makes enumerations of all it finds, which takes ten times as long."""


class Leftovers:
    """Knows how this process was when this was made, and makes it so again: from its main thread only."""

    def __init__(self) -> None:
        self._calls = 0
        self._out, self._error = sys.stdout, sys.stderr
        self._handlers = {number: _getsignal(number) for number in _SIGNALS}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._recursion_limit = sys.getrecursionlimit()
        self._wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakeup)

    def watch(self) -> None:
        """Have the functions that change something note it from now on."""
        for name, functions in _NOTED.items():
            for module in {name, _IMPLEMENTED_BY.get(name, name)}:
                for function in functions:
                    self._note_calls(sys.modules[module], function)

    def suspected(self) -> bool:
        """Whether there may be any. It is asked after each run, and takes 0.1 us."""
        return self._calls > 0 or sys.stdout is not self._out or sys.stderr is not self._error

    def undo(self) -> None:
        """Timers are disarmed; signals, standard streams and the recursion limit are as they were."""
        for timer in _TIMERS:
            if signal.getitimer(timer)[0]:
                signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        for number, handler in self._handlers.items():
            if _getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        if sys.getrecursionlimit() < self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        sys.stdout = self._out = _usable(self._out, 1)
        sys.stderr = self._error = _usable(self._error, 2)
        self._calls = 0

    def _note_calls(self, module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def noting(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            return original(*arguments, **named)

        noting.__module__ = module.__name__  # where pickles find it
        setattr(module, name, noting)


class _OpenText(io.TextIOWrapper):
    """Standard output or error: to close it flushes it, since later tasks need it."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.flush()


class _OpenBytes(io.BufferedWriter):
    """The bytes of such a stream: another text stream may stand upon them for a while, and closes them at its end."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.flush()


def standard_stream(number: int) -> TextIO:
    """Standard output (1) or error (2), by lines, which no task can close."""
    raw = io.FileIO(number, "w", closefd=False)
    errors = "strict" if number == 1 else "backslashreplace"
    return _OpenText(_OpenBytes(raw), encoding="utf-8", errors=errors, line_buffering=True)


def _usable(stream: TextIO, number: int) -> TextIO:
    """The stream, or one in its place where its parts are closed or taken from it."""
    try:
        if not getattr(stream, "closed", False):  # a preload may have put anything there
            return stream
    except ValueError:  # its buffer is detached
        pass
    return standard_stream(number)
