"""KeptValues: immutable arguments (bytes, str), which have no weak references, while calls refer to their objects.

An argument is kept to recognize it when it is given again, and to put it again if object storage is lost. Nothing is
lost by the former if nobody else has the value; so of those only the latest KEPT_BYTES are kept, for the latter: queued
arguments are in object storage, and need not be here as well.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from scaler_client.objects.rebuild import RebuildSource
from scaler_protocol.buffers import Payload

KEPT_BYTES: Final = 16 * 1024 * 1024
_LOOKS: Final = 2
"""How many values are looked at for each new one."""


class KeptValue:
    """A value, or None once it is not kept any more."""

    __slots__ = ("__weakref__", "_among", "size", "value")

    def __init__(self, value: bytes | str, size: int, among: KeptValues) -> None:
        self.value: bytes | str | None = value
        self.size, self._among = size, among

    def source(self, dump: Callable[[Any], Payload], checksum: bytes) -> RebuildSource:
        """How to put its object again while it is kept."""
        return RebuildSource(lambda: self.value, dump, checksum)

    def __del__(self) -> None:
        self._among.forget(id(self), self.size)


class KeptValues:
    """The values of one client. Thread-safe."""

    def __init__(self) -> None:
        self._values: OrderedDict[int, weakref.ref[KeptValue]] = OrderedDict()
        self._ended: deque[int] = deque()
        """Sizes of those that have ended, in any thread, between any two instructions."""
        self._lock = threading.Lock()
        self.size = 0
        """Bytes of all of them, or more."""

    def keep(self, value: bytes | str, size: int) -> KeptValue:
        """Keep a value, whose object has `size` bytes, as long as the result is referred to, or less."""
        kept = KeptValue(value, size, self)
        with self._lock:
            while self._ended:
                self.size -= self._ended.popleft()
            self.size += size
            self._values[id(kept)] = weakref.ref(kept)
            for _ in range(_LOOKS):
                if self.size > KEPT_BYTES:
                    self._look_at_oldest()
        return kept

    def _look_at_oldest(self) -> None:
        """Drop the value that was looked at least lately, if nobody else has it."""
        key = next(iter(self._values))
        oldest = self._values[key]()
        if oldest is None or _references(oldest) > _ALONE:
            self._values.move_to_end(key)
            return
        oldest.value = None
        self.size -= oldest.size
        oldest.size = 0
        del self._values[key]

    def forget(self, key: int, size: int) -> None:
        """A kept value has ended."""
        self._values.pop(key, None)
        self._ended.append(size)


def _references(kept: KeptValue) -> int:
    return sys.getrefcount(kept.value)


_ALONE: Final = _references(KeptValue(bytes(1000), 0, KeptValues()))
