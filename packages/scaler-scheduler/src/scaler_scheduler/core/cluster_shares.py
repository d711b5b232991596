"""Cluster shares: what runs have taken of quantities that the whole cluster has. Pure.

A run takes its share when it is sent to an agent, and has it until that agent reports that the run is over, which it
does when no process executes it any more: that of a withdrawn run, when its worker has ended. An agent that is lost may
go on with its runs. What they have taken is free when that agent

- says Goodbye, since its processes have ended then;
- comes back and does not report the run;
- has been away for as long as it can live without a scheduler, which its Hello tells.

A scheduler may succeed another one, and does not know then what that one's runs have taken: it lends nothing before
agents have had the time to report that, or a journal tells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from scaler_protocol.capabilities import Capabilities
from scaler_scheduler.requirements import WorkerClass

Taker = tuple[bytes, Capabilities]
"""The agent that has a run, and what the run takes."""


class ClusterShares:
    """The quantities `totals`; nothing is lent for `unknown_seconds` after the first `settle`."""

    @classmethod
    def of(cls, totals: Capabilities, unknown_seconds: float) -> ClusterShares | None:
        """None if there are no such quantities: then nobody pays for them."""
        return cls(dict(totals), unknown_seconds) if totals else None

    def __init__(self, totals: Mapping[str, int], unknown_seconds: float) -> None:
        self.totals = dict(totals)
        self.version = 0
        """Changes with all that may let another run start."""
        self._unknown_seconds = unknown_seconds
        self._known_at = math.inf
        self._settled_at = 0.0
        self._is_known = False
        self._takers: dict[int, Taker] = {}
        """By run."""
        self._used: Counter[str] = Counter()
        self._away: dict[bytes, float] = {}
        """Lost agents some of whose runs have taken something, and until when these may go on."""
        self._reported: dict[bytes, set[int]] = {}
        """What agents that are back have reported so far, in several messages."""

    def widened(self, worker_class: WorkerClass) -> WorkerClass:
        """The class of workers with what the cluster offers to all of them."""
        own = zip(worker_class.consumables, worker_class.totals, strict=True)
        names, totals = zip(*sorted((*own, *self.totals.items())), strict=True)
        capabilities = tuple(sorted((*worker_class.capabilities, *self.totals.items())))
        return replace(worker_class, capabilities=capabilities, consumables=names, totals=totals)

    def conflict(self, names: Iterable[str]) -> str:
        """Why an agent or a worker manager may not offer these capabilities, as text; empty if it may."""
        both = sorted(self.totals.keys() & set(names))
        return f"{both[0]} is in the scheduler's --cluster-capabilities, so that no host may offer it" if both else ""

    @property
    def used(self) -> Mapping[str, int]:
        """How much is taken of what somebody has taken."""
        return +self._used

    def free(self, name: str) -> int:
        """How much is left; less than 0 if runs of which the scheduler learned too late have taken more."""
        return self.totals[name] - self._used[name] if self._is_known else 0

    def has(self, share: Capabilities) -> bool:
        """Whether so much is left, of that part of a share which is the cluster's."""
        return all(self.free(name) >= wanted for name, wanted in share if name in self.totals)

    def take(self, run: int, agent: bytes, share: Capabilities) -> None:
        """An agent has a run that takes this, and maybe quantities of its host, too."""
        ours = tuple((name, wanted) for name, wanted in share if name in self.totals)
        if ours:
            self._give_back(run)
            self._takers[run] = agent, ours
            self._used.update(dict(ours))

    def over(self, agent: bytes, runs: Iterable[int]) -> None:
        """An agent reports that these runs are over."""
        if self._takers:
            self._free(run for run in runs if run in self._takers and self._takers[run][0] == agent)

    def left(self, agent: bytes) -> None:
        """An agent has ended all of its processes."""
        self._free([run for run, taker in self._takers.items() if taker[0] == agent])
        self._forget(agent)

    def lost(self, agent: bytes, unsent: Iterable[int], until: float) -> None:
        """An agent is lost, and may go on with its runs, but those that it cannot have received."""
        self.over(agent, unsent)
        self._forget(agent)
        if any(taker[0] == agent for taker in self._takers.values()):
            self._away[agent] = until

    def reported(self, agent: bytes, shares: Mapping[int, Capabilities], *, more: bool) -> None:
        """An agent that was connected before reports what its runs have taken; `more`: another report follows."""
        for run, share in shares.items():
            if run not in self._takers or self._takers[run][0] == agent:  # an agent may say anything
                self.take(run, agent, share)
        reported = self._reported.setdefault(agent, set())
        reported.update(shares)
        if not more:
            self._free([run for run, taker in self._takers.items() if taker[0] == agent and run not in reported])
            self._forget(agent)

    def known(self) -> None:
        """A journal has told what the runs of an earlier scheduler have taken, or that there was none."""
        self._known_at = 0.0

    def settle(self, now: float, *, recovering: bool) -> bool:
        """Lend again what lost agents had that have ended by now; returns whether that lets another run start.

        `recovering` is whether agents of an earlier scheduler may still report.
        """
        if self._known_at == math.inf:
            self._known_at = now + self._unknown_seconds
        self._settled_at = now
        version, was_known = self.version, self._is_known
        for agent in [agent for agent, until in self._away.items() if now >= until]:
            self.left(agent)
        self._is_known = not recovering and now >= self._known_at
        self.version += self._is_known and not was_known
        return self.version != version

    def due(self) -> float | None:
        """When `settle` has something to do."""
        times = [self._known_at] if self._settled_at < self._known_at < math.inf else []
        return min([*times, *self._away.values()], default=None)

    def shortage(self, name: str) -> str:
        """How much of it is in use, as text."""
        if not self._is_known:
            return f"{name} (agents of an earlier scheduler have not yet reported what they use)"
        away = sum(dict(share).get(name, 0) for agent, share in self._takers.values() if agent in self._away)
        lost = f", {away:,} of that by lost agents" if away else ""
        return f"{name} ({self._used[name]:,} of {self.totals[name]:,} in use{lost})"

    def _free(self, runs: Iterable[int]) -> None:
        for run in list(runs):
            self._give_back(run)
            self.version += 1

    def _give_back(self, run: int) -> None:
        if run in self._takers:
            self._used.subtract(dict(self._takers.pop(run)[1]))

    def _forget(self, agent: bytes) -> None:
        self._away.pop(agent, None)
        self._reported.pop(agent, None)

    def check(self, agents: Mapping[bytes, Mapping[int, Capabilities]]) -> None:
        """Assert the invariants, with what each run of the connected agents takes; for tests."""
        used: Counter[str] = Counter()
        for agent, share in self._takers.values():
            used.update(dict(share))
            assert agent in agents or agent in self._away, "a share of an agent that is neither there nor away"
        assert used == self.used, (used, self.used)
        for agent, runs in agents.items():
            for run, share in runs.items():
                ours = tuple((name, wanted) for name, wanted in share if name in self.totals)
                assert not ours or self._takers.get(run) == (agent, ours), f"run {run:x} has not taken {ours}"
