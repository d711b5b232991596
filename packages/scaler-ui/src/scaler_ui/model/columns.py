"""Columns of a table: how they are sorted, and lists whose places are in them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]
V = TypeVar("V")


def last(hits: Column) -> int | None:
    """The last position that is true."""
    places = np.flatnonzero(hits)
    return int(places[-1]) if len(places) else None


def ranks(names: Sequence[str]) -> Column:
    """The rank of each name in sorted order; equal names have equal ranks."""
    return np.unique(np.array(names, dtype=object), return_inverse=True)[1].astype(np.uint32)


def distinct(*columns: Column) -> tuple[Column, Column]:
    """The distinct rows of these columns, in order: the place of one of each, and for every row the number of its own.

    It is quickest for columns of 16 bits, which NumPy sorts by radix.
    """
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    new[:1] = True
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    numbers = np.empty(len(order), np.intp)
    numbers[order] = np.cumsum(new) - 1
    return order[new], numbers


def narrow(values: Column) -> Column:
    """Non-negative integers in 16 bits each, if all of them fit."""
    return values.astype(np.uint16) if len(values) and values.max() < 1 << 16 else values


def take(values: Column, places: Column) -> Column:
    taken: Column = values[places]
    return taken


def slice_of_order(keys: Column, start: int, stop: int, *, descending: bool) -> Column:
    """Positions of the keys from `start` to `stop` in sorted order, equal keys in the order of their positions.

    A slice near an end is found without a complete sort.
    """
    total = len(keys)
    start, stop = min(start, total), min(stop, total)
    if descending:
        return slice_of_order(keys, total - stop, total - start, descending=False)[::-1]
    if start == stop:
        return np.empty(0, np.intp)
    if start < total - stop:
        bound = np.partition(keys, stop - 1)[stop - 1]
        near = np.flatnonzero(keys < bound)
        near = np.concatenate((near, np.flatnonzero(keys == bound)[: stop - len(near)]))
    else:
        bound = np.partition(keys, start)[start]
        near = np.flatnonzero(keys > bound)
        near = np.concatenate((np.flatnonzero(keys == bound)[len(near) - (total - start) :], near))
        start, stop = 0, stop - start
    return near[np.argsort(keys[near], kind="stable")][start:stop]


class Places(Generic[V]):
    """Values in a list, each once, and the place of each."""

    def __init__(self, *values: V) -> None:
        self.values: list[V] = list(values)
        self._places: dict[V, int] = {value: place for place, value in enumerate(values)}

    def __contains__(self, value: V) -> bool:
        return value in self._places

    def place(self, value: V) -> int:
        """The place of a value, which is added if it is new."""
        place = self._places.get(value)
        if place is None:
            place = self._places[value] = len(self.values)
            self.values.append(value)
        return place

    def kept(self, used: Column) -> tuple[Places[V], Column]:
        """The first value and those at these places, and by old place the new one."""
        places: Places[V] = Places(self.values[0])
        moved: Column = np.zeros(len(self.values), np.uint32)
        moved[used] = [places.place(self.values[place]) for place in used.tolist()]
        return places, moved

    def known(self, value: V) -> int:
        """The place of a value; the number of values, which is no place, if it is none of them."""
        return self._places.get(value, len(self.values))
