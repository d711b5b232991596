"""A worker's access to object storage."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final

from scaler_client.objects.store import PATIENCE_SECONDS, StorageDoor
from scaler_client.payloads.pickles import is_unchanging, load
from scaler_io.objects.async_puts import AsyncPuts
from scaler_io.objects.connection import ObjectConnection
from scaler_io.objects.host_cache import HostCache
from scaler_io.objects.operations import PutEnded
from scaler_io.security.key_files import load_credentials
from scaler_io.security.keyring import WORKER_KEYS
from scaler_protocol.addresses import Address
from scaler_protocol.buffers import Buffer, BufferedPickle, Payload
from scaler_protocol.handshake import Role
from scaler_protocol.ids import new_identity, new_session, session_of
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.objects import Reference
from scaler_worker.ipc.frames import result_name

CACHE_BYTES: Final = 256 * 1024 * 1024
UNCONFIRMED_BYTES: Final = 8 * 1024 * 1024
"""Bytes of results that storage has not confirmed, beyond which a put waits: less than a client has, because a host has
many workers, and a worker needs only enough to run its next tasks while storage answers."""


@dataclass(slots=True)
class _CachedObject:
    """A cached object: its bytes, or its immutable value, which no longer needs them."""

    size: int
    payload: Buffer | None
    value: Any = None
    used: bool = True


class WorkerObjectStore:
    """The connection that Runner and the client inside its tasks share; opened on first use.

    It has the role of an agent, which may write results in any session, and it owns `session`: tasks and objects that
    tasks here create end with this process. Objects that several runs may need are cached up to `limit` bytes, in LRU
    order. If storage is on another host, this host's workers share fetched objects in `cache`. `token` is what the
    scheduler has told the agent.
    """

    def __init__(
        self,
        address: Callable[[], str],
        secret: bytes,
        name: str,
        limit: int = CACHE_BYTES,
        cache: HostCache | None = None,
        keys: Path | None = None,
        token: Callable[[], bytes] = bytes,
    ) -> None:
        self.session, self._key = new_session(nested=True), new_identity()
        self._secret, self._pid = secret, os.getpid()
        self._token = token
        self.door = StorageDoor(address, self._connect)
        self._name = name
        self._limit = limit
        self._cache = cache
        self._keys = keys
        self.fetching = self.storing = 0
        self._kept: OrderedDict[bytes, _CachedObject] = OrderedDict()
        self._size = 0
        self._async_puts = AsyncPuts(UNCONFIRMED_BYTES)

    def _connect(self, address: Address) -> ObjectConnection:
        return ObjectConnection(
            address,
            session=self.session,
            key=self._key,
            role=Role.AGENT,
            timeout_seconds=PATIENCE_SECONDS,
            name=self._name,
            cache=self._cache,
            token=self._token,
            credentials=load_credentials(self._keys, WORKER_KEYS) if self._keys is not None else None,
        )

    @property
    def named(self) -> bool:
        """Whether the address of a server is known."""
        return self.door.named

    def get(self, reference: bytes) -> Buffer:
        """Fetch an object; raises ScalerError."""
        begun = monotonic_ns()
        try:
            return self.door.connection().get(Reference.unpack(reference))
        finally:
            self.fetching += monotonic_ns() - begun

    def get_shared(self, reference: bytes) -> Buffer:
        """Fetch an object through the cache; raises ScalerError."""
        kept = self._use(reference)
        if kept is not None and kept.payload is not None:
            return kept.payload
        payload = self.get(reference)
        self._keep(reference, _CachedObject(len(payload), payload))
        return payload

    def load_shared(self, reference: bytes) -> Any:
        """The value of an object; only immutable values are cached. Raises ScalerError, or what unpickling raises."""
        kept = self._use(reference)
        if kept is not None and kept.payload is None:
            return kept.value
        payload = self.get_shared(reference)
        value = load(payload)
        if is_unchanging(value):
            self._keep(reference, _CachedObject(len(payload), None, value))
        return value

    @property
    def keeping(self) -> bool:
        """Whether any object is cached."""
        return bool(self._kept)

    def forget_unused(self) -> None:
        """Evict objects that were not used since the last call."""
        for reference, kept in list(self._kept.items()):
            if not kept.used:
                self._drop(reference)
            kept.used = False

    def _use(self, reference: bytes) -> _CachedObject | None:
        kept = self._kept.get(reference)
        if kept is not None:
            kept.used = True
            self._kept.move_to_end(reference)
        return kept

    def _keep(self, reference: bytes, kept: _CachedObject) -> None:
        self._drop(reference)
        if kept.size > self._limit:
            return
        self._kept[reference] = kept
        self._size += kept.size
        while self._size > self._limit:
            self._drop(next(iter(self._kept)))

    def _drop(self, reference: bytes) -> None:
        if kept := self._kept.pop(reference, None):
            self._size -= kept.size

    def put(self, payload: Payload, task: int, run: int) -> bytes:
        """Store the result of a run in its task's session; returns the packed reference. Raises ScalerError."""
        name = result_name(self._secret, task, run, self._pid)
        buffers = payload.pieces if isinstance(payload, BufferedPickle) else payload
        begun = monotonic_ns()
        try:
            return self.door.connection().put(buffers, session=session_of(task), name=name).pack()
        finally:
            self.storing += monotonic_ns() - begun

    def may_put_soon(self, size: int) -> bool:
        """Whether `size` bytes may be put without waiting."""
        return self._async_puts.may_put(size)

    def put_soon(self, payload: bytes, task: int, run: int, done: PutEnded) -> bytes:
        """As `put`, without waiting: `done` is called on another thread when storage has answered."""
        name = result_name(self._secret, task, run, self._pid)
        connection = self.door.connection()
        return self._async_puts.put(connection, payload, session=session_of(task), name=name, done=done).pack()


class ObjectRuntime:
    """The part of a `TaskRuntime` of `scaler_client.task_context` that reads the objects which calls name."""

    def __init__(self, store: WorkerObjectStore) -> None:
        self._store = store

    @property
    def session(self) -> int:
        """The session of tasks and objects that are created here; this process owns it in object storage."""
        return self._store.session

    @property
    def storage(self) -> StorageDoor:
        """The process's connection to object storage."""
        return self._store.door

    def fetch(self, reference: bytes) -> Buffer:
        """Fetch an object that a call refers to; raises ScalerError."""
        return self._store.get_shared(reference)

    def load(self, reference: bytes) -> Any:
        """The value of an object that a call refers to; raises ScalerError, or what unpickling raises."""
        return self._store.load_shared(reference)
