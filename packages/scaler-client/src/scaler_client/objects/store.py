"""The client's access to object storage. The thread that submits puts; the thread that reads a result fetches."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from scaler_client.objects.handles import Remade, ResultOrigin, StoredObject, StoredPayload, fetched
from scaler_client.objects.read_order import ReadOrder
from scaler_io.objects.async_puts import AsyncPuts
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.segments import Copying
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.thread_event import ThreadEvent
from scaler_protocol.addresses import Address
from scaler_protocol.buffers import Buffer, BufferedPickle, Payload
from scaler_protocol.errors import ObjectNotFoundError, ObjectRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.objects import OBJECT_ID_BYTES, SHARED_BYTES, Reference, new_object_id

_LOG = logging.getLogger("scaler")

COPIES_LIMIT_BYTES = 16 * 1024 * 1024
"""Bytes of copies of small objects (below SHARED_BYTES each) that are kept in case the server loses them."""
UNCONFIRMED_BYTES = COPIES_LIMIT_BYTES
"""Bytes of objects that storage has not confirmed, beyond which a put waits: their bytes are the copies kept anyway."""
ORIGINS_LIMIT_BYTES = 64 * 1024 * 1024
"""Bytes of calls that are kept in case their results are lost."""
PATIENCE_SECONDS = 20.0
"""How long an operation may take to reach the server: an outage of 15 s, and the time to connect again."""
LOST_SECONDS = 1.0
"""How long a put waits for a server that earlier operations failed to reach."""


def wait_until_put(stored_object: StoredObject) -> None:
    """Block until storage confirms an object; raises ScalerError if it refuses it."""
    ended = ThreadEvent()
    stored_object.add_put_callback(lambda error: ended.set())
    ended.wait()
    if (error := stored_object.error) is not None:
        raise type(error)(*error.args, **error.details)  # a new instance, because its traceback leads here


class StorageDoor:
    """The connections of a process to the storage servers that its scheduler has named; each is opened on first use."""

    def __init__(self, address: Callable[[], str], connect: Callable[[Address], ObjectConnection]) -> None:
        self._address, self._connect = address, connect
        self._connections: dict[str, ObjectConnection] = {}

    @property
    def named(self) -> bool:
        """Whether the scheduler names a server; without one all payloads travel inline."""
        return bool(self._address())

    @property
    def used(self) -> bool:
        """Whether any connection was opened."""
        return bool(self._connections)

    def connection(self) -> ObjectConnection:
        """The connection to the current server; raises StorageLostError if the scheduler names none."""
        address = self._address()
        found = self._connections.get(address)
        if found is None:
            if not address:
                raise StorageLostError("the scheduler names no object storage server")
            # If two threads race here, the connection of the second one is never opened.
            found = self._connections.setdefault(address, self._connect(Address.parse(address)))
        return found

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._connections.values()):
            connection.close()


class ClientStorage:
    """The objects of one session. Thread-safe, also in finalizers."""

    def __init__(
        self,
        door: StorageDoor,
        session: int,
        remake: Callable[[ResultOrigin], Remade | None] = lambda origin: None,
        *,
        outlives: bool = False,
    ) -> None:
        """`remake` starts the task, or returns the one that was started, that makes a lost result again.

        `outlives`: the session outlives this process. The scheduler deletes its results.
        """
        self._door, self.session, self._remake = door, session, remake
        self._kept: set[bytes] | None = set() if outlives else None
        """The objects that this process does not delete."""
        self._known: WeakValueDictionary[bytes, StoredObject] = WeakValueDictionary()
        self._read_order = ReadOrder()
        self._renew_locks()
        self._async_puts = AsyncPuts(UNCONFIRMED_BYTES)
        self._connects = True
        """Whether the last attempt to connect succeeded."""
        self._refusal: ScalerError | None = None
        self._copies: dict[bytes, bytes] = {}
        self._copied = 0
        self._origins: dict[bytes, int] = {}
        """The bytes of calls that are kept, by the references of their results."""
        self._origin_bytes = 0
        self._unknown: list[bytes] = []
        self.losses = 0
        """How often objects of this session were found to be lost."""
        _STORAGES.add(self)

    def _renew_locks(self) -> None:
        self._lock = ReentrantLock()
        self._restoring = ReentrantLock()
        self._remaking = ReentrantLock()  # a signal handler may read a result in the middle of this

    def store(self, payload: Payload, *, soon: bool = False, copying: Copying | None = None) -> bytes:
        """Put a payload that exceeds INLINE_LIMIT and return its handle, or return the bytes; raises ScalerError.

        With `soon` a payload below SHARED_BYTES is put asynchronously (StoredObject.pending), unless more than
        UNCONFIRMED_BYTES would be unconfirmed. A bigger one is stored as `copying` copies it.
        """
        if len(payload) <= INLINE_LIMIT or not self._door.named:
            return bytes(payload)
        if soon and self._async_puts.may_put(len(payload)):
            return self._store_soon(bytes(payload))
        handle = self._handle_of(Reference(new_object_id(), len(payload)).pack())
        try:
            self._connection().check_server(LOST_SECONDS)
            self._put(handle.object, payload, copying)
        except StorageLostError:
            self.losses += 1
            raise
        if len(payload) < SHARED_BYTES:
            self._copy(handle.object, bytes(payload))
        return handle

    def _put(self, stored_object: StoredObject, payload: Payload, copying: Copying | None = None) -> None:
        connection = self._connection()
        buffers = payload.pieces if isinstance(payload, BufferedPickle) else payload
        connection.put(buffers, session=self.session, name=stored_object.reference[:OBJECT_ID_BYTES], copying=copying)

    def _copy(self, stored_object: StoredObject, payload: bytes) -> None:
        with self._lock:
            if self._copied + len(payload) <= COPIES_LIMIT_BYTES:
                self._copies[stored_object.reference] = payload
                self._copied += len(payload)

    def restore(self) -> int:
        """Rebuild and put again the objects of this session that the server has lost; raises ScalerError.

        Returns the server that has them. Objects that cannot be rebuilt stay lost: fetching one raises
        ObjectNotFoundError.
        """
        with self._restoring:
            while (server := self._put_again()) != self._connection().server:
                pass  # it was started again meanwhile
        return server

    def _put_again(self) -> int:
        connection = self._connection()
        stored = set(connection.list())  # the answer comes from the current server
        server = connection.server
        with self._lock:
            known = list(self._known.values())
        while known:
            stored_object = known.pop()  # possibly the last reference to it
            if stored_object.reference[:OBJECT_ID_BYTES] in stored or (payload := self._rebuilt(stored_object)) is None:
                continue
            with contextlib.suppress(ObjectRefusedError):
                self._put(stored_object, payload)
        return server

    def list_unknown(self) -> bool:
        """Note the objects of the session on the server that this client has no handle of; whether there are any."""
        if not self._door.used:
            return False
        try:
            names = self._connection().list()
        except ScalerError as error:
            _LOG.warning("cannot look for objects that a lost scheduler has left behind: %s", error)
            return False
        self._unknown = [name for name in names if name not in self._known]
        return bool(self._unknown)

    def delete_unknown(self) -> None:
        """Delete the objects of `list_unknown` that still have no handle; does not wait."""
        unknown, self._unknown = self._unknown, []
        garbage = [Reference(name, 0) for name in unknown if name not in self._known]
        if garbage and self._refusal is None:
            _LOG.info("deleting %s objects that a lost scheduler has left behind", len(garbage))
            self._connection().delete(garbage, session=self.session)

    def _rebuilt(self, stored_object: StoredObject) -> bytes | None:
        payload = self._copies.get(stored_object.reference)
        if payload is None and stored_object.source is not None and not stored_object.pending:
            try:
                payload = stored_object.source.payload()
            except Exception as error:
                _LOG.warning("cannot serialize again an object that the storage server has lost: %r", error)
        return payload

    def _store_soon(self, payload: bytes) -> bytes:
        reference = Reference(new_object_id(), len(payload))
        handle = self._handle_of(reference.pack(), pending=True)
        stored_object = handle.object
        self._copy(stored_object, payload)

        def done(error: ScalerError | None) -> None:
            if isinstance(error, StorageLostError):
                with self._lock:
                    self.losses += 1
            stored_object.finish_put(error)

        self._async_puts.put(self._connection(), payload, session=self.session, name=reference.object, done=done)
        return handle

    def adopt(self, reference: bytes, origin: ResultOrigin | None = None) -> StoredPayload:
        """The handle of an object that a worker has put for this session; does not block.

        If the object is lost, it is made again by `origin`.
        """
        self._connect_soon()
        handle, size = self._handle_of(reference), origin.size if origin is not None else 0
        with self._lock:
            self._read_order.add(Reference.unpack(reference))
            if self._kept is not None:
                self._kept.add(reference)
            if self._origin_bytes + size <= ORIGINS_LIMIT_BYTES and reference not in self._origins:
                handle.object.origin = origin
                self._origins[reference] = size
                self._origin_bytes += size
        return handle

    def _connect_soon(self) -> None:
        """Connect, because the server retains objects for connected clients only.

        If that fails, the next fetch tries again and raises the error.
        """
        try:
            self._connection().open_soon()
        except ScalerError:
            pass  # the session has ended, or has no server
        except Exception as error:
            if self._connects:
                _LOG.warning("cannot connect to object storage ahead of the first fetch: %r", error)
            self._connects = False
        else:
            self._connects = True

    def discard(self, object_id: bytes) -> None:
        """Delete an object that has no handle here."""
        if object_id not in self._known:
            with contextlib.suppress(Exception):  # then it is deleted with the session
                self._connection().delete([Reference(object_id, 0)], session=self.session)

    def fetch(self, reference: bytes, timeout: float = math.inf) -> Buffer:
        """The bytes of an object; raises ScalerError, OSError, or TimeoutError after `timeout` seconds."""
        connection, unpacked = self._connection(), Reference.unpack(reference)
        connection.check_server()
        until = time.monotonic() + timeout
        stored = self._known.get(unpacked.object)
        origin = stored.origin if stored is not None else None
        try:
            payload = connection.get(unpacked, timeout=timeout)
        except ObjectNotFoundError as error:
            lost = error.with_traceback(None)  # its frames would keep the handle of the object
            return self._fetch_again(origin, lost, until)
        if origin is not None:
            origin.read = True
        with self._lock:
            following = self._read_order.take(unpacked)
        if following:
            connection.get_soon(following)
        return payload

    def _fetch_again(self, origin: ResultOrigin | None, lost: ObjectNotFoundError, until: float) -> Buffer:
        """The bytes of a lost result, made again by its task; raises ObjectNotFoundError if that is impossible."""
        if origin is None:
            raise lost
        task = f"it was the result of task {origin.task_id:x}"
        if origin.made is None:
            origin.lost = True
            self.remake(())
        made = self._remake(origin)
        if made is None:
            why = "its call or one of the arguments is not known any more"
            raise ObjectNotFoundError(f"{lost}; {task}, which cannot run again: {why}")
        status, payload = made._received(until - time.monotonic())
        if status != origin.status:
            raise ObjectNotFoundError(f"{lost}; {task}, which ran again and ended with {made.exception()!r}")
        origin.read = True
        return fetched(payload, until - time.monotonic())

    def remake(self, needed: Iterable[StoredObject]) -> None:
        """Start the tasks that make the results again that storage does not have; raises ScalerError.

        Those are made that are needed, and all that were not read yet, which will be: so tasks that several of them
        take run once.
        """
        with self._lock:
            known = list(self._known.values())
        unread = [stored for stored in known if stored.origin is not None and not stored.origin.read]
        with self._remaking:
            origins = {
                each.reference: each.origin
                for each in (*needed, *unread)
                if each.origin is not None and each.origin.made is None
            }
            found = self._connection().has_each(list(map(Reference.unpack, origins)))
            lost = [origin for origin, there in zip(origins.values(), found, strict=True) if not there]
            for origin in lost:
                origin.lost = True
            for origin in lost:
                self._remake(origin)

    def free(self, reference: bytes) -> None:
        """Delete an object; does not wait. No effect after `refuse`, as the session is over."""
        with self._lock:
            self._origin_bytes -= self._origins.pop(reference, 0)
            self._copied -= len(self._copies.pop(reference, b""))
            self._read_order.take(unpacked := Reference.unpack(reference))
            is_kept = self._kept is not None and reference in self._kept
            if self._kept is not None:
                self._kept.discard(reference)
        if self._refusal is None and not is_kept:
            self._connection().delete([unpacked], session=self.session)

    def keep_known(self) -> None:
        """Delete none of the objects that there are, if the session outlives this process: its calls need them."""
        with self._lock:
            if self._kept is not None:
                self._kept.update(stored.reference for stored in list(self._known.values()))

    def refuse(self, refusal: ScalerError) -> None:
        """Raise this error from now on: the client has disconnected, or this process is a fork of the client's."""
        if self._refusal is None:
            self._refusal = refusal

    def close(self) -> None:
        """Close the connections, and with them the session."""
        self._door.close()

    def _connection(self) -> ObjectConnection:
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args) from self._refusal.__cause__
        return self._door.connection()

    def _handle_of(self, reference: bytes, *, pending: bool = False) -> StoredPayload:
        with self._lock:
            name = reference[:OBJECT_ID_BYTES]
            stored_object = self._known.get(name)
            if stored_object is None:
                stored_object = self._known[name] = StoredObject(self, reference, pending=pending)
            return StoredPayload.of(stored_object)


_STORAGES: Final[WeakSet[ClientStorage]] = WeakSet()


def _after_fork() -> None:
    """Replace locks that a thread of the parent may have held: no other thread exists in a fork, but finalizers run."""
    for storage in list(_STORAGES):
        storage._renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
