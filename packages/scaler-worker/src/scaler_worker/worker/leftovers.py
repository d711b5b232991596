"""Reverts process state that a task has changed and that would affect later tasks.

Theory. Comparing all state takes many microseconds, longer than a short task. So the functions that change it count
their calls, and the state is compared after a run only if one was called. Changes by C code are found when the process
is examined (scaler_worker.worker.damage).
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
_WATCHED: Final = {
    "signal": ("signal", "setitimer", "alarm", "set_wakeup_fd", "pthread_sigmask"),
    "resource": ("setrlimit", "prlimit"),
    "sys": ("setrecursionlimit",),
    "faulthandler": ("dump_traceback_later",),
    "os": ("chroot", "setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setregid", "setresgid"),
}
"""Functions whose calls are counted: their effects are reverted, or reported as damage."""
_IMPLEMENTED_BY: Final = {"signal": "_signal", "os": "posix"}
"""Pickles refer to the functions through these modules."""
_getsignal: Final[Callable[[int], Any]] = sys.modules["_signal"].getsignal
"""signal.getsignal converts its result to an enumeration, which takes ten times as long."""


class OpenText(io.TextIOWrapper):
    """Standard output or error: close() only flushes, because later tasks need the stream."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.flush()


class OpenBytes(io.BufferedWriter):
    """The buffer of such a stream: close() only flushes, because a text stream that wraps it closes it at its end."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.flush()


def standard_stream(number: int) -> TextIO:
    """Open standard output (1) or error (2), line-buffered, such that tasks cannot close it."""
    raw = io.FileIO(number, "w", closefd=False)
    errors = "strict" if number == 1 else "backslashreplace"
    return OpenText(OpenBytes(raw), encoding="utf-8", errors=errors, line_buffering=True)


class Leftovers:
    """Records the state of this process at construction and restores it; main thread only."""

    def __init__(self, make: Callable[[int], TextIO] = standard_stream) -> None:
        """`make` makes a new standard output (1) or error (2), where a task has closed it."""
        self._make = make
        self._calls = 0
        self._out, self._error = sys.stdout, sys.stderr
        self._handlers = {number: _getsignal(number) for number in _SIGNALS}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._recursion_limit = sys.getrecursionlimit()
        self._wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakeup)

    def watch(self) -> None:
        """Wrap the functions that change process state so that they count their calls."""
        for name, functions in _WATCHED.items():
            for module in {name, _IMPLEMENTED_BY.get(name, name)}:
                for function in functions:
                    self._count_calls(sys.modules[module], function)

    def note(self) -> None:
        """State that is not watched has changed."""
        self._calls += 1

    def may_have_changed(self) -> bool:
        """Whether state may have changed. Called after each run; takes 0.1 us."""
        return self._calls > 0 or sys.stdout is not self._out or sys.stderr is not self._error

    def undo(self) -> None:
        """Disarm timers; restore signal handlers and mask, standard streams and the recursion limit."""
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
        sys.stdout = self._out = self._usable(self._out, 1)
        sys.stderr = self._error = self._usable(self._error, 2)
        self._calls = 0

    def _usable(self, stream: TextIO, number: int) -> TextIO:
        """Return the stream, or a new one if it is closed or detached."""
        try:
            if not getattr(stream, "closed", False):  # a preload may have put anything there
                return stream
        except ValueError:  # its buffer is detached
            pass
        return self._make(number)

    def _count_calls(self, module: ModuleType, name: str) -> None:
        original = getattr(module, name)

        @functools.wraps(original)
        def counting(*arguments: Any, **named: Any) -> Any:
            self._calls += 1
            return original(*arguments, **named)

        counting.__module__ = module.__name__  # where pickles find it
        setattr(module, name, counting)
