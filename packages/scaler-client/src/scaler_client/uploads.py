"""Big arguments as objects of their own: the same one is written and put once. Pure, but for where objects are put.

Theory. An argument that no message takes is named by the calls it is given to. It is known again

- by identity, as long as it lives, where a weak reference tells when that ends: whoever changes it in place and gives
  it once more says so, and it is *renewed*;
- by identity, too, where it can not change (bytes, text), though nothing tells when it ends: it is kept here as long as
  a call needs its object;
- by its content otherwise, as long as anything keeps the object of an equal one.

What depends on other tasks or names other objects is no object of its own: it belongs to its call. Once objects were
lost nothing is known any more.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Protocol

from scaler_client import pickles
from scaler_client.dependencies import Collector
from scaler_client.stored import StoredObject, StoredPayload
from scaler_client.waiters import FutureOwner
from scaler_protocol.buffers import BufferedPickle, Payload
from scaler_protocol.handshake import INLINE_LIMIT

_DIGEST_BYTES: Final = 32


class UploadPlace(Protocol):
    """Where objects are put."""

    losses: int
    """How often objects were found to be lost."""

    def place(self, payload: Payload) -> bytes:
        """What stands for a payload that is too big to travel, or its bytes; raises ScalerError."""


class Uploads:
    """The arguments of one client that are objects. For any thread: of two that come at once each may put its own."""

    def __init__(self, owner: FutureOwner, storage: UploadPlace) -> None:
        self._owner, self._storage = owner, storage
        self._losses = storage.losses
        self._living: dict[int, tuple[weakref.ref[Any], StoredPayload]] = {}
        self._texts: dict[int, tuple[Any, weakref.ref[StoredObject]]] = {}
        self._by_content: weakref.WeakValueDictionary[bytes, StoredObject] = weakref.WeakValueDictionary()

    def place(self, payload: Payload, *, renew: bool = False) -> bytes:
        """What stands for a payload, or the payload; equal ones are put once, or once more. Raises ScalerError."""
        if len(payload) <= INLINE_LIMIT:
            return bytes(payload)
        self._look_for_losses()
        digest = _digest(payload)
        known = None if renew else self._by_content.get(digest)
        if known is not None:
            return StoredPayload.of(known)
        placed = self._storage.place(payload)
        if type(placed) is StoredPayload:
            self._by_content[digest] = placed.kept
        return placed

    def knows(self, value: Any) -> bool:
        """Whether an argument is an object already, or is sure to be one."""
        return self._find(value) is not None or pickles.is_long(value)

    def place_argument(self, value: Any, renewed: set[int] | None = None) -> StoredPayload | None:
        """The object of an argument; None for what is small, or part of its call. Raises ScalerError.

        Where there is a set of the ids of those that were renewed all others are, too.
        """
        if type(value) in pickles.SCALARS or (type(value) in pickles.TEXTS and not pickles.is_long(value)):
            return None
        renew = renewed is not None and id(value) not in renewed
        found = None if renew else self._find(value)
        if found is not None:
            return found
        with Collector(self._owner) as collector:
            payload = pickles.dump(value)
        if len(payload) <= INLINE_LIMIT or collector.found or collector.failed is not None:
            return None
        placed = self.place(payload, renew=renew)
        if type(placed) is not StoredPayload:
            return None
        if renewed is not None:
            renewed.add(id(value))
        self._remember(value, placed)
        return placed

    def clear(self) -> None:
        """Forget all."""
        for known in (self._living, self._texts, self._by_content):
            known.clear()

    def _look_for_losses(self) -> None:
        if self._losses != self._storage.losses:
            self._losses = self._storage.losses
            self.clear()

    def _find(self, value: Any) -> StoredPayload | None:
        self._look_for_losses()
        if (living := self._living.get(id(value))) is not None:
            return living[1] if living[0]() is value else None
        if (text := self._texts.get(id(value))) is None or text[0] is not value:
            return None
        kept = text[1]()
        return StoredPayload.of(kept) if kept is not None else None

    def _remember(self, value: Any, placed: StoredPayload) -> None:
        key = id(value)
        if type(value) in (bytes, str):
            self._texts[key] = value, weakref.ref(placed.kept, _forgetter(self._texts, key))
            return
        with contextlib.suppress(TypeError):  # nobody would say when its id is free again
            self._living[key] = weakref.ref(value, _forgetter(self._living, key)), placed


def _forgetter(entries: dict[int, Any], key: int) -> Callable[[Any], None]:
    """Takes the entry out when what its reference refers to is gone."""

    def forget(reference: Any) -> None:
        entry = entries.get(key)
        if entry is not None and any(part is reference for part in entry):
            del entries[key]

    return forget


def _digest(payload: Payload) -> bytes:
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for piece in payload.pieces if isinstance(payload, BufferedPickle) else (payload,):
        digest.update(piece)
    return digest.digest()
