"""Large arguments as objects of their own: an argument that several calls share is put once. Pure, but for its storage.

Theory. An argument above INLINE_LIMIT is put into object storage, and calls refer to that object. Each time it is given
it is compared with what was put, because it may have been modified in place:

- A mutable value with weak references is recognized by its identity and the checksum of its pickle, which is nearly
  three times as fast as a cryptographic hash. Its entry is removed by the weak reference.
- An immutable value (bytes, str) is recognized by its identity alone. It has no weak references, so the entry keeps it
  alive, as long as a call refers to its object and KeptValues has room.
- Any other value is recognized by a hash of its content, as long as anything refers to an object with equal content.

Other threads may modify the buffers of an object while it is put. An object is therefore known by what was stored: by
the checksum of the bytes that were written, and by its content only if that checksum is the one of the hashed bytes.

An argument up to SHARED_BYTES goes with its call while unfinished calls take less than half of the client's credit.
That saves the way through object storage. It happens once: if the same bytes come again, they are put.

An argument that depends on tasks, or that refers to other objects, is serialized into its call. All entries are
dropped when objects have been lost.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from scaler_client.futures.argument_refs import Collector
from scaler_client.futures.waiters import FutureOwner
from scaler_client.objects.handles import StoredObject, StoredPayload
from scaler_client.objects.kept_values import KeptValues
from scaler_client.objects.rebuild import (
    CHECKSUM_BYTES,
    CheckedCopy,
    RebuildSource,
    checksum,
    content_key,
    weak_source,
)
from scaler_client.payloads import pickles
from scaler_protocol.buffers import BufferedPickle, Payload
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.objects import SHARED_BYTES

if TYPE_CHECKING:
    from scaler_client.objects.store import ClientStorage


Carries = Callable[[int], bool]
"""Whether an argument of so many bytes may go with its call."""


class CarriesAfter(Protocol):
    """Whether an argument of so many bytes may go with its call, if that comes after so many others."""

    def __call__(self, size: int, before: int = 0) -> bool: ...


_CARRIED_KEPT: Final = 256
"""Arguments that have gone with their calls, and are put if they come again."""


def never(size: int, before: int = 0) -> bool:
    """No argument goes with its call."""
    return False


class _MutableEntry(NamedTuple):
    """A mutable argument that was put."""

    value: weakref.ref[Any]
    checksum: bytes
    handle: StoredPayload


class ArgumentCache:
    """The arguments of one client that are objects. Thread-safe; two threads that race may both put an argument."""

    def __init__(self, owner: FutureOwner, storage: ClientStorage) -> None:
        self._owner, self._storage = owner, storage
        self._carried: dict[bytes, None] = {}
        """Checksums of arguments that have gone with their calls, the latest ones."""
        self._losses = storage.losses
        self._mutable: dict[int, _MutableEntry] = {}
        self._kept = KeptValues()
        self._by_content: weakref.WeakValueDictionary[bytes, StoredObject] = weakref.WeakValueDictionary()

    def knows(self, value: Any) -> bool:
        """Whether an argument was put before, or is certainly large enough to be put."""
        return pickles.is_long(value) or self._find_mutable(value) is not None

    def store_argument(
        self, value: Any, reserialized: set[int] | None = None, carries: Carries = never
    ) -> StoredPayload | Payload | None:
        """The handle of an argument, or its pickle, to be carried; None if it is written into its call as it is.

        With `reserialized`, the ids of arguments that were put again already, any other argument is put again. Raises
        ScalerError.
        """
        if type(value) in pickles.SCALARS or (type(value) in pickles.TEXTS and not pickles.is_long(value)):
            return None
        self._drop_after_loss()
        renew = reserialized is not None and id(value) not in reserialized
        found = None if renew else self._find_immutable(value)
        if found is not None:
            return found
        with Collector(self._owner) as collector:
            payload = pickles.dump(value)
        if len(payload) <= INLINE_LIMIT or collector.found or collector.failed is not None:
            return None
        if reserialized is not None:
            reserialized.add(id(value))
        elif self._find_mutable(value) is None and self._is_carried(payload, carries):
            return payload
        return self._store(value, payload, renew=renew)

    def _is_carried(self, payload: Payload, carries: Carries) -> bool:
        """Whether an argument goes with its call: it may now, and has not done so before."""
        if not carries(len(payload)):
            return False
        found = checksum(payload)
        if found in self._carried:
            return False
        if len(self._carried) >= _CARRIED_KEPT:
            self._carried.pop(next(iter(self._carried), b""), None)
        self._carried[found] = None
        return True

    def _store(self, value: Any, payload: Payload, *, renew: bool) -> StoredPayload | None:
        """The handle of the argument with this pickle, which is put if it is new; None without object storage."""
        entry = None if renew else self._find_mutable(value)
        if entry is not None and entry.handle.object.error is None and entry.checksum == checksum(payload):
            return entry.handle
        handle, found = self._put(payload, renew=renew, soon=True)
        if type(handle) is not StoredPayload:
            return None
        self._remember(value, found, handle)
        return handle

    def _put(self, payload: Payload, *, renew: bool, soon: bool) -> tuple[bytes, bytes]:
        """The handle of a payload, or its bytes, and the checksum of the bytes that were stored."""
        if len(payload) < SHARED_BYTES:  # it may be put without waiting, from a copy
            payload = bytes(payload)
        key = content_key(payload)
        found = key[:CHECKSUM_BYTES]
        known = None if renew else self._by_content.get(key)
        if known is not None and known.error is None:
            return StoredPayload.of(known), found
        handle, stored_checksum = _stored(self._storage, payload, lambda: found, soon=soon)
        if type(handle) is StoredPayload and stored_checksum == found:
            self._by_content[key] = handle.object
        return handle, stored_checksum

    def clear(self) -> None:
        """Forget all arguments."""
        self._mutable.clear()
        self._by_content.clear()
        self._kept.forget_objects()

    def _drop_after_loss(self) -> None:
        if self._losses != self._storage.losses:
            self._losses = self._storage.losses
            self.clear()

    def _find_mutable(self, value: Any) -> _MutableEntry | None:
        entry = self._mutable.get(id(value))
        return entry if entry is not None and entry.value() is value else None

    def _find_immutable(self, value: Any) -> StoredPayload | None:
        stored = self._kept.find(value)
        return StoredPayload.of(stored) if stored is not None and stored.error is None else None

    def _remember(self, value: Any, found: bytes, handle: StoredPayload) -> None:
        if type(value) in (bytes, str):
            self._kept.keep(value, handle.object, pickles.dump, found)
            return
        handle.object.set_source(weak_source(value, pickles.dump, found))
        key = id(value)
        with contextlib.suppress(TypeError):  # without a weak reference its id may be reused unnoticed
            self._mutable[key] = _MutableEntry(weakref.ref(value, _forgetter(self._mutable, key)), found, handle)


def store(storage: ClientStorage, payload: Payload, find_source: Callable[[bytes], RebuildSource | None]) -> bytes:
    """The handle of a payload, which is put whatever else is known, or its bytes. Raises ScalerError.

    `find_source` makes the source for rebuilding from the checksum of the payload.
    """
    if len(payload) <= INLINE_LIMIT:
        return bytes(payload)
    handle, found = _stored(storage, payload, lambda: checksum(payload), soon=False)
    if type(handle) is StoredPayload:
        handle.object.set_source(find_source(found))
    return handle


def _stored(storage: ClientStorage, payload: Payload, find: Callable[[], bytes], *, soon: bool) -> tuple[bytes, bytes]:
    """The handle of a payload that is put now, or its bytes, and its checksum; `find` gives that of bytes."""
    copying = CheckedCopy() if isinstance(payload, BufferedPickle) else None
    handle = storage.store(payload, soon=soon, copying=copying)
    return handle, find() if copying is None else copying.checksum


def _forgetter(entries: dict[int, Any], key: int) -> Callable[[Any], None]:
    """A weakref callback that removes the entry of a collected object."""

    def forget(reference: Any) -> None:
        entry = entries.get(key)
        if entry is not None and any(part is reference for part in entry):
            del entries[key]

    return forget
