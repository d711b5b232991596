"""Big arguments as objects of their own: the same one is written and put once. Pure, but for where objects are put.

Theory. An argument that no message takes is named by the calls it is given to. It is looked at whenever it is given, as
it may have been changed in place, and known again

- by identity and a checksum of its pickle, which is nearly three times faster than a hash that nobody can forge, as
  long as it lives and a weak reference tells when that ends;
- by identity alone where it can not change (bytes, text), though nothing tells when it ends: it is kept here as long as
  a call needs its object;
- by its content otherwise, as long as anything keeps the object of an equal one.

While an object is put other threads may change its buffers. It is known by what was stored: the checksum of the copies
that were written, and by its content only where that checksum is the one of the bytes that were hashed.

What depends on other tasks or names other objects is no object of its own: it belongs to its call. Once objects were
lost nothing is known any more.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scaler_client.futures.argument_refs import Collector
from scaler_client.futures.waiters import FutureOwner
from scaler_client.objects.handles import ASYNC_PUT_BYTES, StoredObject, StoredPayload
from scaler_client.objects.rebuild import (
    CHECKSUM_BYTES,
    CheckedCopy,
    RebuildSource,
    checksum,
    content_key,
    strong_source,
    weak_source,
)
from scaler_client.payloads import pickles
from scaler_protocol.buffers import BufferedPickle, Payload
from scaler_protocol.handshake import INLINE_LIMIT

if TYPE_CHECKING:
    from scaler_io.objects.segments import Copying


class _Living(NamedTuple):
    """An argument that can be changed."""

    value: weakref.ref[Any]
    checksum: bytes
    placed: StoredPayload


class ArgumentStorage(Protocol):
    """Where objects are put."""

    losses: int
    """How often objects were found to be lost."""

    def place(self, payload: Payload, *, soon: bool = False, copying: Copying | None = None) -> bytes:
        """What stands for a payload that is too big to travel, or its bytes; raises ScalerError.

        With `copying`, what it copies is stored.
        """


class ArgumentCache:
    """The arguments of one client that are objects. For any thread: of two that come at once each may put its own."""

    def __init__(self, owner: FutureOwner, storage: ArgumentStorage) -> None:
        self._owner, self._storage = owner, storage
        self._losses = storage.losses
        self._living: dict[int, _Living] = {}
        self._texts: dict[int, tuple[Any, weakref.ref[StoredObject]]] = {}
        self._by_content: weakref.WeakValueDictionary[bytes, StoredObject] = weakref.WeakValueDictionary()

    def knows(self, value: Any) -> bool:
        """Whether an argument is, or was, an object already, or is sure to be one."""
        return pickles.is_long(value) or self._find_living(value) is not None

    def store_argument(self, value: Any, reserialized: set[int] | None = None) -> StoredPayload | None:
        """The object of an argument; None for what is small, or part of its call. Raises ScalerError.

        Where there is a set of the ids of those that were reserialized all others are, too.
        """
        if type(value) in pickles.SCALARS or (type(value) in pickles.TEXTS and not pickles.is_long(value)):
            return None
        self._look_for_losses()
        renew = reserialized is not None and id(value) not in reserialized
        found = None if renew else self._find_text(value)
        if found is not None:
            return found
        with Collector(self._owner) as collector:
            payload = pickles.dump(value)
        if len(payload) <= INLINE_LIMIT or collector.found or collector.failed is not None:
            return None
        if reserialized is not None:
            reserialized.add(id(value))
        return self._place(value, payload, renew=renew)

    def _place(self, value: Any, payload: Payload, *, renew: bool) -> StoredPayload | None:
        """The object that the argument with this pickle is, or becomes; None where there is no storage."""
        living = None if renew else self._find_living(value)
        if living is not None and living.placed.kept.error is None and living.checksum == checksum(payload):
            return living.placed
        placed, found = self._put(payload, renew=renew, soon=True)
        if type(placed) is not StoredPayload:
            return None
        self._remember(value, found, placed)
        return placed

    def place(self, payload: Payload, find_source: Callable[[bytes], RebuildSource | None]) -> bytes:
        """What stands for a payload, or the payload; one that equals another's is not put again. Raises ScalerError.

        `find_source` is told its checksum.
        """
        if len(payload) <= INLINE_LIMIT:
            return bytes(payload)
        self._look_for_losses()
        placed, found = self._put(payload, renew=False, soon=False)
        if type(placed) is StoredPayload:
            placed.kept.set_source(find_source(found))
        return placed

    def _put(self, payload: Payload, *, renew: bool, soon: bool) -> tuple[bytes, bytes]:
        """What stands for a payload, and the checksum of what is stored: others may change its buffers meanwhile."""
        if len(payload) <= ASYNC_PUT_BYTES:
            payload = bytes(payload)
        key = content_key(payload)
        found = key[:CHECKSUM_BYTES]
        known = None if renew else self._by_content.get(key)
        if known is not None and known.error is None:
            return StoredPayload.of(known), found
        copying = CheckedCopy() if isinstance(payload, BufferedPickle) else None
        placed = self._storage.place(payload, soon=soon, copying=copying)
        stored = found if copying is None else copying.checksum
        if type(placed) is StoredPayload and stored == found:
            self._by_content[key] = placed.kept
        return placed, stored

    def clear(self) -> None:
        """Forget all."""
        for known in (self._living, self._texts, self._by_content):
            known.clear()

    def _look_for_losses(self) -> None:
        if self._losses != self._storage.losses:
            self._losses = self._storage.losses
            self.clear()

    def _find_living(self, value: Any) -> _Living | None:
        living = self._living.get(id(value))
        return living if living is not None and living.value() is value else None

    def _find_text(self, value: Any) -> StoredPayload | None:
        if (text := self._texts.get(id(value))) is None or text[0] is not value:
            return None
        kept = text[1]()
        return StoredPayload.of(kept) if kept is not None and kept.error is None else None

    def _remember(self, value: Any, found: bytes, placed: StoredPayload) -> None:
        key, kept = id(value), placed.kept
        if type(value) in (bytes, str):
            self._texts[key] = value, weakref.ref(kept, _forgetter(self._texts, key))
            kept.set_source(strong_source(value, pickles.dump, found))
            return
        kept.set_source(weak_source(value, pickles.dump, found))
        with contextlib.suppress(TypeError):  # nobody would say when its id is free again
            self._living[key] = _Living(weakref.ref(value, _forgetter(self._living, key)), found, placed)


def _forgetter(entries: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Takes the entry out when what its reference refers to is gone."""

    def forget(reference: Any) -> None:
        entry = entries.get(key)
        if entry is not None and any(part is reference for part in entry):
            del entries[key]

    return forget
