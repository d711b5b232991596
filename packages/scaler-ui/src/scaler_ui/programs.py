"""The entry points of the programs of this package. Nothing slow is imported before signals have handlers."""

from __future__ import annotations

import sys
from collections.abc import Callable


def ui() -> int:
    """Serve pages until a signal; returns the exit code of `scaler_ui`, also called `scaler_gui`."""

    def serve() -> None:
        from scaler_ui.web.app import run_pages

        run_pages()

    return guarded("scaler_ui", serve)


def top() -> int:
    """Run scaler_top to its end; returns the exit code."""

    def show() -> None:
        from scaler_ui.terminal.top import run_top

        run_top()

    return guarded("scaler_top", show)


def why() -> int:
    """Run scaler_why to its end; returns the exit code: 1 also for an unknown task."""

    def answer() -> int:
        from scaler_ui.terminal.why import run_why

        return run_why()

    return guarded("scaler_why", answer)


def profile() -> int:
    """Run scaler_profile to its end; returns the exit code: 1 also if no task was seen."""

    def take() -> int:
        from scaler_ui.terminal.profile import run_profile

        return run_profile()

    return guarded("scaler_profile", take)


def guarded(program: str, function: Callable[[], int | None]) -> int:
    """The exit code of a program's main function: 2 for wrong usage, 1 for another error, 0 after a signal.

    An expected error is one line on stderr.
    """
    if sys.platform == "linux":
        from scaler_io.service.process import main_guard

        return main_guard(program, function)
    from scaler_io.service.options import one_line
    from scaler_io.service.standard_output import finish_output, is_unread
    from scaler_protocol.errors import ScalerError

    try:
        code = function() or 0
        finish_output()
        return code
    except KeyboardInterrupt:
        return 0
    except (ValueError, OSError, ScalerError) as error:
        if is_unread(error):
            return 1
        print(f"{program}: {one_line(str(error))}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
