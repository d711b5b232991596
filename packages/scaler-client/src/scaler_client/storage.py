"""Object storage as a client uses it: whoever submits puts, whoever asks for a result fetches."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from scaler_client.stored import StoredObject, StoredPayload
from scaler_io.objects import ObjectConnection
from scaler_protocol.addresses import Address
from scaler_protocol.buffers import Buffer, BufferedPickle, Payload
from scaler_protocol.errors import ScalerError, StorageLostError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.objects import OBJECT_ID_BYTES, Reference

PATIENCE_SECONDS = 10.0
"""How long an operation may take to find the server."""


class StorageDoor:
    """A process's connection to the server that the scheduler names at the moment; nothing is opened before its use."""

    def __init__(self, address: Callable[[], str], connect: Callable[[Address], ObjectConnection]) -> None:
        self._address, self._connect = address, connect
        self._connections: dict[str, ObjectConnection] = {}

    @property
    def named(self) -> bool:
        """Whether there is a server: without one everything travels inline."""
        return bool(self._address())

    def connection(self) -> ObjectConnection:
        """The connection; raises StorageLostError where the scheduler names no server."""
        address = self._address()
        found = self._connections.get(address)
        if found is None:
            if not address:
                raise StorageLostError("the scheduler names no object storage server")
            # Of two threads that come here at once the second one's is never opened.
            found = self._connections.setdefault(address, self._connect(Address.parse(address)))
        return found

    def close(self) -> None:
        """Say goodbye everywhere."""
        for connection in list(self._connections.values()):
            connection.close()


class ClientStorage:
    """The objects of one session. For any thread, finalizers included."""

    def __init__(self, door: StorageDoor, session: int) -> None:
        self._door, self._session = door, session
        self._known: WeakValueDictionary[bytes, StoredObject] = WeakValueDictionary()
        self._lock = threading.RLock()
        self._refusal: ScalerError | None = None
        self.losses = 0
        """How often objects of ours were found to be lost."""

    def place(self, payload: Payload) -> bytes:
        """The payload, or where it is too big to travel inline what stands for it; raises ScalerError."""
        if len(payload) <= INLINE_LIMIT or not self._door.named:
            return bytes(payload)
        buffers = payload.pieces if isinstance(payload, BufferedPickle) else payload
        try:
            return self._stand_in(self._connection().put(buffers, session=self._session).pack())
        except StorageLostError:
            self.losses += 1
            raise

    def adopt(self, reference: bytes) -> StoredPayload:
        """What stands for an object that others have put for us; does not block."""
        # The server keeps objects for whoever has come for them.
        with contextlib.suppress(ScalerError):
            self._connection().open_soon()
        return self._stand_in(reference)

    def discard(self, object_id: bytes) -> None:
        """An object that nobody will tell us of, unless we know it, is of no use."""
        if object_id not in self._known:
            with contextlib.suppress(ScalerError):
                self._connection().delete([Reference(object_id, 0)], session=self._session)

    def fetch(self, reference: bytes) -> Buffer:
        """The bytes of an object; raises ScalerError."""
        return bytes(self._connection().get(Reference.unpack(reference)))

    def free(self, reference: bytes) -> None:
        """Delete an object; does not wait. After the end there is nothing to be freed any more."""
        if self._refusal is None:
            self._connection().delete([Reference.unpack(reference)], session=self._session)

    def refuse(self, refusal: ScalerError) -> None:
        """From now on this is the answer: the client has left, or this process is a fork of its own."""
        self._refusal = refusal

    def close(self) -> None:
        """End the connection, and with it the session."""
        self._door.close()

    def _connection(self) -> ObjectConnection:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args)
        return self._door.connection()

    def _stand_in(self, reference: bytes) -> StoredPayload:
        with self._lock:
            name = reference[:OBJECT_ID_BYTES]
            kept = self._known.get(name)
            if kept is None:
                kept = self._known[name] = StoredObject(self, reference)
            return StoredPayload.of(kept)
