"""Shared calls: short calls of tasks that leave a block together are one piece of memory, not one object each. Pure.

A piece lasts as long as one of its tasks, so it is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from scaler_protocol.payloads import Payloads

LONGEST: Final = 255
"""Bytes of a call that is shared; its length takes one byte."""
PIECE_BYTES: Final = 2048
"""Bytes of a piece: what a single task may keep."""
FEWEST: Final = 32
"""Fewer tasks than this have their calls themselves: that takes a little less time, and not much more memory."""


class SharedCalls:
    """The calls of tasks with consecutive ids."""

    __slots__ = ("first", "frame", "lengths")

    def __init__(self, first: int, frame: bytes, lengths: bytes) -> None:
        self.first = first
        """The first task."""
        self.frame = frame
        self.lengths = lengths

    def of(self, task: int) -> bytes:
        """The call of a task."""
        place = task - self.first
        begin = sum(self.lengths[:place])
        return self.frame[begin : begin + self.lengths[place]]

    @property
    def tasks(self) -> range:
        """Whose calls these are."""
        return range(self.first, self.first + len(self.lengths))


def share(tasks: Sequence[int], calls: Payloads) -> Sequence[bytes | SharedCalls]:
    """The call of each task, or where it can be found."""
    if (count := len(tasks)) < FEWEST or calls.is_split:
        return calls.parts
    if (longest := max(calls.lengths)) > LONGEST or not _are_consecutive(tasks):
        return calls.parts
    pieces = -(-count * longest // PIECE_BYTES) or 1
    found: list[bytes | SharedCalls] = []
    at = 0
    for piece in range(pieces):
        begin, end = count * piece // pieces, count * (piece + 1) // pieces
        lengths = bytes(calls.lengths[begin:end])
        until = at + sum(lengths)
        found += [SharedCalls(tasks[begin], bytes(calls.frame[at:until]), lengths)] * (end - begin)
        at = until
    return found


def column_of(tasks: Sequence[int], calls: Sequence[bytes | SharedCalls]) -> Payloads:
    """The calls of tasks as a column; pieces whose tasks all follow each other are not cut."""
    pieces = dict.fromkeys([call for call in calls if isinstance(call, SharedCalls)])
    if len(tasks) == sum([len(piece.lengths) for piece in pieces]) and list(tasks) == list(
        chain.from_iterable(piece.tasks for piece in pieces)
    ):
        lengths = b"".join([piece.lengths for piece in pieces])
        return Payloads.cut(b"".join([piece.frame for piece in pieces]), tuple(lengths))
    return Payloads(
        [call if isinstance(call, bytes) else call.of(task) for task, call in zip(tasks, calls, strict=True)]
    )


def _are_consecutive(tasks: Sequence[int]) -> bool:
    return tasks[-1] - tasks[0] == len(tasks) - 1 and tuple(tasks) == tuple(range(tasks[0], tasks[-1] + 1))
