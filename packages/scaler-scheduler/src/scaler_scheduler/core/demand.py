"""Demand: the unfinished tasks of each requirement, and how long they will take. Pure, no IO.

Counts are exact. The time of waiting tasks is their number times the mean duration of a sample from both ends of their
lane: the front of a lane is new in every snapshot, so an error of the sample does not last.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.core.records import AgentRecord, GroupRecord, LaneRecord, TaskBlock, TaskRecord
from scaler_scheduler.core.task_states import HELD
from scaler_scheduler.requirements import Requirement
from scaler_scheduler.scaling.capacity import Demand

SAMPLE = 256
"""Tasks looked at from each end of a lane."""


@dataclass(slots=True)
class _Count:
    tasks: int = 0
    seconds: float = 0.0
    unmeasured: int = 0
    elapsed: float = 0.0
    running: int = 0
    running_seconds: float = 0.0


class DemandCounter:
    """Counts the demand; remembers since when each run has been on a worker."""

    def __init__(self) -> None:
        self._running_since: dict[int, float] = {}

    def count(
        self, lanes: Iterable[LaneRecord], apart: Iterable[TaskRecord], agents: Iterable[AgentRecord], now: float
    ) -> tuple[Demand, ...]:
        """The demand of waiting tasks and of the runs of agents at `now`, in seconds.

        `apart` are the suspects and exclusive tasks that wait for an agent, which are in no lane.
        """
        counts: dict[Requirement, _Count] = {}
        for lane in lanes:
            if (waiting := lane.size - lane.tombstones) > 0:
                _add_lane(counts.setdefault(lane.requirement, _Count()), lane, waiting)
        for task in apart:
            if task.state == HELD:
                _add_waiting(counts.setdefault(task.group.lane.requirement, _Count()), task.group)
        running_since: dict[int, float] = {}
        for agent in agents:
            on_workers = agent.on_workers() if len(agent.runs) > agent.workers else agent.runs.keys()
            for run, task in agent.runs.items():
                count = counts.setdefault(task.group.lane.requirement, _Count())
                if run in agent.blocked or (agent.is_draining and run in agent.running):
                    continue  # it waits for nested tasks, which count themselves; or it needs no other worker
                if run in on_workers:
                    since = running_since[run] = self._running_since.get(run, now)
                    _add_running(count, task, now - since)
                else:
                    _add_waiting(count, task.group)
        self._running_since = running_since
        return tuple(
            Demand(
                requirement=requirement,
                tasks=count.tasks,
                seconds=count.seconds,
                unmeasured=count.unmeasured,
                elapsed=count.elapsed,
                running=count.running,
                running_seconds=count.running_seconds,
            )
            for requirement, count in counts.items()
            if count.tasks or count.running
        )


def _add_lane(count: _Count, lane: LaneRecord, waiting: int) -> None:
    sampled = _Count()
    ready = (entry[-1] for entry in islice(lane.ready, SAMPLE))
    if len(lane.tasks) <= 2 * SAMPLE:
        sample: Iterable[TaskRecord | TaskBlock] = lane.tasks
    else:
        sample = chain(islice(lane.tasks, SAMPLE), islice(reversed(lane.tasks), SAMPLE))
    for entry in chain(ready, sample):
        _add_waiting(sampled, entry.group, len(entry) if isinstance(entry, TaskBlock) else 1)
    if sampled.tasks:
        share = waiting / sampled.tasks
        unmeasured = round(sampled.unmeasured * share)
        count.tasks += waiting
        count.seconds += sampled.seconds * share
        count.unmeasured += min(unmeasured, waiting)


def _add_waiting(count: _Count, group: GroupRecord, tasks: int = 1) -> None:
    count.tasks += tasks
    seconds = group.function.seconds
    if seconds is None:
        count.unmeasured += tasks
    else:
        count.seconds += tasks * seconds


def _add_running(count: _Count, task: TaskRecord, elapsed: float) -> None:
    count.running += 1
    seconds = task.group.function.seconds
    if seconds is None:
        count.elapsed = max(count.elapsed, elapsed)
        count.running_seconds += elapsed / 2
    else:
        count.running_seconds += max(seconds - elapsed, elapsed / 2)
