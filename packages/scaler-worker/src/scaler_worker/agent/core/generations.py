"""Generations: an approximate LRU cache with constant-time operations. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Generations(Generic[K, V]):
    """Keeps at least the `limit` keys that were last put or read, and at most twice as many."""

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value, or None if it was evicted."""
        value = self._young.get(key)
        if value is None and (value := self._old.pop(key, None)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: V) -> None:
        """Store a value, which must not be None."""
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = value
