"""Payloads in object storage: what stands for them in this process. Pure, no IO.

Theory. An object lives as long as anything here refers to it. Everything that does holds a StoredPayload (or the
StoredObject itself): a call until its outcome is in, a future until somebody has loaded its result, the calls that take
that result until theirs are in, `send_object` until it is cleared. All StoredPayloads of one object share one
StoredObject, and with that the object is deleted. What nobody takes up (the outcome of a cancelled call) is
deleted at once in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.objects import Reference


class ObjectHome(Protocol):
    """Where objects are."""

    def fetch(self, reference: bytes) -> Buffer:
        """The bytes of an object; raises ScalerError."""

    def free(self, reference: bytes) -> None:
        """Nobody needs the object any more. Never blocks."""


Place = Callable[[Payload], bytes]
"""What stands for a payload: its bytes, or where it is too big to travel a StoredPayload; raises ScalerError."""


class StoredObject:
    """One object that is ours; it is deleted with this. Among the needs of a call it is only kept, not waited for."""

    __slots__ = ("__weakref__", "_home", "reference")

    task_id = 0

    def __init__(self, home: ObjectHome, reference: bytes) -> None:
        self._home, self.reference = home, reference

    def outcome(self) -> tuple[int, bytes] | None:
        """Nobody asks: it is no task."""
        return None

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return Reference.unpack(self.reference).size

    def fetch(self) -> Buffer:
        """The bytes; raises ScalerError."""
        return self._home.fetch(self.reference)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the connection may be gone, or the interpreter
            self._home.free(self.reference)


class StoredPayload(bytes):
    """A packed reference where a payload is expected: what travels, and what keeps the object."""

    kept: StoredObject

    @classmethod
    def of(cls, kept: StoredObject) -> StoredPayload:
        """What stands for an object."""
        payload = cls(kept.reference)
        payload.kept = kept
        return payload

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return self.kept.size


def stored_positions(payloads: Sequence[bytes]) -> Sequence[int]:
    """Which of these stand for objects."""
    if StoredPayload not in set(map(type, payloads)):
        return ()
    return [position for position, payload in enumerate(payloads) if type(payload) is StoredPayload]


def fetched(payload: bytes) -> Buffer:
    """The payload proper; raises ScalerError where it is in object storage and can not be had."""
    return payload.kept.fetch() if type(payload) is StoredPayload else payload


def kept_bytes(needs: Iterable[Sequence[object]]) -> int:
    """Bytes of the objects among what calls need, each counted once."""
    return sum(kept.size for kept in {need for found in needs for need in found if isinstance(need, StoredObject)})


def true_size(payload: bytes) -> int:
    """Bytes of the payload proper."""
    return payload.size if type(payload) is StoredPayload else len(payload)
