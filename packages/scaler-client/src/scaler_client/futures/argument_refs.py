"""Futures inside arguments: how a pickled call refers to results that are not there yet.

Arguments are not traversed. The code that pickles a call opens a `Collector` for its thread; a future reached by the
pickler registers itself there and is pickled as a reference, which the worker resolves.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scaler_client.objects.handles import StoredPayload
from scaler_protocol.errors import InvalidFieldError
from scaler_protocol.messages import MESSAGE_NEEDS

if TYPE_CHECKING:
    from scaler_client.core.records import Dependency, Dump, Outcome
    from scaler_client.futures.waiters import FutureOwner


class ResultLease:
    """A future as a dependency of calls: keeps the received bytes of its result after the result was loaded."""

    __slots__ = ("__weakref__", "outcome", "task_id", "written")

    def __init__(self, task_id: int, outcome: Callable[[], Outcome | Dump | None]) -> None:
        self.task_id = task_id
        self.outcome = outcome
        """Returns status and payload, or how to get them if the bytes are not kept; None while there is none."""
        self.written: Outcome | None = None


class ResultLeases(dict[int, "weakref.ref[ResultLease]"]):
    """Live leases by task. A WeakValueDictionary takes ten times as long to find that there is none."""

    def find(self, task: int) -> ResultLease | None:
        """The lease of this task's result."""
        found = self.get(task)
        return found() if found is not None else None

    def add(self, lease: ResultLease) -> None:
        """Add a lease; it is removed when it is collected."""
        task = lease.task_id

        def forget(gone: object) -> None:
            if self.get(task) is gone:
                del self[task]

        self[task] = weakref.ref(lease, forget)


class _Open(threading.local):
    collector: Collector | None = None


_open = _Open()


class Collector:
    """The dependencies of the call that this thread is pickling; `failed` is the error of an argument that failed."""

    __slots__ = ("_found", "_outer", "failed", "owner")

    def __init__(self, owner: FutureOwner) -> None:
        self.owner = owner
        self._found: dict[Dependency, None] = {}
        self.failed: Exception | None = None

    def __enter__(self) -> Collector:
        self._outer, _open.collector = _open.collector, self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _open.collector = self._outer

    @property
    def found(self) -> list[Dependency]:
        """The dependencies, without duplicates; raises InvalidFieldError if they are too many for a task."""
        if len(self._found) > MESSAGE_NEEDS:
            raise too_many_inputs("a task", len(self._found))
        return list(self._found)

    def add(self, need: Dependency) -> None:
        """Add a dependency."""
        self._found[need] = None

    def raise_failure(self) -> None:
        """Raise the error of the argument that failed, if there is one."""
        try:
            if self.failed is not None:
                raise self.failed
        finally:
            self.failed = None  # the traceback of the error holds this frame

    def keep(self, payload: StoredPayload) -> bytes:
        """Add this object, which must outlive the call; returns its reference."""
        self.add(payload.object)
        return payload.object.reference


def too_many_inputs(what: str, count: int) -> InvalidFieldError:
    """The error for a task with so many inputs."""
    return InvalidFieldError(
        f"{what} has {count:,} futures and objects as inputs, more than {MESSAGE_NEEDS:,}: have several tasks combine "
        "them, and another one their results"
    )


def collector(what: str = "a ScalerFuture") -> Collector:
    """The collector open in this thread; raises TypeError, which names `what`, if no call is being pickled."""
    if _open.collector is None:
        raise TypeError(
            f"{what} can not be pickled, but for as an argument of a call of its own client: give it to the call "
            "itself, not in a function (a partial, a closure), in an object that is sent, or in a result"
        )
    return _open.collector


def same(value: Any) -> Any:
    """The value; a future that has its result is pickled as a call of this."""
    return value
