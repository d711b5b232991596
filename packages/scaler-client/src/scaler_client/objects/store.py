"""Object storage as a client uses it: whoever submits puts, whoever asks for a result fetches."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from scaler_client.objects.handles import ASYNC_PUT_BYTES, StoredObject, StoredPayload
from scaler_client.objects.read_order import ReadOrder
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.segments import Copying
from scaler_io.once_event import OnceEvent
from scaler_protocol.addresses import Address
from scaler_protocol.buffers import Buffer, BufferedPickle, Payload
from scaler_protocol.errors import ObjectRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.objects import OBJECT_ID_BYTES, Reference, new_object_id

_LOG = logging.getLogger("scaler")

AHEAD_BYTES = 32 * 1024 * 1024
"""Bytes on the way to storage after which everything is waited for."""
COPIES_LIMIT_BYTES = 32 * 1024 * 1024
"""Bytes of objects up to ASYNC_PUT_BYTES that are kept here, too, should their server lose them."""
PATIENCE_SECONDS = 10.0
"""How long an operation may take to find the server."""
LOST_SECONDS = 1.0
"""How long an object to be stored waits for a server that others have waited for in vain: a big call costs no more."""


def wait_until_put(kept: StoredObject) -> None:
    """Block until storage has an object; raises ScalerError where that refuses it."""
    ended = OnceEvent()
    kept.add_put_callback(lambda error: ended.set())
    while not ended.wait(1.0):  # on Windows nothing else lets a Ctrl-C through
        pass
    if (error := kept.error) is not None:
        raise type(error)(*error.args, **error.details)  # of its own, as its traceback leads here


class StorageDoor:
    """A process's connection to the server that the scheduler names at the moment; nothing is opened before its use."""

    def __init__(self, address: Callable[[], str], connect: Callable[[Address], ObjectConnection]) -> None:
        self._address, self._connect = address, connect
        self._connections: dict[str, ObjectConnection] = {}

    @property
    def named(self) -> bool:
        """Whether there is a server: without one everything travels inline."""
        return bool(self._address())

    @property
    def used(self) -> bool:
        """Whether there has been a connection."""
        return bool(self._connections)

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
        self._unread = ReadOrder()
        self._renew_locks()
        self._on_the_way = 0
        self._comes = True
        """Whether the last attempt to connect was one."""
        self._refusal: ScalerError | None = None
        self._copies: dict[bytes, bytes] = {}
        self._copied = 0
        self._stock: list[bytes] = []
        self.losses = 0
        """How often objects of ours were found to be lost."""
        _STORAGES.add(self)

    def _renew_locks(self) -> None:
        self._lock = threading.RLock()
        self._mending = threading.Lock()

    def place(self, payload: Payload, *, soon: bool = False, copying: Copying | None = None) -> bytes:
        """The payload, or where it is too big to travel inline what stands for it; raises ScalerError.

        With `soon`, and unless much is on the way already, this does not wait for storage: see StoredObject.pending.
        What is bigger than ASYNC_PUT_BYTES is stored as `copying` copies it.
        """
        if len(payload) <= INLINE_LIMIT or not self._door.named:
            return bytes(payload)
        if soon and len(payload) <= ASYNC_PUT_BYTES and self._on_the_way <= AHEAD_BYTES:
            return self._place_soon(bytes(payload))
        placed = self._stand_in(Reference(new_object_id(), len(payload)).pack())
        try:
            self._connection().check_server(LOST_SECONDS)
            self._put(placed.kept, payload, copying)
        except StorageLostError:
            self.losses += 1
            raise
        if len(payload) <= ASYNC_PUT_BYTES:
            self._copy(placed.kept, bytes(payload))
        return placed

    def _put(self, kept: StoredObject, payload: Payload, copying: Copying | None = None) -> None:
        connection = self._connection()
        buffers = payload.pieces if isinstance(payload, BufferedPickle) else payload
        connection.put(buffers, session=self._session, name=kept.reference[:OBJECT_ID_BYTES], copying=copying)

    def _copy(self, kept: StoredObject, payload: bytes) -> None:
        with self._lock:
            if self._copied + len(payload) <= COPIES_LIMIT_BYTES:
                self._copies[kept.reference] = payload
                self._copied += len(payload)

    def mend(self) -> None:
        """Put where it belongs what the server has lost of ours, if it can be made again; raises ScalerError.

        What can not be made again is told to whoever wants it, by the server.
        """
        connection = self._connection()
        with self._mending:
            stored = set(connection.list())  # whoever answers is the server of now
            server = connection.server
            with self._lock:
                known = list(self._known.values())
            while known:
                kept = known.pop()  # which may be the last that keeps it
                if kept.reference[:OBJECT_ID_BYTES] in stored or (payload := self._rebuilt(kept)) is None:
                    continue
                with contextlib.suppress(ObjectRefusedError):
                    self._put(kept, payload)
            if server != connection.server:
                raise StorageLostError("the object storage server was started again while objects were put there")

    def list_unknown(self) -> bool:
        """Note which objects of the session nobody here knows of; whether there are any."""
        if not self._door.used:
            return False
        try:
            names = self._connection().list()
        except ScalerError as error:
            _LOG.warning("objects that the scheduler may have forgotten are not looked for: %s", error)
            return False
        self._stock = [name for name in names if name not in self._known]
        return bool(self._stock)

    def delete_unknown(self) -> None:
        """Free those that nobody has come to know since; does not wait."""
        stock, self._stock = self._stock, []
        garbage = [Reference(name, 0) for name in stock if name not in self._known]
        if garbage and self._refusal is None:
            _LOG.info("%s objects were forgotten when the scheduler was lost, and are freed", len(garbage))
            self._connection().delete(garbage, session=self._session)

    def _rebuilt(self, kept: StoredObject) -> bytes | None:
        payload = self._copies.get(kept.reference)
        if payload is None and kept.source is not None and not kept.pending:
            try:
                payload = kept.source.payload()
            except Exception as error:
                _LOG.warning("an object that its server has lost can not be written again: %r", error)
        return payload

    def _place_soon(self, payload: bytes) -> bytes:
        reference = Reference(new_object_id(), len(payload))
        placed = self._stand_in(reference.pack(), pending=True)
        kept = placed.kept
        self._copy(kept, payload)

        def done(error: ScalerError | None) -> None:
            with self._lock:
                self._on_the_way -= len(payload)
                self.losses += isinstance(error, StorageLostError)
            kept.finish_put(error)

        connection = self._connection()
        with self._lock:
            self._on_the_way += len(payload)
        try:
            connection.put_soon(payload, session=self._session, name=reference.object, done=done)
        except BaseException:
            with self._lock:
                self._on_the_way -= len(payload)
            raise
        return placed

    def adopt(self, reference: bytes) -> StoredPayload:
        """What stands for an object that others have put for us; does not block."""
        self._come_soon()
        with self._lock:
            self._unread.add(Reference.unpack(reference))
        return self._stand_in(reference)

    def _come_soon(self) -> None:
        """Connect, as the server keeps objects for whoever has come for them.

        Where that fails whoever asks for an object tries again, and is told why.
        """
        try:
            self._connection().open_soon()
        except ScalerError:
            pass  # nobody is to come
        except Exception as error:
            if self._comes:
                _LOG.warning("object storage can not be connected to before a result is asked for: %r", error)
            self._comes = False
        else:
            self._comes = True

    def discard(self, object_id: bytes) -> None:
        """An object that nobody will tell us of, unless we know it, is of no use."""
        if object_id not in self._known:
            with contextlib.suppress(Exception):  # then it goes with the session
                self._connection().delete([Reference(object_id, 0)], session=self._session)

    def fetch(self, reference: bytes, timeout: float = math.inf) -> Buffer:
        """The bytes of an object; raises ScalerError, OSError, or TimeoutError after so many seconds."""
        connection, unpacked = self._connection(), Reference.unpack(reference)
        connection.check_server()
        payload = connection.get(unpacked, timeout=timeout)
        with self._lock:
            following = self._unread.take(unpacked)
        if following:
            connection.get_soon(following)
        return payload

    def free(self, reference: bytes) -> None:
        """Delete an object; does not wait. After the end there is nothing to be freed any more."""
        with self._lock:
            self._copied -= len(self._copies.pop(reference, b""))
            self._unread.take(unpacked := Reference.unpack(reference))
        if self._refusal is None:
            self._connection().delete([unpacked], session=self._session)

    def refuse(self, refusal: ScalerError) -> None:
        """From now on this is the answer: the client has left, or this process is a fork of its own."""
        if self._refusal is None:
            self._refusal = refusal

    def close(self) -> None:
        """End the connection, and with it the session."""
        self._door.close()

    def _connection(self) -> ObjectConnection:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args) from self._refusal.__cause__
        return self._door.connection()

    def _stand_in(self, reference: bytes, *, pending: bool = False) -> StoredPayload:
        with self._lock:
            name = reference[:OBJECT_ID_BYTES]
            kept = self._known.get(name)
            if kept is None:
                kept = self._known[name] = StoredObject(self, reference, pending=pending)
            return StoredPayload.of(kept)


_STORAGES: Final[WeakSet[ClientStorage]] = WeakSet()


def _after_fork() -> None:
    """Nobody else of a forked process can be in here, and finalizers will."""
    for storage in list(_STORAGES):
        storage._renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
