"""Objects that are sent once and referred to by many calls."""

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
    """One sent object, shared by all copies of its reference; it is deleted with the last one and the last call."""

    __slots__ = ("__weakref__", "object_id", "payload")

    def __init__(self, payload: bytes) -> None:
        self.object_id = new_identity()
        self.payload: bytes | None = payload
        """Its handle, or the bytes of a small object, which travel with every call; None once it is released."""


class SentObjects:
    """The sent objects of a client that are still referred to."""

    def __init__(self) -> None:
        self._sent: WeakSet[SentObject] = WeakSet()

    def add(self, payload: bytes) -> SentObject:
        """A new object, by its handle or its bytes."""
        sent = SentObject(payload)
        self._sent.add(sent)
        return sent

    def clear(self) -> None:
        """Release all objects."""
        for sent in list(self._sent):
            sent.payload = None


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
        """The identity of the object, 16 bytes."""
        return self.sent.object_id

    def value(self) -> T:
        """The object; raises ObjectNotFoundError where it was released or cleared, or other ScalerErrors."""
        value: T = load_with(self.load, fetched(self.payload()))
        return value

    def release(self) -> None:
        """Free the object: this reference, and every copy of it, is void from now on. Calls that have it keep it."""
        self.sent.payload = None

    def payload(self) -> bytes:
        """The handle of the object, or its bytes if it is small; raises ObjectNotFoundError if it was released."""
        payload = self.sent.payload
        if payload is None:
            raise ObjectNotFoundError(f"object {self.object_id.hex()} was released or cleared")
        return payload

    def __reduce__(self) -> tuple[Any, ...]:
        found, payload = (
            collector("an ObjectReference"),
            self.payload(),
        )  # raises outside of a call, where nothing resolves it
        if type(payload) is StoredPayload:
            return load_object, (found.keep(payload), self.load)
        return self.load, (payload,)
