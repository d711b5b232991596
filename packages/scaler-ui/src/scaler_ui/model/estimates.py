"""Estimates: how much of the work of each client and function is done, and when the rest will be. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from functools import cache
from statistics import median_low
from typing import Final

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.plurals import counted
from scaler_protocol.run_figures import RECENT_RUNS, RecentRuns
from scaler_protocol.units import duration
from scaler_protocol.waiting import lacks
from scaler_ui.model.model import GroupInfo, MonitorModel

HUNG: Final = 20.0
"""A task hangs if it takes so many times longer than its function usually does, and HUNG_SECONDS."""
HUNG_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """The work of a client with a function. Seconds are None if no run has been measured, or no worker can run it."""

    session: int
    client: str
    function: str
    ended: int
    """Tasks that ended while this monitor listened."""
    open: int
    """Tasks that have not ended."""
    seconds: float | None
    """Time until they have ended, if these workers ran nothing else."""
    spread: float
    """The standard deviation of `seconds`."""
    share: float
    """How many of the seconds it takes all these workers."""
    unpredictable: bool
    """Workers can run them, but until when is unknown: no run has been measured, or all that are left hang."""


def estimates(model: MonitorModel) -> list[Estimate]:
    """The work that is open, the most seconds first."""
    status = model.status
    if status is None:
        return []
    counts: dict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    able: dict[tuple[int, str], int] = {}
    offers = Counter[tuple[str, str]]()
    for *offer, workers in zip(status.agent_capabilities, status.agent_runtimes, status.agent_workers, strict=True):
        offers[offer[0], offer[1]] += workers

    @cache
    def workers_for(needs: str, runtime: str) -> int:
        return sum(workers for offer, workers in offers.items() if not lacks(needs, runtime, *offer))

    for number, count, waiting, _ in model.tasks.open_groups():
        group = model.groups.get(number, GroupInfo())
        key = group.session, group.function
        counts[key] = counts[key][0] + count, counts[key][1] + waiting
        able[key] = max(workers_for(group.needs, group.runtime), able.get(key, 0))
    so_far = _running(model)
    means = _measured(model, {*so_far, *(function for _, function in counts)})
    hung = {name for name, seconds in so_far.items() if is_hung(model, name, means.get(name, (0.0, 0.0))[0], seconds)}
    # Where most runs that go on have already taken longer than the mean, what they have taken is the mean.
    for name, seconds in so_far.items():
        if name in means and seconds > means[name][0]:
            means[name] = seconds, means[name][1]
    found = [
        _estimate(model, session, function, *count, able[session, function], means.get(function), function in hung)
        for (session, function), count in counts.items()
    ]
    return sorted(found, key=lambda each: -(each.seconds or 0.0))


def is_hung(model: MonitorModel, function: str, mean: float, seconds: float) -> bool:
    """Whether a run that has taken so many seconds takes far longer than those of its function that have ended."""
    seen = model.functions.get(function)
    expected = max(mean, seen.longest if seen else 0.0)
    return expected > 0 and seconds > max(HUNG * expected, HUNG_SECONDS)


def _measured(model: MonitorModel, functions: Collection[str]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of the seconds of these functions: as heard, or else as the scheduler says."""
    assert model.status is not None
    found: dict[str, tuple[float, float]] = {}
    for name, seconds in zip(model.status.function_names, model.status.function_seconds, strict=True):
        if seconds:
            found.setdefault(name, (seconds, seconds))
    by_function: dict[str, list[RecentRuns]] = defaultdict(list)
    for (name, _), runs in model.run_figures.runs.items():
        if name in functions:
            by_function[name].append(runs)
    for name, hosts in by_function.items():
        weights = [min(runs.count, RECENT_RUNS) for runs in hosts]
        mean = sum(weight * runs.seconds for weight, runs in zip(weights, hosts, strict=True)) / sum(weights)
        square = sum(weight * runs.squares for weight, runs in zip(weights, hosts, strict=True)) / sum(weights)
        found[name] = mean, math.sqrt(max(0.0, square - mean**2))
    return found


def _running(model: MonitorModel) -> dict[str, float]:
    """How long the runs of each function that go on have taken so far: the median."""
    rows = list(model.tasks.running().values())
    so_far: dict[str, list[float]] = defaultdict(list)
    for name, micros in zip(model.tasks.function_names(rows), model.tasks.values("duration", rows), strict=True):
        if micros:
            so_far[name].append(micros / 1e6)
    return {name: median_low(seconds) for name, seconds in so_far.items()}


def _estimate(
    model: MonitorModel,
    session: int,
    function: str,
    count: int,
    waiting: int,
    workers: int,
    measured: tuple[float, float] | None,
    hung: bool,
) -> Estimate:
    client = model.client_name(session)
    ended = model.ended.get((session, function), 0)
    if measured is None or not workers:
        return Estimate(session, client, function, ended, count, None, 0.0, 0.0, unpredictable=workers > 0)
    mean, deviation = measured
    rounds = waiting / workers
    spread = deviation * math.sqrt(waiting or count) / workers
    seconds, unpredictable = mean * max(rounds, 1.0), hung and not waiting
    return Estimate(session, client, function, ended, count, seconds, spread, mean * rounds, unpredictable)


def time_left(model: MonitorModel) -> str:
    """About how long the open work takes, in words; empty if there is none, or none can be measured."""
    return in_words(estimates(model))


def in_words(found: Iterable[Estimate]) -> str:
    """About how long this work takes: as long as the longest, or together all workers; empty if nobody can say."""
    found = list(found)
    known = [each for each in found if each.seconds is not None and not each.unpredictable]
    if not known:
        return ""
    others = sum(each.open for each in found if each.unpredictable)
    rest = f", unknown for {counted(others, 'other task')}" if others else ""
    seconds = max(sum(each.share for each in known), *(each.seconds or 0.0 for each in known))
    spread = math.sqrt(sum(each.spread**2 for each in known))
    shortest, longest = _rounded(max(0.0, seconds - spread)), _rounded(seconds + spread)
    if spread > seconds / 4 and shortest != longest:
        return f"about {shortest} to {longest} left{rest}"
    return f"about {_rounded(seconds)} left{rest}"


def _rounded(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 10:
        return duration(math.ceil(seconds)).replace(".0", "")
    if seconds < 90:
        return f"{round(seconds / 5) * 5} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes / 60:.1f} h"
