"""Tasks that are too many for a bar each, drawn together: blocks in the lines of their workers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.model.columns import Column
from scaler_ui.model.task_table import TaskTable

BLOCKS = 500
"""The maximum of blocks: a browser is sent them again and again."""
CELLS = 2_000
"""Time is divided into equal cells: so many of all workers, but at most FINEST of each, and fewer if that makes too
many blocks."""
FINEST = 240
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
    workers, lines = np.unique(agents.astype("Q") << np.uint64(32) | pids, return_inverse=True)
    busiest = np.argsort(np.bincount(lines))[-WORKERS:]
    chosen = np.isin(lines, busiest)
    lines, functions, ended, seconds = lines[chosen], functions[chosen], ended[chosen], micros[chosen] / 1e6
    numbers, functions = np.unique(functions, return_inverse=True)
    names = {}
    for line in busiest.tolist():
        agent, pid = divmod(int(workers[line]), 2**32)
        names[line] = name(tasks.agent_of(agent), pid)
    cells = min(FINEST, CELLS // len(busiest))
    while True:
        step = (window[1] - window[0]) / cells
        ends = (ended - window[0]) / step
        found = list(_merged(*_leading(lines * cells, functions, ends - seconds / step, ends, cells), cells))
        if len(found) <= BLOCKS or cells == 1:
            break
        cells = (cells + 1) // 2
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


def _leading(
    lines: Column, functions: Column, begins: Column, ends: Column, cells: int
) -> tuple[Column, Column, Column]:
    """Of each cell in which tasks ran: its number, the function with most of the time, and the share of all of them.

    `lines` is the number of the first cell of each task's worker; tasks begin and end at so many cells from there.
    """
    first = np.clip(begins, 0, cells - 1).astype(np.intp)
    spans = np.clip(ends, 0, cells - 1).astype(np.intp) - first + 1
    task = np.repeat(np.arange(len(spans)), spans)
    cell = first[task] + np.arange(len(task)) - np.repeat(np.cumsum(spans) - spans, spans)
    took = np.minimum(ends[task], cell + 1) - np.maximum(begins[task], cell)
    count = functions.max() + 1
    keys, at = np.unique((lines[task] + cell) * count + functions[task], return_inverse=True)
    shares = np.bincount(at, took)
    places, of = np.unique(keys // count, return_inverse=True)
    order = np.lexsort((shares, of))
    leading = order[np.append(of[order][1:] != of[order][:-1], True)]
    return places, keys[leading] % count, np.bincount(of, shares)
