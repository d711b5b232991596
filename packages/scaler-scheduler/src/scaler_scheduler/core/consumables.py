"""Consumables: capabilities of which all runs of an agent, or of the cluster, together have a quantity. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

from scaler_protocol.capabilities import Capabilities
from scaler_scheduler.core.cluster_shares import ClusterShares


class Consumables:
    """What an agent has of each consumable, and what its runs have taken; `cluster` has what is everybody's."""

    def __init__(self, agent: bytes, totals: Mapping[str, int], cluster: ClusterShares | None) -> None:
        self.totals = dict(totals)
        self.cluster = cluster
        self._agent = agent
        self._taken: dict[int, Capabilities] = {}
        """By run; those that have ended are dropped with the next question."""

    def take(self, run: int, share: Capabilities) -> None:
        """The agent has a run that takes this."""
        if share:
            self._taken[run] = share
            if self.cluster is not None:
                self.cluster.take(run, self._agent, share)

    def used(self, runs: Container[int]) -> Counter[str]:
        """How much of the agent's own is taken, if these are the runs that it has."""
        if ended := [run for run in self._taken if run not in runs]:
            for run in ended:
                del self._taken[run]
        used: Counter[str] = Counter()
        for share in self._taken.values():
            used.update(dict(share))
        return used

    def room(self, share: Capabilities, runs: Container[int]) -> int:
        """How many more runs may take this share, if the agent has these runs."""
        used = self.used(runs)
        left = [
            (self.totals[name] - used[name] if name in self.totals else self._left(name)) // wanted
            for name, wanted in share
        ]
        return max(0, min(left))

    def _left(self, name: str) -> int:
        return self.cluster.free(name) if self.cluster is not None else 0
