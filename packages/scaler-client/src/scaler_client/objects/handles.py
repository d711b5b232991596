"""Handles of objects in object storage. Pure, no IO.

Theory. An object lives as long as this process refers to it by a StoredPayload, or by the StoredObject itself. A call
refers to its objects until its outcome has arrived, a future to its result until the result is loaded, the consumers of
a result until their own outcomes have arrived, and an ObjectReference until it is released. All StoredPayloads of one
object share one StoredObject; when that is collected, the object is deleted. A result without any reference, such as
that of a cancelled call, is deleted as soon as it arrives.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from scaler_client.objects.rebuild import RebuildSource
from scaler_io.finalizers import when_collected
from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.errors import ScalerError
from scaler_protocol.objects import Reference


class ObjectBackend(Protocol):
    """Where the bytes of objects are kept."""

    def fetch(self, reference: bytes, timeout: float = ...) -> Buffer:
        """The bytes of an object; raises ScalerError, OSError, or TimeoutError after `timeout` seconds."""

    def free(self, reference: bytes) -> None:
        """Delete an object. Never blocks."""


class Remade(Protocol):
    """A task that makes a lost result again."""

    task_id: int

    def _received(self, timeout: float) -> tuple[int, bytes]:
        """Wait for its outcome: status and payload; raises TimeoutError."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the exception with which it ended, if any."""

    def _as_input(self) -> Any:
        """Its outcome as an input of another task; None while there is none."""


class ResultOrigin(Protocol):
    """The task whose result an object is."""

    task_id: int
    status: int
    lost: bool
    read: bool
    made: Remade | None

    @property
    def size(self) -> int:
        """The bytes that it keeps."""


Store = Callable[[Payload], bytes]
"""Stores a payload above INLINE_LIMIT and returns its handle, or returns the bytes; raises ScalerError."""


class StoredObject:
    """An object that this client owns: it is deleted when this is collected.

    As a dependency of a call it is kept alive, and never waited for.
    """

    __slots__ = ("__weakref__", "_backend", "_put_callbacks", "error", "origin", "pending", "reference", "source")

    task_id = 0

    def __init__(self, backend: ObjectBackend, reference: bytes, *, pending: bool = False) -> None:
        self._backend, self.reference = backend, reference
        self.pending = pending
        """Whether storage has not confirmed it yet: calls that refer to it are sent after that."""
        self.error: ScalerError | None = None
        """Why storage has refused it."""
        self.source: RebuildSource | None = None
        """How to rebuild it if the server loses it."""
        self.origin: ResultOrigin | None = None
        """How to make it again if it is the result of a task."""
        self._put_callbacks: list[Callable[[ScalerError | None], object]] = []
        # Not __del__: while that runs, other threads still get the object from weak references, as in ArgumentCache.
        when_collected(self, _free, backend, reference)

    def set_source(self, source: RebuildSource | None) -> None:
        """Rebuild it from this, unless there is a source that is still alive."""
        if self.source is None or not self.source.alive:
            self.source = source

    def finish_put(self, error: ScalerError | None) -> None:
        """Record that storage has confirmed the object, or refused it with this error."""
        self.error, self.pending = error, error is not None
        self._run_put_callbacks()

    def add_put_callback(self, tell: Callable[[ScalerError | None], object]) -> None:
        """Call `tell` once storage has confirmed or refused it, or at once; from any thread, and possibly twice."""
        self._put_callbacks.append(tell)
        if not self.pending or self.error is not None:
            self._run_put_callbacks()

    def _run_put_callbacks(self) -> None:
        callbacks, self._put_callbacks = self._put_callbacks, []
        for tell in callbacks:
            tell(self.error)

    def outcome(self) -> tuple[int, bytes] | None:
        """None: an object is no task and has no outcome."""
        return None

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        return Reference.unpack(self.reference).size

    def fetch(self, timeout: float = math.inf) -> Buffer:
        """The bytes; raises ScalerError, OSError, or TimeoutError after `timeout` seconds."""
        return self._backend.fetch(self.reference, timeout)


def _free(backend: ObjectBackend, reference: bytes) -> None:
    with contextlib.suppress(Exception):  # the connection may be closed
        backend.free(reference)


class StoredPayload(bytes):
    """The handle of an object: a packed reference in the place of a payload, which also keeps the object alive."""

    object: StoredObject

    @classmethod
    def of(cls, stored: StoredObject) -> StoredPayload:
        """The handle of an object."""
        handle = cls(stored.reference)
        handle.object = stored
        return handle

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        return self.object.size


def stored_positions(payloads: Sequence[bytes]) -> Sequence[int]:
    """The positions of the handles among payloads."""
    if not payloads or StoredPayload not in set(map(type, payloads)):
        return ()
    return [position for position, payload in enumerate(payloads) if type(payload) is StoredPayload]


def pending_puts(needs: Iterable[object], *payloads: bytes) -> list[StoredObject]:
    """The objects among payloads and dependencies that storage has not confirmed."""
    named = [payload.object for payload in payloads if type(payload) is StoredPayload]
    found = dict.fromkeys([*named, *(need for need in needs if isinstance(need, StoredObject))])
    return [stored for stored in found if stored.pending]


def remade(payload: object) -> Remade | None:
    """The task that makes a lost result again, for its handle; None if the result is not lost, or no handle."""
    origin = payload.object.origin if type(payload) is StoredPayload else None
    return origin.made if origin is not None else None


def fetched(payload: bytes, timeout: float = math.inf) -> Buffer:
    """The payload itself, fetched if it is a handle; raises what StoredObject.fetch raises."""
    return payload.object.fetch(timeout) if type(payload) is StoredPayload else payload


def object_bytes(needs: Iterable[Sequence[object]]) -> int:
    """Total bytes of the objects among the dependencies of calls, each counted once."""
    return sum(stored.size for stored in {need for found in needs for need in found if isinstance(need, StoredObject)})


def true_size(payload: bytes) -> int:
    """Bytes of the payload itself: of the object for a handle."""
    return payload.size if type(payload) is StoredPayload else len(payload)
