"""Exit codes of the programs of this package; an expected error is one line on stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from scaler_io.service.options import one_line
from scaler_protocol.errors import ScalerError


def run(program: str, function: Callable[[], int | None]) -> int:
    """The exit code of a program's main function: 2 for wrong usage, 1 for another error, 0 after Ctrl-C."""
    if sys.platform != "win32":  # the program that starts this one may have blocked them, which is inherited
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
        signal.signal(signal.SIGUSR1, lambda number, frame: None)  # it asks a scheduler for a dump, and ends no program
    try:
        return function() or 0
    except KeyboardInterrupt:
        return 0
    except (ValueError, OSError, ScalerError) as error:
        print(f"{program}: {one_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
