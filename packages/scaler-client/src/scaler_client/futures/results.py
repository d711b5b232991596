"""Results: from the bytes of an outcome to what `result()` returns or raises, and to `profiling_info()`."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NoReturn

from scaler_client.core.graph_state import noted
from scaler_client.core.records import LocalFailure
from scaler_client.futures.waiters import WaitTimeoutError
from scaler_client.objects.handles import fetched
from scaler_client.payloads.pickles import load_with
from scaler_client.payloads.user_exceptions import Origin, headline
from scaler_protocol.buffers import Buffer
from scaler_protocol.errors import DeserializeError, ScalerError, StorageLostError, restore
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_protocol.profiles import Profile

FETCH_SECONDS: Final = 1.0
"""Minimum time to fetch a result that is ready, even if the timeout of `result()` is shorter."""
Failure = tuple[BaseException, TracebackType | None]
"""An exception and its original traceback: raising adds frames, so each raise starts from the original."""


class RemoteTracebackError(Exception):
    """The traceback of a task as text: the cause of an exception whose traceback could not be sent."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True, slots=True)
class ProfilingInfo:
    """What the run of a call cost. Made by `ScalerFuture.profiling_info`.

    Attributes:
        duration_s: wall time in seconds.
        cpu_time_s: CPU time of all threads of the worker in seconds; of very short runs `duration_s`.
        memory_peak: the largest resident memory of the worker since it started, in bytes.
        worker: the name of the worker process.
        attempt: number of the run, from 1; above 1 if the task was run again.
        fetch_time_s: the part of `duration_s` in which the worker fetched function and arguments from object storage.
        store_time_s: the part in which it stored the result there; not what goes on while it runs the next task.

    >>> future = client.submit(sum, range(1000))
    >>> future.result(), future.profiling_info().memory_peak > 0
    (499500, True)
    """

    duration_s: float
    cpu_time_s: float
    memory_peak: int
    worker: str
    attempt: int
    fetch_time_s: float = 0.0
    store_time_s: float = 0.0

    @property
    def duration_us(self) -> int:
        """Wall time in microseconds.

        >>> future = client.submit(sum, range(1000))
        >>> future.result(), future.profiling_info().duration_us >= 0
        (499500, True)
        """
        return round(self.duration_s * 1e6)

    @property
    def peak_memory(self) -> int:
        """The same as `memory_peak`.

        >>> future = client.submit(sum, range(1000))
        >>> future.result(), future.profiling_info().peak_memory > 0
        (499500, True)
        """
        return self.memory_peak


def profiling_info(profile: Profile, agent: str) -> ProfilingInfo:
    """The ProfilingInfo of a profile record of this agent."""
    return ProfilingInfo(
        duration_s=profile.duration_us / 1e6,
        cpu_time_s=profile.cpu_us / 1e6,
        memory_peak=profile.peak_memory,
        worker=f"{agent}/{profile.worker}" if agent else str(profile.worker),
        attempt=profile.attempt,
        fetch_time_s=profile.fetch_us / 1e6,
        store_time_s=profile.store_us / 1e6,
    )


def load_failure(status: int, payload: Buffer) -> Failure:
    """The exception of a failed task: what it raised, or the error of the system.

    Raises what `refuse` raises if it cannot be loaded.
    """
    if status != Status.RAISED:
        failure = restore(bytes(payload))
        failure.__cause__ = payload.cause if isinstance(payload, LocalFailure) else None
        if text := failure.details.get("traceback"):
            failure.__cause__ = RemoteTracebackError(text)
        return failure, None
    try:
        error, text = pickle.loads(payload)
    except BaseException as problem:
        refuse("the exception that the task raised", problem)
    origin = Origin.of(error)
    if origin.traceback is None and origin.cause is None and text:
        origin._replace(cause=RemoteTracebackError(text), suppress_context=True).give(error)
    try:
        return error, origin.traceback
    finally:
        del error, origin  # the frames of a traceback that is loaded lead to this one


def load_outcome(status: int, payload: bytes, load: Callable[[Any], Any], until: float = math.inf) -> tuple[bool, Any]:
    """True and the value, or False and the failure, of a payload that may be in object storage.

    Raises errors that may be transient, so that a retry may succeed: StorageLostError, another OSError, TimeoutError if
    the payload cannot be fetched by `until` (time.monotonic), and what `refuse` raises if it cannot be loaded.
    """
    try:
        content = fetched(payload, max(until - time.monotonic(), FETCH_SECONDS))
    except StorageLostError:
        raise
    except TimeoutError as late:
        if is_interruption(late):
            raise
        raise WaitTimeoutError(f"the task is done, but its result did not come in time: {late}") from None
    except ScalerError as lost:
        return False, (lost.with_traceback(None), None)
    if status != Status.VALUE:
        return False, noted(load_failure(status, content), payload)  # not assigned to a variable: see `load_failure`
    try:
        return True, load_with(load, content)
    except BaseException as problem:
        refuse("the result", problem)


def refuse(what: str, problem: BaseException) -> NoReturn:
    """Raise DeserializeError: loading `what` has failed.

    A MemoryError, or the exception of a signal handler, has nothing to do with the bytes, and is raised as it is.
    """
    if isinstance(problem, MemoryError | KeyboardInterrupt) or is_interruption(problem):
        raise problem
    remedy = ": install it where this program runs, or set its PYTHONPATH"
    missing = isinstance(problem, ModuleNotFoundError)
    raise DeserializeError(
        f"{what} could not be loaded here: {headline(problem)}{remedy if missing else ''}"
    ) from problem


def is_interruption(error: BaseException) -> bool:
    """Whether a signal handler raised it: one of its frames received the interrupted frame as an argument."""
    trace = error.__traceback__
    while trace is not None:
        interrupted = trace.tb_frame.f_back
        for given in trace.tb_frame.f_locals.values() if interrupted is not None else ():
            if given is interrupted or (type(given) is tuple and any(each is interrupted for each in given)):
                return True
        trace = trace.tb_next
    return False


def dump_failure(failure: Failure) -> bytes:
    """The payload of a RAISED outcome, pickled again from the exception."""
    from scaler_client.payloads.exceptions import dump_exception

    error, traceback = failure
    Origin.of(error)._replace(traceback=traceback).give(error)
    return dump_exception(error, "")
