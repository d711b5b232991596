"""Scaling policies next to an oracle and to Dask's adaptive rule, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from scaler_scheduler.scaling.capacity import CapacitySnapshot, Manager, ScalingPolicy, Target
from support.fleet_loads import LoadCase
from support.virtual_fleet import Outcome, VirtualFleet

DASK_TARGET_SECONDS = 5.0
DASK_UNKNOWN_SECONDS = 0.5
DASK_WAIT_COUNT = 3


@dataclass
class DaskAdaptive:
    """Dask's adaptive rule with its defaults: occupancy over target; idle workers are closed after three equal advices.

    It knows one kind of worker; here each offer gets an equal share.
    """

    _advised: dict[tuple[str, int], int] = field(default_factory=dict)

    def decide(self, snapshot: CapacitySnapshot, now: float) -> list[Target]:
        """A target for each manager."""
        demands = snapshot.demands
        occupancy = sum(
            demand.seconds + demand.running_seconds + DASK_UNKNOWN_SECONDS * demand.unmeasured for demand in demands
        )
        tasks = sum(demand.tasks + demand.running for demand in demands)
        offers = [(manager, place) for manager in snapshot.managers for place in range(len(manager.offers))]
        total = min(ceil(occupancy / DASK_TARGET_SECONDS), tasks)
        busy = sum(demand.running for demand in demands)
        wanted: dict[str, list[int]] = {manager.id: [] for manager in snapshot.managers}
        for number, (manager, place) in enumerate(offers):
            share = total // len(offers) + (number < total % len(offers))
            kept = busy // len(offers) + (number < busy % len(offers))
            wanted[manager.id].append(self._settled(manager, place, share, kept))
        return [Target(manager.id, tuple(wanted[manager.id]), "adaptive") for manager in snapshot.managers]

    def _settled(self, manager: Manager, place: int, share: int, busy: int) -> int:
        """Grow at once; shrink to what is busy after three equal advices."""
        offer, key = manager.offers[place], (manager.id, place)
        limit = manager.maximum // len(manager.offers) // offer.unit_size * offer.unit_size
        share = min(-(-share // offer.unit_size) * offer.unit_size, limit)
        busy = min(-(-busy // offer.unit_size) * offer.unit_size, limit)
        total = offer.joined + offer.starting
        if share >= total:
            self._advised[key] = 0
            return share
        self._advised[key] = self._advised.get(key, 0) + 1
        return max(share, min(busy, total)) if self._advised[key] >= DASK_WAIT_COUNT else total


def outcomes(case: LoadCase, policy: Callable[[], ScalingPolicy]) -> tuple[Outcome, Outcome, Outcome]:
    """Of the oracle, of the policy, of Dask's rule."""
    return (
        VirtualFleet(case.load, case.providers, None).run(),
        VirtualFleet(case.load, case.providers, policy()).run(),
        VirtualFleet(case.load, case.providers, DaskAdaptive()).run(),
    )


def table(cases: Sequence[LoadCase], policy: Callable[[], ScalingPolicy]) -> Iterator[str]:
    """Lines of Markdown: a row per load; each cell has the policy, and Dask's rule after it."""
    yield "| load | oracle, s | done after, s | mean wait, s | utilisation, % | starts and stops per minute | turns |"
    yield "|---|---|---|---|---|---|---|"
    for case in cases:
        oracle, ours, dask = outcomes(case, policy)
        cells = [
            f"{oracle.done:,.0f}",
            f"{ours.done:,.0f} · {dask.done:,.0f}",
            f"{ours.mean_wait:,.1f} · {dask.mean_wait:,.1f}",
            f"{100 * ours.utilisation:.0f} · {100 * dask.utilisation:.0f}",
            f"{_moves(ours)} · {_moves(dask)}",
            f"{ours.turns} · {dask.turns}",
        ]
        yield f"| {case.name} | {' | '.join(cells)} |"


def _moves(outcome: Outcome) -> str:
    return f"{(outcome.starts + outcome.stops) / outcome.minutes:.1f}"
