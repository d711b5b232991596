"""Runs coroutines that tasks return, each in its own event loop."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Coroutine
from typing import Any

from scaler_worker.worker.invoke import drop_frames_of


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as `asyncio.run` does; tracebacks omit the frames of the event loop.

    If a call that the coroutine awaits is cancelled, this raises concurrent.futures.CancelledError, as `result()` does.
    """
    import asyncio  # as late as possible: most workers need none, and it loads OpenSSL

    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError as cancelled:
        raise concurrent.futures.CancelledError(*cancelled.args) from cancelled
    except BaseException as error:
        drop_frames_of((__file__, asyncio.runners.__file__, asyncio.base_events.__file__), error)
        raised = error
    try:
        raise raised
    finally:
        del raised  # break the reference cycle through its traceback
