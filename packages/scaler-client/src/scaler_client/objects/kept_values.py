"""KeptValues: immutable arguments (bytes, str), which have no weak references, while calls refer to their objects.

An argument is kept to recognize it when it is given again, and to put it again if object storage is lost. Nothing is
lost by the former if nobody else has the value; so of those only the latest KEPT_BYTES are kept, for the latter: queued
arguments are in object storage, and need not be here as well.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from scaler_client.objects.handles import StoredObject
from scaler_client.objects.rebuild import RebuildSource
from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.buffers import Payload

KEPT_BYTES: Final = 8 * 1024 * 1024
_LOOKS: Final = 2
"""How many values are looked at for each new one."""


class _KeptValue:
    __slots__ = ("generation", "size", "stored", "value")

    def __init__(self, value: bytes | str, size: int, generation: int) -> None:
        self.value: bytes | str | None = value
        """None once it is not kept any more."""
        self.size, self.generation = size, generation
        self.stored: weakref.ref[StoredObject] | None = None


class KeptValues:
    """The values of one client. Thread-safe."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, _KeptValue] = OrderedDict()
        """By the identities of the values."""
        self._generation = 0
        self._ended: deque[int] = deque()
        """Sizes of those whose objects have ended, in any thread, between any two instructions."""
        self._lock = ReentrantLock()  # reentrant: a finalizer may submit calls at any point
        self.size = 0
        """Bytes of all of them, or more."""

    def find(self, value: bytes | str) -> StoredObject | None:
        """The object of a value; None if it is not known any more."""
        kept = self._values.get(id(value))
        if kept is None or kept.value is not value or kept.generation != self._generation or kept.stored is None:
            return None
        return kept.stored()

    def keep(self, value: bytes | str, stored: StoredObject, dump: Callable[[Any], Payload], checksum: bytes) -> None:
        """Keep a value as long as its object is referred to, or less, as the object's source.

        `checksum` is that of what `dump` makes of it.
        """
        kept, key = _KeptValue(value, stored.size, self._generation), id(value)

        def forget(reference: weakref.ref[StoredObject]) -> None:
            entry = self._values.get(key)
            if entry is not None and entry.stored is reference and self._values.pop(key, None) is entry:
                self._ended.append(entry.size)

        kept.stored = weakref.ref(stored, forget)
        stored.set_source(RebuildSource(lambda: kept.value, dump, checksum))
        with self._lock:
            while self._ended:
                self.size -= self._ended.popleft()
            if (before := self._values.pop(key, None)) is not None:
                self.size -= before.size
            self.size += kept.size
            self._values[key] = kept
            for _ in range(_LOOKS):
                if self.size > KEPT_BYTES:
                    self._look_at_oldest()

    def _look_at_oldest(self) -> None:
        """Drop the value that was looked at least lately, if nobody else has it."""
        try:
            key, oldest = self._values.popitem(last=False)
        except KeyError:  # the objects of all have just ended
            return
        stored = oldest.stored() if oldest.stored is not None else None
        if stored is not None and _references(oldest) > _ALONE:
            self._values[key] = oldest
            return
        self.size -= oldest.size
        oldest.value = None
        if stored is not None and stored.source is not None and not stored.source.alive:
            stored.source = None

    def forget_objects(self) -> None:
        """Find none of the values any more: their objects may be lost. They are kept to put these again."""
        self._generation += 1


def _references(kept: _KeptValue) -> int:
    return sys.getrefcount(kept.value)


_ALONE: Final = _references(_KeptValue(bytes(1000), 0, 0))
