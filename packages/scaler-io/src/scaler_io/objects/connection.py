"""ObjectConnection: puts, gets, lists and deletes stored objects. Blocking, for any number of threads.

On the server's host the bytes of big objects are not sent: the writer of an object fills a segment, and its readers map
this segment (scaler_io.objects.segments, scaler_io.objects.mmaps). The processes of another host fetch an object once
if they share a HostCache.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

from scaler_io.objects.host_cache import HostCache
from scaler_io.objects.host_objects import HostObjects
from scaler_io.objects.operations import (
    Deletion,
    Listing,
    Look,
    Pieces,
    PutEnded,
    Upload,
    reference_of,
    views_of,
)
from scaler_io.objects.reader import ObjectReader
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.replicas import Replica, new_version
from scaler_io.objects.segments import Copying, copies
from scaler_io.objects.storage_link import StorageLink
from scaler_io.security.keyring import Credentials
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError
from scaler_protocol.handshake import Role
from scaler_protocol.limits import DELETED_TOGETHER
from scaler_protocol.objects import SHARED_BYTES, Reference

DELETED_LIMIT = 10_000
"""How many deletions are remembered, to repeat them to a restarted server; each takes about 100 bytes."""


class ObjectConnection(StorageLink):
    """The stored objects of a session as a client or a worker uses them. Thread-safe; see StorageLink for failures."""

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
        credentials: Credentials | None = None,
        token: Callable[[], bytes] = bytes,
    ) -> None:
        """Take the arguments of StorageLink, and `cache`, which the processes of this host share.

        If the server is on another host, objects that are put stay in `cache` until it asks `replica_server` for them.
        """
        self._host = HostObjects(cache, address, self) if cache is not None else None
        self._reader = ObjectReader(self, self._host)
        self._deleted: deque[tuple[int, bytes]] = deque(maxlen=DELETED_LIMIT)
        """The latest deleted objects that may be replicas, with their sessions."""
        super().__init__(
            address,
            session=session,
            key=key,
            role=role,
            timeout_seconds=timeout_seconds,
            name=name,
            renewed=renewed,
            replica_server=replica_server,
            credentials=credentials,
            token=token,
        )

    def forked(self) -> None:
        super().forked()
        self._reader = ObjectReader(self, self._host)

    def put(self, payload: Pieces, *, session: int = 0, name: bytes = b"", copying: Copying | None = None) -> Reference:
        """Store bytes, or several buffers as one object; `session` is the owner, 0 for the session of this connection.

        The object's id is `name`, which must be new and hard to guess, or random without a name. The buffers must not
        change before this returns, unless `copying` says how to copy them. Raises ObjectRefusedError or its subclass
        StorageFullError.
        """
        views = views_of(payload)
        replica = Replica(reference_of(views, name), new_version(), session or self.session)
        host = self._host if replica.reference.size >= SHARED_BYTES else None
        if (
            host is None
            or self.is_near()
            or not host.keep(replica, views if copying is None else copies(views, copying))
        ):
            self._put(Upload(replica.reference, views, replica.session, copying=copying))
        return replica.reference

    def put_soon(self, payload: Pieces, *, session: int = 0, name: bytes = b"", done: PutEnded) -> Reference:
        """As `put`, but does not wait: the connection thread calls `done` with None, or with the error.

        The buffers must not change until then. `done` must not block.
        """
        views = views_of(payload)
        upload = Upload(reference_of(views, name), views, session or self.session, done)
        self.start(upload)
        return upload.reference

    def _put(self, upload: Upload) -> None:
        try:
            self.start(upload)
            upload.wait()
        except BaseException:
            upload.over.set()
            # The put was interrupted: delete the parts that the server has received.
            with contextlib.suppress(ClientQuitError):
                self.delete([upload.reference], session=upload.session)
            raise

    def get(self, reference: Reference, *, timeout: float = math.inf) -> bytes | memoryview:
        """The bytes of an object of any session; raises ObjectNotFoundError at once if there is no such object.

        On the server's host, or with a cache, this may be a read-only view of the object itself. The object does not
        change while the view, or anything made from it, is used. Raises TimeoutError after `timeout` seconds; the next
        `get` uses the bytes that have arrived by then.
        """
        return self._reader.get(reference, timeout)

    def get_soon(self, following: Sequence[Reference]) -> None:
        """Begin to fetch the objects that will probably be read next, in this order, while there is room.

        Does not wait.
        """
        self._reader.get_soon(following)

    def has(self, reference: Reference, version: int) -> bool:
        """Whether the server has this version of an object; raises StorageLostError."""
        look = Look(reference)
        self.run(look)
        return look.found and look.version == version

    def has_each(self, references: Sequence[Reference]) -> Sequence[bool]:
        """Whether the server can read each of these objects; raises StorageLostError."""
        looks = [Look(reference) for reference in references]
        for look in looks:
            self.start(look)
        for look in looks:
            look.wait()
        return [look.found for look in looks]

    def list(self) -> Sequence[bytes]:
        """The ids of all complete objects of our session."""
        listing = Listing()
        self.run(listing)
        return listing.objects

    def delete(self, references: Sequence[Reference], *, session: int = 0) -> None:
        """Delete objects of the session before the next request of this thread; does not wait.

        Does nothing if the server is lost, because objects end with their session.
        """
        names, owner = [reference.object for reference in references], session or self.session
        if names:
            with self.lock:
                self._reader.forget(names)
                self._deleted.extend((owner, each.object) for each in references if each.size >= SHARED_BYTES)
                self._delete(names, owner)

    def _welcomed(self, server: int) -> None:
        """Repeat deletions to a restarted server: a host may hold replicas of deleted objects."""
        renewed = self.server not in (0, server)
        super()._welcomed(server)
        if renewed:
            with self.lock, contextlib.suppress(ClientQuitError):
                for session, deleted in groupby(sorted(self._deleted), key=itemgetter(0)):
                    self._delete([name for _, name in deleted], session)

    def _delete(self, names: Sequence[bytes], session: int) -> None:
        """Begin to delete these objects."""
        for at in range(0, len(names), DELETED_TOGETHER):
            self.start_if_open(Deletion(names[at : at + DELETED_TOGETHER], session))

    def clear(self) -> None:
        """Delete all objects of our session; does not wait."""
        with self.lock:
            self._reader.forget()
            self.start(Deletion((), self.session))
