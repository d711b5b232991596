"""AsyncPuts: back-pressure for objects that a process puts without waiting for storage."""

from __future__ import annotations

from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.operations import PutEnded
from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.errors import ScalerError
from scaler_protocol.objects import SHARED_BYTES, Reference


class AsyncPuts:
    """Counts the bytes of objects that storage has not confirmed; beyond `limit` bytes a put has to wait. Thread-safe.

    Only objects below SHARED_BYTES may be put without waiting, because the process keeps a copy of the bytes until
    then: a bigger object is written into a segment from its own buffers. Threads that ask at the same time may exceed
    the limit by one object each.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unconfirmed = 0
        self._lock = ReentrantLock()  # a finalizer may put an object at any point

    def may_put(self, size: int) -> bool:
        """Whether an object of `size` bytes may be put without waiting."""
        return size < SHARED_BYTES and self._unconfirmed + size <= self._limit

    def put(
        self, connection: ObjectConnection, payload: bytes, *, session: int, name: bytes = b"", done: PutEnded
    ) -> Reference:
        """As ObjectConnection.put_soon; counts the payload until `done` is called."""
        size = len(payload)

        def ended(error: ScalerError | None) -> None:
            with self._lock:
                self._unconfirmed -= size
            done(error)

        with self._lock:
            self._unconfirmed += size
        try:
            return connection.put_soon(payload, session=session, name=name, done=ended)
        except BaseException:
            with self._lock:
                self._unconfirmed -= size
            raise
