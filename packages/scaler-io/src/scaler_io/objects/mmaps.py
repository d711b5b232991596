"""Mappings: the stored objects that this process has mapped, each of them once, until their bytes are not used."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_io import descriptors
from scaler_io.finalizers import when_collected
from scaler_protocol.messages import MESSAGE_IDS
from scaler_protocol.storage import UnpinObjects


class Mappings:
    """The mappings of one connection. A pin is released when nothing that was made from its mapping is left.

    Any thread may call it, finalizers included; `wake` is called when there is a pin to release.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pid = os.getpid()
        self._known: weakref.WeakValueDictionary[bytes, mmap.mmap] = weakref.WeakValueDictionary()
        self._all: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._held: set[int] = set()
        self._inherited: set[int] = set()
        self._returned: deque[int] = deque()

    @property
    def may_grow(self) -> bool:
        """Whether another mapping is allowed: this class uses at most half of a process's descriptors and mappings."""
        return len(self._all) < min(descriptors.limit(), _MAP_COUNT) // 2

    def find(self, name: bytes, size: int) -> mmap.mmap | None:
        """The mapping of an object; None if it is not mapped."""
        mapping = self._known.get(name)
        return mapping if mapping is not None and len(mapping) == size else None

    def keep(self, name: bytes, mapping: mmap.mmap, pin: int) -> mmap.mmap:
        """Keep the pin of a new mapping; returns the mapping to use."""
        self._held.add(pin)
        when_collected(mapping, self.give_back, pin)
        return self.share(name, mapping)

    def share(self, name: bytes, mapping: mmap.mmap) -> mmap.mmap:
        """Add a mapping to those that `find` returns; returns the one to use, which may be an older one."""
        known = self.find(name, len(mapping))
        self._all.add(mapping)
        if known is None:
            self._known[name] = mapping
        return known or mapping

    def forget(self, names: list[bytes]) -> None:
        """Remove deleted objects from those that `find` returns; all if `names` is empty."""
        for name in names or list(self._known):
            self._known.pop(name, None)

    def give_back(self, pin: int) -> None:
        """Release a pin: nothing uses its mapping any more."""
        if os.getpid() != self._pid:
            return  # the pin belongs to the parent of this fork
        self._held.discard(pin)
        self._returned.append(pin)
        self._wake()

    def mark_inherited(self) -> None:
        """Record a fork: the child keeps all mappings for an unknown time."""
        self._inherited |= self._held

    def returned(self) -> UnpinObjects | None:
        """A message with released pins for the server, as many as it can name; None if there are none."""
        if not self._returned:
            return None
        pins = [self._returned.popleft() for _ in range(min(len(self._returned), MESSAGE_IDS))]
        inherited = self._inherited.intersection(pins)
        self._inherited -= inherited
        return UnpinObjects([pin for pin in pins if pin not in inherited], sorted(inherited))


def _map_count() -> int:
    """The number of mappings that a process may have."""
    try:
        with open("/proc/sys/vm/max_map_count", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return sys.maxsize


_MAP_COUNT: Final = _map_count()
