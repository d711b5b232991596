"""Consumables: capabilities of which all runs of an agent together have a quantity. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from scaler_protocol.capabilities import Capabilities


class Consumables:
    """What an agent has of each consumable, and what its runs have taken."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        self.totals = dict(totals)
        self._taken: dict[int, Capabilities] = {}
        """By run; those that have ended are dropped with the next question."""

    def take(self, run: int, share: Capabilities) -> None:
        """The agent has a run that takes this."""
        if share:
            self._taken[run] = share

    def used(self, runs: Container[int]) -> Counter[str]:
        """How much is taken, if these are the runs that the agent has."""
        if ended := [run for run in self._taken if run not in runs]:
            for run in ended:
                del self._taken[run]
        used: Counter[str] = Counter()
        for share in self._taken.values():
            used.update(dict(share))
        return used
