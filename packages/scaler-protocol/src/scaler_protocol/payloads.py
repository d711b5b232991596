"""A column of byte strings that travels as one frame: cut on demand, passed on whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload


class Payloads(Sequence[bytes]):
    """An immutable sequence of byte strings, either given one by one or as one frame and the lengths of its parts.

    What only passes through (a scheduler relaying results) is neither cut nor joined.
    """

    __slots__ = ("_frame", "_lengths", "_parts")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self._parts: Sequence[bytes] | None = parts
        self._frame: bytes | memoryview | None = None
        self._lengths: Sequence[int] | None = None

    @classmethod
    def cut(cls, frame: bytes | memoryview, lengths: Sequence[int]) -> Payloads:
        """The column whose parts stand one behind the other in `frame`."""
        column = cls.__new__(cls)
        column._parts, column._frame, column._lengths = None, frame, lengths
        return column

    @property
    def lengths(self) -> Sequence[int]:
        """Bytes of each part."""
        if self._lengths is None:
            assert self._parts is not None
            self._lengths = [len(part) for part in self._parts]
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
        """The parts, one by one."""
        if self._parts is None:
            assert self._frame is not None and self._lengths is not None
            frame = self._frame
            ends = list(accumulate(self._lengths))
            if isinstance(frame, memoryview):
                self._parts = [bytes(frame[at:end]) for at, end in zip([0, *ends], ends, strict=False)]
            else:
                self._parts = [frame[at:end] for at, end in zip([0, *ends], ends, strict=False)]
        return self._parts

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
