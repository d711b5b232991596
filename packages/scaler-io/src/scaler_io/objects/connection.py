"""ObjectConnection: how clients and workers put, get and delete stored objects. Blocking, for any number of threads.

On the server's host bytes do not travel: they are written into a segment once, and read where they are by everybody
(scaler_io.objects.segments, scaler_io.objects.mmaps). Elsewhere a HostCache, where there is one, lets a host's
processes fetch an object once. scaler_io.objects.connection_thread is the thread that the connection belongs to.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import platform
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from scaler_io.objects.connection_thread import ConnectionThread
from scaler_io.objects.host_cache import HostCache
from scaler_io.objects.host_objects import HostObjects
from scaler_io.objects.operations import (
    Buffer,
    Deletion,
    Done,
    Download,
    Listing,
    Operation,
    Pieces,
    Upload,
    reference_of,
    views_of,
)
from scaler_io.objects.prefetch import Prefetch
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replica, new_version
from scaler_io.objects.segments import Copying, copies
from scaler_io.once_event import check_may_wait
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, ObjectNotFoundError, ScalerError, StorageFullError, StorageLostError
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.objects import SHARED_BYTES, Reference

_LOOK_SECONDS: Final = 0.01
"""How often to look whether a silent server is back."""
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What says that this process has no descriptor or no mapping left: its limits are RLIMIT_NOFILE, max_map_count."""


