"""Objects sent once and named in many calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from scaler_client.futures.argument_refs import collector
from scaler_client.objects.handles import StoredPayload, fetched
from scaler_client.payloads.pickles import load_with
from scaler_client.task_context import load_object
from scaler_protocol.errors import ObjectNotFoundError
from scaler_protocol.ids import new_identity

T = TypeVar("T")


class SentObject:
    """What the references of one sent object share: with the last of them it goes, unless calls still need it."""

    __slots__ = ("__weakref__", "object_id", "placed")

    def __init__(self, placed: bytes) -> None:
        self.object_id = new_identity()
        self.placed: bytes | None = placed
        """Its bytes, or what stands for them: small objects travel with every call that names them."""


class SentObjects:
    """The sent objects of a client, as far as anything refers to them."""

    def __init__(self) -> None:
        self._sent: WeakSet[SentObject] = WeakSet()

    def add(self, placed: bytes) -> SentObject:
        """One more, by its bytes or what stands for them."""
        sent = SentObject(placed)
        self._sent.add(sent)
        return sent

    def clear(self) -> None:
        """Let all go."""
        for sent in list(self._sent):
            sent.placed = None


@dataclass(frozen=True, slots=True)
class ObjectReference(Generic[T]):
    """Stands for an object as an argument of calls, at any depth; the function gets the object itself.

    The object is freed with the last reference to it, or by `release`, as soon as no call needs it any more.
    """

    name: bytes = field(compare=False)
    size: int = field(compare=False)
    sent: SentObject = field(repr=False)
    load: Callable[[Any], T] = field(compare=False, repr=False)

    @property
    def object_id(self) -> bytes:
        """What tells it from all others."""
        return self.sent.object_id

    def value(self) -> T:
        """The object; raises ObjectNotFoundError where it was released or cleared, or other ScalerErrors."""
        value: T = load_with(self.load, fetched(self.placed()))
        return value

    def release(self) -> None:
        """Free the object: this reference, and every copy of it, is void from now on. Calls that have it keep it."""
        self.sent.placed = None

    def placed(self) -> bytes:
        """The bytes of the object, or what stands for them; raises ObjectNotFoundError."""
        placed = self.sent.placed
        if placed is None:
            raise ObjectNotFoundError(f"object {self.object_id.hex()} was released or cleared")
        return placed

    def __reduce__(self) -> tuple[Any, ...]:
        found, placed = collector("an ObjectReference"), self.placed()  # only calls resolve it
        if type(placed) is StoredPayload:
            return load_object, (found.keep(placed), self.load)
        return self.load, (placed,)
