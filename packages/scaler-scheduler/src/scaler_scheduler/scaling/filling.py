"""Whole units for fractions of workers: bins are opened unit by unit, the least filled one first. Pure, no IO."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from scaler_protocol.lazy_dataclass import dataclass

NEGLIGIBLE = 1e-9
"""Workers; less is an error of rounding."""


@dataclass(slots=True, eq=False)
class Room:
    """How many workers may be opened; bins may share it."""

    workers: int


@dataclass(slots=True, eq=False)
class UnitBin:
    """Units of one offer."""

    unit_size: int
    room: Room
    level: int = 0
    """Workers it has: bins are filled so that their levels become equal."""
    opened: int = 0
    """Workers of the units that were opened here."""
    slack: float = 0.0
    """Workers of opened units that nothing was poured into."""

    def open(self, units: int, amount: float) -> float:
        """Open units as far as there is room, and pour into them; returns what did not fit."""
        workers = min(units, self.room.workers // self.unit_size) * self.unit_size
        self.room.workers -= workers
        self.level += workers
        self.opened += workers
        self.slack += workers
        return self.use(amount)

    def use(self, amount: float) -> float:
        """Pour into what is open; returns what did not fit."""
        used = min(amount, self.slack)
        self.slack -= used
        return amount - used


def pour(amount: float, bins: Sequence[UnitBin]) -> float:
    """Pour so many workers into the bins, into open units first; returns what did not fit.

    The bin with the lowest level gets the next unit, the earlier one first where levels are equal, so more amount never
    opens less. Several units are opened at once as long as that cannot lift a bin above the level of all in the end,
    which is at least a fair share higher.
    """
    for chosen in bins:
        amount = chosen.use(amount)
    heap = [(chosen.level, place) for place, chosen in enumerate(bins)]
    heapify(heap)
    while heap and amount > NEGLIGIBLE:
        _, place = heappop(heap)
        chosen = bins[place]
        half_a_share = min(amount, chosen.room.workers) // (2 * len(bins) * chosen.unit_size)
        amount = chosen.open(max(1, int(half_a_share)), amount)
        if chosen.room.workers >= chosen.unit_size:
            heappush(heap, (chosen.level, place))
    return amount if amount > NEGLIGIBLE else 0.0
