"""RowIndex: the rows of tasks by id, in a tenth of the memory of a dictionary where ids follow each other. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

_BITS = 5
_SIZE = 2**_BITS
_EMPTY = array("I", bytes(4 * _SIZE))


class RowIndex:
    """Ids that follow each other, as those of one client do, share a block; a block that is empty is given up."""

    def __init__(self) -> None:
        self._blocks: dict[int, array[int]] = {}
        """Of each id the row plus one; 0 if there is none."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __setitem__(self, task: int, row: int) -> None:
        block = self._blocks.get(task >> _BITS)
        if block is None:
            block = self._blocks[task >> _BITS] = _EMPTY[:]
        place = task % _SIZE
        self._size += not block[place]
        block[place] = row + 1

    def get(self, task: int) -> int | None:
        """The row of a task; None if it has none."""
        block = self._blocks.get(task >> _BITS)
        return block[task % _SIZE] - 1 if block is not None and block[task % _SIZE] else None

    def pop(self, task: int) -> int | None:
        """The row of a task, which has none any more; None if it has none."""
        block = self._blocks.get(task >> _BITS)
        row: int = 0 if block is None else block[task % _SIZE]
        if block is None or not row:
            return None
        block[task % _SIZE] = 0
        self._size -= 1
        if block == _EMPTY:
            self._drop(task >> _BITS)
        return row - 1

    def _drop(self, number: int) -> None:
        del self._blocks[number]
        if not self._blocks:
            self._blocks = {}  # a dictionary keeps the room that it once needed

    def update(self, other: RowIndex) -> None:
        """Add the rows of another index, which is not used any more."""
        if not self._blocks:
            self._blocks, self._size = other._blocks, other._size
            return
        for task, row in other.items():
            self[task] = row

    def items(self) -> Iterator[tuple[int, int]]:
        """Tasks and rows, the tasks of a block together."""
        for number, block in self._blocks.items():
            for task, row in enumerate(block, number << _BITS):
                if row:
                    yield task, row - 1
