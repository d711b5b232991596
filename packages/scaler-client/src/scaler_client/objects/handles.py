"""Payloads in object storage: what stands for them in this process. Pure, no IO.

Theory. An object lives as long as anything here refers to it. Everything that does holds a StoredPayload (or the
StoredObject itself): a call until its outcome is in, a future until somebody has loaded its result, the calls that take
that result until theirs are in, `send_object` until it is cleared. All StoredPayloads of one object share one
StoredObject, and with that the object is deleted. What nobody takes up (the outcome of a cancelled call) is
deleted at once in the same way.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from scaler_client.objects.rebuild import RebuildSource
from scaler_protocol.buffers import Buffer, Payload
from scaler_protocol.errors import ScalerError
from scaler_protocol.objects import Reference

ASYNC_PUT_BYTES: Final = 256 * 1024
"""Objects up to this are copied when they are put. Bigger ones are waited for: what follows may not be sent before."""


class ObjectBackend(Protocol):
    """Where objects are."""

    def fetch(self, reference: bytes, timeout: float = ...) -> Buffer:
        """The bytes of an object; raises ScalerError, OSError, or TimeoutError after so many seconds."""

    def free(self, reference: bytes) -> None:
        """Nobody needs the object any more. Never blocks."""


Place = Callable[[Payload], bytes]
"""What stands for a payload: its bytes, or where it is too big to travel a StoredPayload; raises ScalerError."""


class StoredObject:
    """One object that is ours; it is deleted with this. Among the needs of a call it is only kept, not waited for."""

    __slots__ = ("__weakref__", "_home", "_tell", "error", "pending", "reference", "source")

    task_id = 0

    def __init__(self, home: ObjectBackend, reference: bytes, *, pending: bool = False) -> None:
        self._home, self.reference = home, reference
        self.pending = pending
        """Whether storage has not said that it has it: no call that names it may be sent before."""
        self.error: ScalerError | None = None
        """Why it was refused."""
        self.source: RebuildSource | None = None
        """What it is made of once more if its server loses it."""
        self._tell: list[Callable[[ScalerError | None], object]] = []
        # Not __del__: while that runs, other threads still get the object from weak references, as in ArgumentCache.
        weakref.finalize(self, _free, home, reference).atexit = False

    def set_source(self, source: RebuildSource | None) -> None:
        """It can be made of this, too."""
        if self.source is None or not self.source.alive:
            self.source = source

    def finish_put(self, error: ScalerError | None) -> None:
        """Storage has it, or has refused it."""
        self.error, self.pending = error, error is not None
        self._tell_all()

    def add_put_callback(self, tell: Callable[[ScalerError | None], object]) -> None:
        """Call this, at once where it is known: it may be called by any thread, and twice."""
        self._tell.append(tell)
        if not self.pending or self.error is not None:
            self._tell_all()

    def _tell_all(self) -> None:
        waiting, self._tell = self._tell, []
        for tell in waiting:
            tell(self.error)

    def outcome(self) -> tuple[int, bytes] | None:
        """Nobody asks: it is no task."""
        return None

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return Reference.unpack(self.reference).size

    def fetch(self, timeout: float = math.inf) -> Buffer:
        """The bytes; raises ScalerError, OSError, or TimeoutError after so many seconds."""
        return self._home.fetch(self.reference, timeout)


def _free(home: ObjectBackend, reference: bytes) -> None:
    with contextlib.suppress(Exception):  # the connection may be gone
        home.free(reference)


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


def pending_puts(needs: Iterable[object], *payloads: bytes) -> list[StoredObject]:
    """What calls name that storage has not said it has."""
    named = [payload.kept for payload in payloads if type(payload) is StoredPayload]
    found = dict.fromkeys([*named, *(need for need in needs if isinstance(need, StoredObject))])
    return [kept for kept in found if kept.pending]


def fetched(payload: bytes, timeout: float = math.inf) -> Buffer:
    """The payload proper. Where it is in object storage: raises what StoredObject.fetch raises."""
    return payload.kept.fetch(timeout) if type(payload) is StoredPayload else payload


def kept_bytes(needs: Iterable[Sequence[object]]) -> int:
    """Bytes of the objects among what calls need, each counted once."""
    return sum(kept.size for kept in {need for found in needs for need in found if isinstance(need, StoredObject)})


def true_size(payload: bytes) -> int:
    """Bytes of the payload proper."""
    return payload.size if type(payload) is StoredPayload else len(payload)
