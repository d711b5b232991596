"""Values as pickles with out-of-band buffers: big buffers are not copied when they are written.

A value with buffers (NumPy arrays, Arrow tables, …) is loaded as a read-only view of the payload. Bytes and text are
copied out of it once, when they are loaded. Buffers that fit into a message stay in the pickle, so that a payload in a
message is always a plain pickle. Small arrays are read-only, too, so that code that works with small ones works with
big ones.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scaler_protocol.buffers import Buffer, BufferedPickle, Payload, split
from scaler_protocol.handshake import INLINE_LIMIT

if TYPE_CHECKING:
    from scaler_client.payloads.classes import Pickler

PROTOCOL: Final = 5
File = TypeVar("File", bound=BytesIO)
SCALARS: Final = frozenset({int, float, bool, type(None)})
TEXTS: Final = frozenset({bytes, str, bytearray})
COPIED_BYTES: Final = 1024 * 1024
"""Values of type bytes of at least this size are copied by `parallel_copy` when they are loaded."""
_UNCHANGING: Final = SCALARS | {bytes, str, complex}
_SMALL_TUPLE: Final = 16
_FIRST_BYTE: Final = 0x80


class _Apart:
    """Pickles bytes or text as an out-of-band buffer."""

    __slots__ = ("_make",)

    def __init__(self, value: bytes | str | bytearray) -> None:
        self._make: tuple[Any, ...]
        if isinstance(value, str):
            self._make = str, (pickle.PickleBuffer(value.encode("utf-8", "surrogatepass")), "utf-8", "surrogatepass")
        elif isinstance(value, bytes) and len(value) >= COPIED_BYTES:
            from scaler_client.payloads.parallel_copy import copied

            self._make = copied, (pickle.PickleBuffer(value),)
        else:
            self._make = type(value), (pickle.PickleBuffer(value),)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._make


def is_unchanging(value: Any) -> bool:
    """Whether it is immutable, so that several tasks may share it."""
    kind = type(value)
    return kind in _UNCHANGING or (kind in (tuple, frozenset) and all(map(is_unchanging, value)))


def is_constant(value: Any) -> bool:
    """Whether it is immutable, by a quick check that may miss some values."""
    kind = type(value)
    if kind is tuple:
        return len(value) <= _SMALL_TUPLE and set(map(type, value)) <= _UNCHANGING
    return kind in _UNCHANGING


def is_long(value: Any) -> bool:
    """Whether it is bytes or text too long for a message."""
    return type(value) in TEXTS and len(value) > INLINE_LIMIT


def dump(value: Any) -> Payload:
    """Pickle anything that cloudpickle accepts; big buffers are out of band and must not change while in use."""
    buffers: list[Buffer] = []

    def lay_aside(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes <= INLINE_LIMIT:
            return True
        buffers.append(view)
        return False

    if is_long(value):
        pickled = pickle.dumps(_Apart(value), PROTOCOL, buffer_callback=lay_aside)
    else:
        pickler, file = _pickler(BytesIO(), lay_aside)
        pickler.dump(value)
        pickled = file.getvalue()
    return BufferedPickle(pickled, buffers) if buffers else pickled


def _pickler(file: File, take: Callable[[pickle.PickleBuffer], bool]) -> tuple[Pickler, File]:
    from scaler_client.payloads.classes import Pickler

    kind = _array_pickler() if "numpy" in sys.modules else Pickler
    return kind(file, PROTOCOL, buffer_callback=take), file


@cache
def _array_pickler() -> type[Pickler]:
    """A Pickler of arrays that are read-only when they are loaded."""
    from numpy import ndarray

    from scaler_client.payloads.classes import Pickler

    return type("ArrayPickler", (Pickler,), {"reductions": {ndarray: _reduce_array}})


def _reduce_array(array: Any) -> Any:
    """As the array does, but read-only.

    That is said by a view, and not by a memoryview in the PickleBuffer: CPython crashes when it collects a cycle of
    garbage with one that something else exports.
    """
    view = array.view()
    view.flags.writeable = False
    return view.__reduce_ex__(PROTOCOL)


class _TooLongError(Exception):
    """The pickle is too long for a message."""


class _ShortFile(BytesIO):
    """A file limited to INLINE_LIMIT bytes; raises _TooLongError."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > INLINE_LIMIT:
            raise _TooLongError
        return super().write(data)


def dump_short(value: Any) -> bytes | None:
    """A pickle without out-of-band buffers; None as soon as it exceeds the limit of a message."""

    def take(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes > INLINE_LIMIT:
            raise _TooLongError
        return True

    pickler, file = _pickler(_ShortFile(), take)
    try:
        pickler.dump(value)
    except _TooLongError:
        return None
    return file.getvalue()


def load(payload: Buffer) -> Any:
    """The value, with views of the out-of-band buffers. Raises MalformedMessageError, or what pickle raises."""
    if payload[0] == _FIRST_BYTE:
        return pickle.loads(payload)
    pickled, buffers = split(payload)
    return pickle.loads(pickled, buffers=buffers)


def load_with(deserialize: Callable[[Any], Any], payload: Buffer) -> Any:
    """Load a payload with `load`, or with a user's serializer, which gets bytes."""
    return deserialize(payload if deserialize is load else bytes(payload))
