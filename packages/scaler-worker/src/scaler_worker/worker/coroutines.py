"""Coroutines that tasks return: awaited in the worker, each in an event loop of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, Final

from scaler_worker.worker.invoke import drop_frames_of

_LOOP_FILES: Final = (__file__, asyncio.runners.__file__, asyncio.base_events.__file__)


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns, as `asyncio.run` would; raises what it raises, without the frames of the loop.

    The cancellation of a call that it awaits is raised as `result()` of that call would raise it.
    """
    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError as cancelled:
        raise concurrent.futures.CancelledError(*cancelled.args) from cancelled
    except BaseException as error:
        drop_frames_of(_LOOP_FILES, error)
        raised = error
    try:
        raise raised
    finally:
        del raised  # its traceback leads here
