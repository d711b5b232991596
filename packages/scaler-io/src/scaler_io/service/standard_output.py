"""The end of what a program prints."""

from __future__ import annotations

import os
import select
import sys


def finish_output() -> None:
    """Write what was printed; raises OSError if that is impossible: BrokenPipeError if its reader is gone."""
    if not sys.stdout.closed:
        sys.stdout.flush()


def is_unread(error: Exception) -> bool:
    """Whether an error says that what is printed reaches nobody any more, as behind `| head`; the rest is dropped."""
    if not isinstance(error, BrokenPipeError) or sys.platform == "win32":
        return False
    output = select.poll()
    output.register(sys.stdout, 0)  # errors are always reported
    if not output.poll(0):
        return False
    # The rest of the buffer must be written somewhere, or the interpreter reports an error at exit.
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return True
