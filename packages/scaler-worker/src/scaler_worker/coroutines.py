"""Coroutines that tasks return: awaited in the worker, each in an event loop of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Final

LOOP_FILES: Final = (__file__, asyncio.runners.__file__, asyncio.base_events.__file__)
"""Whose frames lead to a coroutine."""


def run_coroutine(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What the coroutine returns, as `asyncio.run` would; raises what it raises.

    The cancellation of a call that it awaits is raised as `result()` of that call would raise it.
    """
    try:
        return asyncio.run(coroutine)
    except asyncio.CancelledError as cancelled:
        raise concurrent.futures.CancelledError(*cancelled.args) from cancelled


def without_frames_of(files: tuple[str, ...], trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of these files at its beginning."""
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    return trace
