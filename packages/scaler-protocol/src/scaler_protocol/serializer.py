"""Serializers: how functions, arguments and results become bytes."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from scaler_protocol.errors import InvalidFieldError, MalformedMessageError
from scaler_protocol.limits import KEYWORD, PART

_PART = struct.Struct("<HI")


class Serializer(ABC):
    """Base class of custom serializers: a class with two static methods, sent once to every worker.

    `serialize` runs once per function and client (again when the function has changed), once per argument, once per
    result; `deserialize` gets `bytes`. Exceptions are pickled.

    >>> import pickle
    >>> class Pickles(Serializer):
    ...     @staticmethod
    ...     def serialize(obj):
    ...         return pickle.dumps(obj)
    ...
    ...     @staticmethod
    ...     def deserialize(payload):
    ...         return pickle.loads(payload)
    >>> with Client(address=address, serializer=Pickles) as pickling:
    ...     pickling.submit(abs, -1).result()
    1
    """

    @staticmethod
    @abstractmethod
    def serialize(obj: Any) -> bytes:
        """The bytes of a function, an argument or a result; what it raises is the error of the call.

        Args:
            obj: the function, argument or result.

        >>> import pickle
        >>> class Pickles(Serializer):
        ...     serialize, deserialize = staticmethod(pickle.dumps), staticmethod(pickle.loads)
        >>> type(Pickles.serialize([1, 2]))
        <class 'bytes'>
        """

    @staticmethod
    @abstractmethod
    def deserialize(payload: bytes) -> Any:
        """The object from the bytes of `serialize`; what it raises becomes a DeserializeError of the call.

        Args:
            payload: what `serialize` returned.

        >>> import pickle
        >>> class Pickles(Serializer):
        ...     serialize, deserialize = staticmethod(pickle.dumps), staticmethod(pickle.loads)
        >>> Pickles.deserialize(Pickles.serialize([1, 2]))
        [1, 2]
        """


def checked_serialize(serializer: Serializer | type[Serializer]) -> Callable[[Any], bytes]:
    """The method `serialize`; raises TypeError naming it where it returns no bytes."""
    serialize = serializer.serialize

    def dump(obj: Any) -> bytes:
        written: object = serialize(obj)
        if isinstance(written, bytes):
            return written
        if isinstance(written, bytearray | memoryview):
            return bytes(written)
        raise TypeError(f"{_name_of(serializer)}.serialize returned {type(written).__qualname__}, expected bytes")

    return dump


def checked_callable(serializer: Serializer | type[Serializer], found: object) -> Callable[..., Any]:
    """Check the result of `deserialize` for a function; raises TypeError naming the method if it is not callable."""
    if callable(found):
        return found
    name = _name_of(serializer)
    raise TypeError(f"{name}.deserialize returned {type(found).__qualname__} for a function, expected a callable")


def _name_of(serializer: Serializer | type[Serializer]) -> str:
    return (serializer if isinstance(serializer, type) else type(serializer)).__qualname__


def join_parts(names: Sequence[str], parts: Sequence[bytes]) -> bytes:
    """One call of a custom serializer: per part the length of its keyword (0 = positional), its own length, both.

    Raises InvalidFieldError for a keyword or a part that is too long.
    """
    pieces: list[bytes] = []
    for name, part in zip(names, parts, strict=True):
        if fault := KEYWORD.fault(name) or PART.fault(part):
            raise InvalidFieldError(f"the argument {name[:40]!r} of a call {fault}")
        keyword = name.encode()
        pieces += (_PART.pack(len(keyword), len(part)), keyword, part)
    return b"".join(pieces)


def split_parts(call: bytes) -> list[tuple[str, bytes]]:
    """Keyword (empty for a positional argument) and bytes of every part; raises MalformedMessageError."""
    parts, at = [], 0
    while at < len(call):
        if at + _PART.size > len(call):
            raise MalformedMessageError(f"a call of parts ends inside a header, at byte {at} of {len(call)}")
        keyword, length = _PART.unpack_from(call, at)
        at += _PART.size
        end = at + keyword + length
        if end > len(call):
            raise MalformedMessageError(f"a call of parts ends at byte {len(call)}, its last part at {end}")
        try:
            name = call[at : at + keyword].decode()
        except UnicodeDecodeError:
            raise MalformedMessageError(f"the keyword at byte {at} of a call of parts is not UTF-8") from None
        parts.append((name, call[at + keyword : end]))
        at = end
    return parts
