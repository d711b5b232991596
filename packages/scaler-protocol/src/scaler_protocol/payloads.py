"""A column of byte strings that travels as one frame, which is split on demand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload


class Payloads(Sequence[bytes]):
    """An immutable sequence of byte strings, given as parts or as one frame and the lengths of its parts.

    A process that forwards a column, as the scheduler does with results, neither splits nor joins it.
    """

    __slots__ = ("_frame", "_lengths", "_parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts: Sequence[bytes] | None = parts
        self._frame: bytes | memoryview | None = None
        self._lengths: Sequence[int] | None = None

    @classmethod
    def cut(cls, frame: bytes | memoryview, lengths: Sequence[int]) -> Payloads:
        """The column whose parts are the consecutive pieces of `frame` with these lengths."""
        column = cls.__new__(cls)
        column._parts, column._frame, column._lengths = None, frame, lengths
        return column

    @property
    def is_split(self) -> bool:
        """Whether its parts exist as separate byte strings."""
        return self._parts is not None

    @property
    def lengths(self) -> Sequence[int]:
        """The length of each part in bytes."""
        if self._lengths is None:
            assert self._parts is not None
            self._lengths = list(map(len, self._parts))
        return self._lengths

    @property
    def frame(self) -> bytes | memoryview:
        """All parts, joined."""
        if self._frame is None:
            assert self._parts is not None
            self._frame = b"".join(self._parts)
        return self._frame

    @property
    def parts(self) -> Sequence[bytes]:
        """The parts as separate byte strings."""
        if self._parts is None:
            assert self._frame is not None and self._lengths is not None
            frame = self._frame
            ends = list(accumulate(self._lengths))
            if isinstance(frame, memoryview):
                self._parts = [bytes(frame[at:end]) for at, end in zip([0, *ends], ends, strict=False)]
            else:
                self._parts = [frame[at:end] for at, end in zip([0, *ends], ends, strict=False)]
        return self._parts

    def views(self) -> Iterator[bytes | memoryview]:
        """The parts, of a frame without copying them."""
        if self._parts is not None:
            return iter(self._parts)
        assert self._frame is not None and self._lengths is not None
        frame = memoryview(self._frame)
        return (frame[at:end] for at, end in pairwise(accumulate(self._lengths, initial=0)))

    def some(self, begin: int, end: int, offset: int) -> tuple[Payloads, int]:
        """The parts from `begin` to `end`, which start at an offset of the frame, and the offset where they end.

        The other parts are not made.
        """
        if self._parts is not None:
            parts = self._parts[begin:end]
            return Payloads(parts), offset + sum(map(len, parts))
        assert self._frame is not None and self._lengths is not None
        lengths = self._lengths[begin:end]
        until = offset + sum(lengths)
        return Payloads.cut(self._frame[offset:until], lengths), until

    def __len__(self) -> int:
        return len(self._lengths if self._parts is None else self._parts)  # type: ignore[arg-type]

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        return self.parts[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Payloads):
            return NotImplemented
        return list(self.parts) == list(other.parts)

    def __hash__(self) -> int:
        return hash(tuple(self.parts))

    def __repr__(self) -> str:
        return f"Payloads({list(self.parts)!r})"


NONE = Payloads(())
"""The empty column."""