class ObjectConnection:
    """Stored objects as seen by a client or a worker; connects when it is first used.

    Blocking and thread-safe. A forked process connects for itself and shares nothing but the session. An operation
    raises StorageLostError when it has waited for a silent server for `timeout_seconds`; the connection is made again
    as soon as the server is back. A server that will not have us is HandshakeRefusedError.
    """

    def __init__(
        self,
        address: Address,
        *,
        session: int,
        key: bytes = b"",
        role: int = Role.CLIENT,
        timeout_seconds: float = 60.0,
        name: str = "",
        renewed: Callable[[], object] | None = None,
        cache: HostCache | None = None,
        replica_server: ReplicaServer | None = None,
    ) -> None:
        """`key` proves ownership of the session to the server; only this process and its forks have it.

        `renewed` is called on the connection's thread, and must not block, when the server's incarnation has changed.
        On another host than the server's, objects that are put stay in `cache`, shared by the processes of this host,
        and `replica_server` serves them to the server.
        """
        self.address = address
        self._host = (
            HostObjects(cache, address, self._run, lambda held: self._abandon([held.reference], held.session))
            if cache is not None
            else None
        )
        self._replica_server = replica_server
        self.session = session
        self.server = 0
        """The incarnation of the server that welcomed us last."""
        self._renewed = renewed
        self._key = key
        self._role = role
        self._timeout = timeout_seconds
        self._name = name
        self._closed = False
        self._inherited: list[ConnectionThread] = []
        self._traffic: ConnectionThread | None = None
        self._forked()
        _CONNECTIONS.add(self)

    def _forked(self) -> None:
        """Begin anew: nobody else of this process can be in here."""
        self._lock = threading.RLock()
        self._ahead = Prefetch(shared=self._host is not None)
        if self._traffic is not None:
            self._inherited.append(self._traffic)  # never to be touched, not even by the garbage collector
        self._traffic = None

    def _forking(self) -> None:
        if (traffic := self._traffic) is not None:
            traffic.mappings.lend()

    def _welcomed(self, server: int) -> None:
        before, self.server = self.server, server
        if self._renewed is not None and before not in (0, server):
            self._renewed()

    def open(self) -> None:
        """Connect now: from here on the session's objects live until its client is gone."""
        self._run(Operation(Reference(b"", 0), 0))

    def open_soon(self) -> None:
        """As `open`, unless there is a connection; does not wait."""
        with self._lock:
            if self._traffic is None or self._traffic.ended or self._traffic.lost:
                self._start(Operation(Reference(b"", 0), 0))

    def put(self, payload: Pieces, *, session: int = 0, name: bytes = b"", copying: Copying | None = None) -> Reference:
        """Store bytes, or several buffers as one object, in our session or another that a worker works for.

        The object's id is random unless it is to have this `name`, which must be new and as hard to guess.
        Nothing may change the buffers before this returns, unless copies are stored (`copying`). Raises
        ObjectRefusedError, of which StorageFullError is one.
        """
        views = views_of(payload)
        held = Replica(reference_of(views, name), new_version(), session or self.session)
        host = self._host if held.reference.size >= SHARED_BYTES else None
        if host is None or self.is_near() or not host.keep(held, views if copying is None else copies(views, copying)):
            self._put([Upload(held.reference, views, held.session, copying=copying)])
        return held.reference

    def put_soon(self, payload: Pieces, *, session: int = 0, name: bytes = b"", done: Done) -> Reference:
        """As `put`, but does not wait: `done` is called on the connection's thread, with None or why it failed.

        Until then nothing may change the buffers. `done` must not block.
        """
        views = views_of(payload)
        upload = Upload(reference_of(views, name), views, session or self.session, done)
        self._start(upload)
        return upload.reference

    def put_each(self, payloads: Sequence[Buffer], *, session: int = 0) -> list[Reference]:
        """Store every one of these as an object, or, where that fails, none; otherwise as `put`."""
        each = map(views_of, payloads)
        return self._put([Upload(reference_of(views), views, session or self.session) for views in each])

    def _put(self, uploads: Sequence[Upload]) -> list[Reference]:
        references = [upload.reference for upload in uploads]
        try:
            for upload in uploads:
                self._start(upload)
            for upload in uploads:
                upload.wait()
        except BaseException:
            for upload in uploads:
                upload.over.set()
            # Interrupted, or one of many refused: the server has not dropped what it has of the others.
            self._abandon(references, uploads[0].session)
            raise
        return references

    def get(self, reference: Reference, *, timeout: float = math.inf) -> bytes | memoryview:
        """The bytes of an object, of whatever session; raises ObjectNotFoundError at once where there is none.

        On the server's host, or with a cache, it may be a view of the object itself, for reading only: it stays as it
        is as long as it, or anything made from it, is used. Raises TimeoutError after so many seconds; what has come
        by then is not lost for whoever asks again.
        """
        deadline = time.monotonic() + timeout
        if (begun := self._begun(reference, deadline)) is not None:
            return begun
        traffic = self._traffic
        mapping = traffic.mappings.find(reference.object, reference.size) if traffic is not None else None
        if mapping is not None:
            return memoryview(mapping)
        if traffic is None or traffic.mappings.may_grow:
            try:
                return self._fetch(reference, deadline)
            except StorageFullError:
                pass  # there is no memory to map it from, but perhaps a disk to read it from
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
        return self._fetch(reference, deadline, may_map=False)

    def _fetch(self, reference: Reference, deadline: float, *, may_map: bool = True) -> bytes | memoryview:
        host = self._host if may_map and reference.size >= SHARED_BYTES else None
        while True:
            download = Download(reference, looking=host is not None, may_map=may_map)
            try:
                self._run(download, deadline)
            except TimeoutError:
                self._keep(download)
                raise
            if host is not None and download.looked:
                mapping = host.fetch(reference, download.edition, deadline)
                if mapping is not None:
                    traffic = self._traffic
                    shared = traffic.mappings.share(reference.object, mapping) if traffic is not None else mapping
                    return memoryview(shared)
                host = None  # it has no room
            elif download.whole:
                return download.payload

    def _keep(self, download: Download) -> None:
        """Nobody waits for this any more, but somebody will ask again."""
        with self._lock:
            if not download.looking:
                self._ahead.keep(download)

    def get_soon(self, following: Sequence[Reference]) -> None:
        """Bring what is likely to be asked for with `get`, the first one first, as far as it fits; does not wait."""
        with self._lock:
            if (traffic := self._traffic) is not None and traffic.near is not None:
                for download in self._ahead.begin(following, near=traffic.near, may_map=traffic.mappings.may_grow):
                    self._start(download)

    def _begun(self, reference: Reference, deadline: float) -> bytes | memoryview | None:
        """What was begun ahead, when it is here; None where that was not, or came to nothing."""
        with self._lock:
            download = self._ahead.take(reference)
        if download is None:
            return None
        ended = download.over.is_set()
        try:
            download.wait(deadline)
        except TimeoutError:
            self._keep(download)
            raise
        except (ScalerError, OSError) as error:
            if error is not download.error or (isinstance(error, StorageLostError) and not ended):
                raise  # a signal handler raised it, or we have waited for it
            return None  # why, it will say again
        return download.payload if download.whole else None

    def _abandon(self, references: Sequence[Reference], session: int) -> None:
        with contextlib.suppress(ClientQuitError):
            self.delete(references, session=session)

    def is_near(self) -> bool:
        """Whether the server is on this host; connects where that is not known. Raises StorageLostError."""
        traffic = self._traffic
        if traffic is None or traffic.near is None:
            self.open()
            traffic = self._traffic
        return traffic is not None and bool(traffic.near)

    def has(self, reference: Reference, edition: int) -> bool:
        """Whether the server knows an object as this edition; raises StorageLostError."""
        download = Download(reference, looking=True)
        try:
            self._run(download)
        except ObjectNotFoundError:
            return False
        return download.edition == edition

    def list(self) -> Sequence[bytes]:
        """The ids of all complete objects of our session."""
        listing = Listing()
        self._run(listing)
        return listing.objects

    def delete(self, references: Sequence[Reference], *, session: int = 0) -> None:
        """Free objects of the session, in order with what this thread asks next; does not wait.

        Where the server is lost nothing is done: objects go with their session.
        """
        names = [reference.object for reference in references]
        with self._lock:
            self._ahead.give_up(names)
            if names and self._traffic is not None:
                self._traffic.mappings.forget(names)
            if names and (self._traffic is None or not self._traffic.ended):
                self._start(Deletion(names, session or self.session))

    def clear(self) -> None:
        """Free all objects of our session; does not wait."""
        with self._lock:
            self._ahead.give_up()
            if self._traffic is not None:
                self._traffic.mappings.forget([])
            self._start(Deletion((), self.session))

    def check_server(self, patience: float = 0.0) -> None:
        """Raises StorageLostError where the server has been silent for longer than an operation waits for it.

        It is given so many seconds to come back.
        """
        until = time.monotonic() + patience
        if self._silent and patience:
            self.open_soon()
        while self._silent:
            check_may_wait()
            if time.monotonic() >= until:
                raise StorageLostError(
                    f"object storage server {self.address} has been silent for more than {self._timeout:g} s"
                )
            time.sleep(_LOOK_SECONDS)

    @property
    def _silent(self) -> bool:
        traffic = self._traffic
        return traffic is not None and traffic.lost

    def close(self) -> None:
        """Say goodbye; a client's objects are freed with its session. Operations in other threads raise."""
        with self._lock:
            self._closed = True
            traffic, self._traffic = self._traffic, None
        if traffic is not None:
            traffic.close()

    def _run(self, transfer: Operation, deadline: float = math.inf) -> None:
        self._start(transfer)
        transfer.wait(deadline)

    def _start(self, transfer: Operation) -> None:
        with self._lock:
            if self._closed:
                raise ClientQuitError(f"the connection to object storage server {self.address} is closed")
            if self._traffic is None or not self._traffic.start(transfer):
                hello = Hello(
                    self._role,
                    new_identity(),
                    new_incarnation(),
                    session=self.session,
                    session_key=self._key,
                    name=self._name,
                    host=platform.node(),
                    pid=os.getpid(),
                )
                self._traffic = ConnectionThread(
                    self.address, hello, self._timeout, self._welcomed, self._replica_server, transfer
                )


_CONNECTIONS: Final[weakref.WeakSet[ObjectConnection]] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in _CONNECTIONS:
        connection._forked()


def _before_fork() -> None:
    for connection in list(_CONNECTIONS):
        connection._forking()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
