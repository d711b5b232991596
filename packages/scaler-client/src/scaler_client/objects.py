"""Objects sent once and named in many calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from scaler_client.dependencies import collector
from scaler_client.pickles import load_with
from scaler_client.stored import StoredPayload, fetched
from scaler_client.task_context import load_object
from scaler_protocol.errors import ObjectNotFoundError
from scaler_protocol.ids import new_identity

T = TypeVar("T")


class PayloadStore(Protocol):
    """Where the bytes of sent objects are kept."""

    def put(self, placed: bytes) -> bytes:
        """Keep them, or what stands for them; returns the object's id."""

    def get(self, object_id: bytes) -> bytes:
        """The bytes, or what stands for them; raises ObjectNotFoundError."""

    def clear(self) -> None:
        """Forget all."""


class KeptObjects:
    """A PayloadStore: small objects travel with every call that names them, others are named by them."""

    def __init__(self) -> None:
        self._objects: dict[bytes, bytes] = {}

    def put(self, placed: bytes) -> bytes:
        """Keep them; returns the object's id."""
        object_id = new_identity()
        self._objects[object_id] = placed
        return object_id

    def get(self, object_id: bytes) -> bytes:
        """The bytes, or what stands for them; raises ObjectNotFoundError."""
        try:
            return self._objects[object_id]
        except KeyError:
            raise ObjectNotFoundError(f"object {object_id.hex()} was cleared, or is not this client's") from None

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
    load: Callable[[Any], T] = field(compare=False, repr=False)

    def value(self) -> T:
        """The object; raises ObjectNotFoundError where its client was cleared, or other ScalerErrors."""
        value: T = load_with(self.load, fetched(self.placed()))
        return value

    def placed(self) -> bytes:
        """The bytes of the object, or what stands for them; raises ObjectNotFoundError."""
        return self.store.get(self.object_id)

    def __reduce__(self) -> tuple[Any, ...]:
        found, placed = collector(), self.placed()  # only calls resolve it
        if type(placed) is StoredPayload:
            return load_object, (found.keep(placed), self.load)
        return self.load, (placed,)
