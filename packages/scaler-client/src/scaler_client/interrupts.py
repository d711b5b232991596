"""Ctrl-C at a moment at which it would do harm."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and in threads and processes that it starts here; it is delivered at the end.

    An import that is interrupted may raise another exception than KeyboardInterrupt. A process that is interrupted
    before it handles signals prints a traceback. Does nothing on Windows.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
