"""Tasks that are too many for a bar each, drawn together: blocks in the lines of their workers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.model.columns import Column, distinct, narrow
from scaler_ui.model.task_table import TaskTable

BLOCKS = 500
"""The maximum of blocks: a browser is sent them again and again."""
CELLS = 2_000
"""Time is divided into equal cells: at most so many of all workers, and FINEST of each; a power of two, halved while
that makes too many blocks."""
FINEST = 256
WORKERS = 200
"""Of more workers those that ran most short tasks have blocks."""
LOOKED_AT = 50_000
"""Of more tasks each second, third, or so is looked at."""


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of time in which a worker ran short tasks, most of the time of this function."""

    worker: str
    begin: float
    end: float
    function: str
    share: float
    """How much of this time the worker ran them."""


def blocks(tasks: TaskTable, rows: Column, window: tuple[float, float], name: Callable[[int, int], str]) -> list[Block]:
    """The tasks of these rows within the window; `name` is that of the worker with this agent and process."""
    if not len(rows):
        return []
    taken = rows[:: (every := len(rows) // LOOKED_AT + 1)]
    agents, pids, functions, micros, ended = tasks.columns(("agent", "pid", "function", "duration", "ended"), taken)
    workers, lines = distinct(narrow(agents), (pids >> 16).astype(np.uint16), pids.astype(np.uint16))
    busiest = np.argsort(np.bincount(lines))[-WORKERS:]
    chosen = np.isin(lines, busiest)
    lines, functions, ended, seconds = lines[chosen], functions[chosen], ended[chosen], micros[chosen] / 1e6
    numbers = np.flatnonzero(np.bincount(functions))
    functions = np.searchsorted(numbers, functions)
    names = {
        line: name(tasks.agent_of(int(agents[row])), int(pids[row]))
        for line, row in zip(busiest.tolist(), workers[busiest].tolist(), strict=True)
    }
    cells = 1 << min(FINEST, CELLS // len(busiest)).bit_length() - 1
    step = (window[1] - window[0]) / cells
    ends = (ended - window[0]) / step
    parts = _by_cell(lines * cells, functions, ends - seconds / step, ends, cells)
    while True:
        parts = _summed(*parts)
        found = list(_merged(*_leading(*parts), cells))
        if len(found) <= BLOCKS or cells == 1:
            break
        parts = parts[0] >> 1, parts[1], parts[2] / 2
        cells, step = cells // 2, 2 * step
    return [
        Block(
            names[first // cells],
            window[0] + first % cells * step,
            window[0] + (first % cells + count) * step,
            tasks.name_of(int(numbers[function])),
            min(1.0, every * share / count),
        )
        for first, count, function, share in found
    ]


def _merged(places: Column, functions: Column, shares: Column, cells: int) -> Iterator[tuple[int, int, int, float]]:
    """Neighbouring cells of a line with the same function: the first, how many, the function, the sum of shares."""
    new = (np.diff(places, prepend=-2) != 1) | (np.diff(functions.astype(np.int64), prepend=-1) != 0)
    starts = np.flatnonzero(new | (places % cells == 0))
    counts = np.diff(starts, append=len(places))
    columns = places[starts], counts, functions[starts], np.add.reduceat(shares, starts)
    yield from zip(*(column.tolist() for column in columns), strict=True)


def _by_cell(
    lines: Column, functions: Column, begins: Column, ends: Column, cells: int
) -> tuple[Column, Column, Column]:
    """For each task and each cell in which it ran: the number of the cell, the function, and the share of the cell.

    `lines` is the number of the first cell of each task's worker; tasks begin and end at so many cells from there.
    """
    first = np.clip(begins, 0, cells - 1).astype(np.intp)
    spans = np.clip(ends, 0, cells - 1).astype(np.intp) - first + 1
    task = np.repeat(np.arange(len(spans)), spans)
    cell = first[task] + np.arange(len(task)) - np.repeat(np.cumsum(spans) - spans, spans)
    shares = np.minimum(ends[task], cell + 1) - np.maximum(begins[task], cell)
    return lines[task] + cell, functions[task], shares


def _summed(places: Column, functions: Column, shares: Column) -> tuple[Column, Column, Column]:
    """Each cell and function once, in order, with the sum of its shares."""
    chosen, numbers = distinct(narrow(places), narrow(functions))
    return places[chosen], functions[chosen], np.bincount(numbers, shares)


def _leading(places: Column, functions: Column, shares: Column) -> tuple[Column, Column, Column]:
    """Each cell once, with the function that has the largest share, and the share of all functions."""
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    counts = np.diff(starts, append=len(places))
    largest = np.flatnonzero(shares == np.repeat(np.maximum.reduceat(shares, starts), counts))
    leading = largest[np.diff(places[largest], prepend=-1) > 0]  # one of equal shares
    return places[starts], functions[leading], np.add.reduceat(shares, starts)
