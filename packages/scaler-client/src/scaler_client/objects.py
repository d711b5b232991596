"""Objects sent once and named in many calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from scaler_client.dependencies import collector
from scaler_protocol.errors import ObjectNotFoundError
from scaler_protocol.ids import new_identity

T = TypeVar("T")


class PayloadStore(Protocol):
    """Where the bytes of sent objects are kept."""

    def put(self, payload: bytes) -> bytes:
        """Keep them; returns the object's id."""

    def get(self, object_id: bytes) -> bytes:
        """The bytes; raises ObjectNotFoundError."""

    def delete(self, object_ids: Iterable[bytes]) -> None:
        """Forget them; unknown ones are no error."""

    def clear(self) -> None:
        """Forget all."""


class KeptObjects:
    """A PayloadStore in the client's own memory: the bytes travel with every call that names them."""

    def __init__(self) -> None:
        self._objects: dict[bytes, bytes] = {}

    def put(self, payload: bytes) -> bytes:
        """Keep them; returns the object's id."""
        object_id = new_identity()
        self._objects[object_id] = payload
        return object_id

    def get(self, object_id: bytes) -> bytes:
        """The bytes; raises ObjectNotFoundError."""
        try:
            return self._objects[object_id]
        except KeyError:
            raise ObjectNotFoundError(f"object {object_id.hex()} was cleared, or is not this client's") from None

    def delete(self, object_ids: Iterable[bytes]) -> None:
        """Forget them; unknown ones are no error."""
        for object_id in object_ids:
            self._objects.pop(object_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._objects.clear()


@dataclass(frozen=True, slots=True)
class ObjectReference(Generic[T]):
    """Stands for an object as an argument of calls, at any depth; the function gets the object itself."""

    name: bytes = field(compare=False)
    size: int = field(compare=False)
    object_id: bytes
    store: PayloadStore = field(compare=False, repr=False)
    load: Callable[[bytes], T] = field(compare=False, repr=False)

    def payload(self) -> bytes:
        """The bytes of the object; raises ObjectNotFoundError where its client was cleared."""
        return self.store.get(self.object_id)

    def __reduce__(self) -> tuple[Any, ...]:
        collector()  # only calls resolve it
        return self.load, (self.payload(),)
