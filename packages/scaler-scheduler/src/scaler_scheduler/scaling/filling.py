"""Whole units for fractions of workers: bins are opened unit by unit, the least filled one first. Pure, no IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from heapq import heapify, heappop, heappush

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.lazy_dataclass import dataclass

NEGLIGIBLE = 1e-9
"""Workers; less is an error of rounding."""


@dataclass(slots=True, eq=False)
class Room:
    """How many workers may be opened; bins may share it."""

    workers: int


@dataclass(slots=True, eq=False)
class Stock:
    """Workers that nothing is to run on yet, and what they have of quantities."""

    workers: float = 0.0
    quantities: dict[str, float] = field(default_factory=dict)

    def add(self, workers: float, unit_size: int, quantities: Capabilities) -> Stock:
        """Add workers, of which `unit_size` have these quantities together."""
        self.workers += workers
        for name, quantity in quantities:
            self.quantities[name] = self.quantities.get(name, 0.0) + quantity * workers / unit_size
        return self

    def use(self, most: float, share: Capabilities) -> float:
        """Take so many workers, each with a share of quantities, or as many as there are; returns how many."""
        if not self.workers:
            return 0.0
        used = max(0.0, min([most, self.workers, *(self.quantities[name] / wanted for name, wanted in share)]))
        self.workers -= used
        for name, wanted in share:
            self.quantities[name] -= used * wanted
        return used


@dataclass(slots=True, eq=False)
class UnitBin:
    """Units of one offer."""

    unit_size: int
    room: Room
    level: int = 0
    """Workers it has: bins are filled so that their levels become equal."""
    quantities: Capabilities = ()
    """What the workers of a unit have together."""
    opened: int = 0
    """Workers of the units that were opened here."""
    slack: Stock = field(default_factory=Stock)
    """What of the opened units nothing was poured into."""

    def open(self, units: int, amount: float, share: Capabilities) -> float:
        """Open units as far as there is room, and pour into them; returns what did not fit."""
        workers = min(units, self.room.workers // self.unit_size) * self.unit_size
        self.room.workers -= workers
        self.level += workers
        self.opened += workers
        self.slack.add(workers, self.unit_size, self.quantities)
        return amount - self.slack.use(amount, share)


def pour(amount: float, bins: Mapping[UnitBin, Capabilities]) -> float:
    """Pour so many workers into the bins, into open units first; returns what did not fit.

    Each worker takes a share of the quantities of its unit, as the bins say.

    The bin with the lowest level gets the next unit, the earlier one first where levels are equal, so more amount never
    opens less. Several units are opened at once as long as that cannot lift a bin above the level of all in the end,
    which is at least a fair share higher.
    """
    for chosen, share in bins.items():
        amount -= chosen.slack.use(amount, share)
    order = list(bins)
    heap = [(chosen.level, place) for place, chosen in enumerate(order)]
    heapify(heap)
    while heap and amount > NEGLIGIBLE:
        _, place = heappop(heap)
        chosen = order[place]
        half_a_share = min(amount, chosen.room.workers) // (2 * len(bins) * chosen.unit_size)
        amount = chosen.open(max(1, int(half_a_share)), amount, bins[chosen])
        if chosen.room.workers >= chosen.unit_size:
            heappush(heap, (chosen.level, place))
    return amount if amount > NEGLIGIBLE else 0.0
