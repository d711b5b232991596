"""The function that a Symphony task runs. It is pickled by value, so it uses the standard library and cloudpickle only.

An exception of the user's code, and an error of loading or pickling, comes back as an answer. So a task that Symphony
reports as failed is a fault of Symphony, of the service or of the host.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
import traceback
from typing import Any, Final, NamedTuple

import cloudpickle

RETURNED: Final = "returned"
"""How a call ends: the body is the pickled result."""
RAISED: Final = "raised"
"""The body is the pickled exception; the text is its traceback."""
EXITED: Final = "exited"
"""The call raised SystemExit or KeyboardInterrupt, which is the text."""
NOT_LOADED: Final = "not loaded"
"""Function or arguments cannot be loaded here; the text is why."""
RESULT_NOT_SENT: Final = "result not sent"
"""The result cannot be pickled; the text is why."""
ERROR_NOT_SENT: Final = "error not sent"
"""The exception cannot be pickled; the body is its last line in UTF-8, the text its traceback."""


class Answer(NamedTuple):
    """The output of a Symphony task, which travels as a plain tuple."""

    ending: str
    body: bytes
    text: str
    duration_us: int
    cpu_us: int
    peak_memory: int
    """The largest resident memory of the service process in bytes; 0 where its system does not tell."""
    pid: int


def run_call(call: bytes) -> tuple[Any, ...]:
    """Run a pickled (function, arguments, keywords); returns the fields of Answer. Never raises."""
    start, cpu = time.perf_counter(), time.process_time()
    ending, body, text = _execute(call)
    wall_us, cpu_us = int((time.perf_counter() - start) * 1e6), int((time.process_time() - cpu) * 1e6)
    return ending, body, text, wall_us, cpu_us, _peak_memory(), os.getpid()


def _execute(call: bytes) -> tuple[str, bytes, str]:
    try:
        function, args, kwargs = cloudpickle.loads(call)
    except BaseException as error:
        return NOT_LOADED, b"", _line(error)
    try:
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:
        return _raised(error)
    except BaseException as error:
        return EXITED, b"", _line(error)
    try:
        return RETURNED, cloudpickle.dumps(value), ""
    except BaseException as error:
        return RESULT_NOT_SENT, b"", f"{type(value).__qualname__}, which cannot be sent: {_line(error)}"


def _raised(error: Exception) -> tuple[str, bytes, str]:
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        body = cloudpickle.dumps(error)
        cloudpickle.loads(body)
    except BaseException:
        return ERROR_NOT_SENT, _line(error).encode("utf-8", "replace"), text
    return RAISED, body, text


def _line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def _peak_memory() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
