"""Objects that are sent once and referred to by many calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from scaler_client.futures.argument_refs import collector
from scaler_client.objects.handles import StoredPayload, fetched
from scaler_client.payloads.pickles import load_with
from scaler_client.task_context import load_object
from scaler_protocol.errors import ObjectNotFoundError
from scaler_protocol.ids import new_identity
from scaler_protocol.lazy_dataclass import dataclass

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
    """A sent object, as an argument of calls at any depth; the function gets the object itself.

    Made by `Client.send_object`. The object is freed with its last reference, or by `release`, once no call needs it.

    Attributes:
        name: what monitors may call it.
        size: its serialized size in bytes.

    >>> reference = client.send_object([1, 2, 3], name="numbers")
    >>> reference.name, client.submit(sum, reference).result()
    (b'numbers', 6)
    """

    name: bytes = field(compare=False)
    size: int = field(compare=False)
    _sent: SentObject = field(repr=False)
    _load: Callable[[Any], T] = field(compare=False, repr=False)

    @property
    def object_id(self) -> bytes:
        """The identity of the object, 16 bytes.

        >>> len(client.send_object(5).object_id)
        16
        """
        return self._sent.object_id

    def value(self) -> T:
        """Fetch the object.

        Raises:
            ObjectNotFoundError: it was released, cleared or lost.
            StorageLostError: the object storage server is unreachable.

        >>> client.send_object([1, 2]).value()
        [1, 2]
        """
        value: T = load_with(self._load, fetched(payload_of(self)))
        return value

    def release(self) -> None:
        """Free the object: this reference and all its copies become invalid. Calls that were submitted with it keep it.

        >>> reference = client.send_object([1, 2])
        >>> reference.release()
        >>> reference.value()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        scaler_protocol.errors.ObjectNotFoundError: ...
        """
        self._sent.payload = None

    def __reduce__(self) -> tuple[Any, ...]:
        found, payload = (
            collector("an ObjectReference"),
            payload_of(self),
        )  # raises outside of a call, where nothing resolves it
        if type(payload) is StoredPayload:
            return load_object, (found.keep(payload), self._load)
        return self._load, (payload,)


def payload_of(reference: ObjectReference[Any]) -> bytes:
    """The handle of the object, or its bytes if it is small; raises ObjectNotFoundError if it was released."""
    payload = reference._sent.payload
    if payload is None:
        raise ObjectNotFoundError(f"object {reference.object_id.hex()} was released or cleared")
    return payload
