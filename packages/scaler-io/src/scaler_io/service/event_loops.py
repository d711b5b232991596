"""The event loop of a program: asyncio's own, or uvloop.

Both are imported when a loop is run: what is forked before has neither, and user code there imports its own.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from scaler_io.service.options import EVENT_LOOP_KIND, Option
from scaler_protocol.errors import ScalerError

T = TypeVar("T")
LOGGER: Final = logging.getLogger("scaler")

_COLLECTOR_THRESHOLDS: Final = (100_000, 20, 100)

EVENT_LOOP: Final = Option(("--event-loop", "-el"), "the event loop to run on", EVENT_LOOP_KIND, default="builtin")
"""The field event_loop: str."""


class EventLoopError(ScalerError, ValueError):
    """The event loop is not installed: pip install "scaler[uvloop]", or use --event-loop builtin."""


def run(main: Callable[[], Coroutine[Any, Any, T]], kind: str = "builtin") -> T:
    """Run a coroutine function on a new event loop until it returns, and log the kind of the loop.

    Raises ValueError for an unknown kind, EventLoopError if uvloop cannot be imported, both before `main` is called.
    """
    import asyncio

    runner: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run
    if EVENT_LOOP_KIND(kind) == "uvloop":
        runner = _uvloop_run()
    LOGGER.info("use event loop: %s", kind)
    if sys.platform == "linux":
        from scaler_io.service.process import hold_signals

        hold_signals()
        main = partial(_recording_signals, main)
    if sys.implementation.name != "cpython":
        return runner(main())
    thresholds = gc.get_threshold()
    # The objects of a server form no cycles: frequent collections would cost much and free nothing.
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    try:
        return runner(main())
    finally:
        gc.set_threshold(*thresholds)


async def _recording_signals(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    import asyncio

    from scaler_io.service.process import record_signals

    try:
        return await main()
    finally:
        record_signals(asyncio.get_running_loop())


def _uvloop_run() -> Callable[[Coroutine[Any, Any, T]], T]:
    try:
        import uvloop
    except ImportError as error:
        raise EventLoopError(f"{EventLoopError.__doc__} ({error})") from error
    return uvloop.run
