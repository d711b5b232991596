"""Speculation: a run that takes far longer than its function's other runs gets a second one elsewhere. Pure.

Theory. A run is late when it takes much longer than most runs of its group that have ended (`RunTimes`): its worker may
be slow, or hang. Where the client allows it (its function has no effects), and while nothing waits that an idle worker
could run, the run that is late for longest gets a *second* run on such a worker: of another host if one is idle, of
another agent in any case. The first outcome of user code counts, and the other run is withdrawn.

A second run is a record of its own, in its agent's table of runs only; `Speculation.second_runs` has it by its task:

    its task has ended, or is not wanted            withdrawn: SECOND --> GONE, as the stand-in of the run
    it ended with VALUE or RAISED                   that is the outcome of the task, whose first run is withdrawn
    it failed, was lost or returned                 forgotten: the task goes on, and no attempt is counted
    the first run was lost or returned              it becomes the run of the task

What second runs take is at most SHARE of the time of the group's measured runs, and the longest second run. None is
started while the others are expected to take more than the share; where they do, all but the oldest are withdrawn.

Runs with children get no second one, since their work is that of their children; nor do nodes of graphs, suspects and
exclusive tasks, whose place is chosen otherwise; nor runs of an earlier incarnation of the scheduler. A task that has
lost as many second runs as it may lose runs gets no more: it may be what ends its workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Done, Status
from scaler_protocol.monitoring import EventKind
from scaler_protocol.profiles import profile_at
from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.records import AgentRecord, GroupRecord, TaskRecord
from scaler_scheduler.core.run_times import RunTimes
from scaler_scheduler.core.shares import can_take
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, GONE, SECOND

CHECK_SECONDS = 0.05
"""Shortest interval between searches for late runs."""
LONGEST_CHECK_SECONDS = 1.0
"""Longest one: what was measured meanwhile may make runs late sooner."""
_SHORTEST_SECONDS = 0.001


@dataclass(slots=True, eq=False)
class SpeculatedGroup:
    """The runs of a group that allows second runs."""

    times: RunTimes
    watched: dict[TaskRecord, tuple[int, float]] = field(default_factory=dict)
    """Tasks whose run may get a second one, with the run and the time of its dispatch; the oldest first."""
    second_runs: dict[TaskRecord, float] = field(default_factory=dict)
    """With the times of their dispatch; the oldest first."""

    def committed(self, now: float) -> float:
        """What second runs have taken, and those that go on will probably take."""
        expected = self.times.expected
        return self.times.spent + sum(max(now - began, expected) for began in self.second_runs.values())

    def excess(self, now: float) -> tuple[float, Sequence[TaskRecord]]:
        """Seconds by which second runs take more than they may, and those whose going on adds to that."""
        second_runs, times = list(self.second_runs), self.times
        if not second_runs:
            return -math.inf, ()
        taken = [now - began for began in self.second_runs.values()]
        excess = times.spent + sum(taken) - max(taken[0], times.longest) - times.share
        is_oldest_free = taken[0] >= times.longest  # the longest one does not count, and it is that from now on
        return excess, second_runs[1:] if is_oldest_free else second_runs


class Speculation:
    """Chooses second runs in `choose`, and withdraws them in `limit`; the other methods record what has changed."""

    def __init__(self, state: SchedulerState, end_children: Callable[[TaskRecord, float], None]) -> None:
        self._state = state
        self._end_children = end_children
        self.groups: dict[GroupRecord, SpeculatedGroup] = {}
        """Groups with runs that are watched, or second ones."""
        self.second_runs: dict[TaskRecord, TaskRecord] = {}
        """By task, its second run."""
        self._check_at = self._limit_at = math.inf

    def due(self) -> float:
        """When to look for late runs, or whether second runs exceed their share; counts while there are `groups`."""
        return min(self._check_at, self._limit_at)

    # --- first runs -------------------------------------------------------------------------------------------------

    def started(self, tasks: Iterable[TaskRecord], now: float) -> None:
        """Tasks were dispatched: watch those whose groups allow second runs."""
        for task in tasks:
            if task.group.run_times is not None and (task.extra is None or task.extra.graph is None):
                self._watch(task, now)

    def _watch(self, task: TaskRecord, now: float) -> None:
        group, times = self.groups.get(task.group), task.group.run_times
        if times is None:
            return
        if group is None:
            group = self.groups[task.group] = SpeculatedGroup(times)
        group.watched.pop(task, None)
        group.watched[task] = task.run, now
        self._check_at = min(self._check_at, now + CHECK_SECONDS)

    def measured(self, records: Sequence[TaskRecord | None], report: Done, now: float) -> None:
        """Runs have ended: learn how long they took."""
        for position, record in enumerate(records):
            times = record.group.run_times if record is not None else None
            if record is None or times is None or report.statuses[position] > Status.RAISED:
                continue
            seconds = profile_at(report.profiles, position).duration_us / 1e6
            times.measured(min(seconds, self._state.dispatch_times.longest(report.runs[position], now)))
            group = self.groups.get(record.group)
            if group is not None and record.state == ASSIGNED:
                group.watched.pop(record, None)
                self._forget_if_empty(record.group, group)

    def ended(self, task: TaskRecord, now: float) -> None:
        """A task has ended, or is not wanted: its second run is not wanted either."""
        self.stop(task, now)
        if (group := self.groups.get(task.group)) is not None:
            group.watched.pop(task, None)
            self._forget_if_empty(task.group, group)

    def _forget_if_empty(self, key: GroupRecord, group: SpeculatedGroup) -> None:
        if not group.watched and not group.second_runs:
            del self.groups[key]

    # --- second runs ------------------------------------------------------------------------------------------------

    def stop(self, task: TaskRecord, now: float) -> None:
        """Withdraw the second run of a task, if it has one."""
        if (second := self.second_runs.get(task)) is not None:
            self._take_off(task, second, now)
            self._state.withdraw(second)
            self._end_children(second, now)

    def won(self, second: TaskRecord, now: float) -> TaskRecord:
        """A second run has the outcome of its task; returns the task."""
        task = self._task_of(second)
        self._take_off(task, second, now)
        self._end_children(second, now)
        return task

    def over(self, second: TaskRecord, now: float, *, lost: bool = False) -> None:
        """A second run ended without an outcome, was returned, or was `lost` with its agent, which may come back."""
        task = self._task_of(second)
        notes = task.note()
        notes.lost_second_runs += 1
        if notes.lost_second_runs < self._state.config.lost_run_limit:
            self._watch(task, now)
        self._take_off(task, second, now)
        if lost and second.agent is not None:
            notes.give_up(second.run, second.agent.peer)
        self._end_children(second, now)

    def take_over(self, task: TaskRecord, now: float) -> bool:
        """The run of a task is over without an outcome: its second one, if any, takes its place; returns whether."""
        second = self.second_runs.get(task)
        if second is None or second.agent is None:
            return False
        notes = task.note()
        if notes.exclusive:
            self.stop(task, now)
            return False
        began = self.groups[task.group].second_runs.pop(second)
        del self.second_runs[task]
        agent, second.state = second.agent, GONE
        task.state, task.agent, task.run, task.cost = ASSIGNED, agent, second.run, second.cost
        agent.runs[task.run] = task
        if second.notes is not None:
            notes.children, second.notes.children = second.notes.children, None
        if notes.suspect:
            self._state.suspects.moved(agent, task)
        if self._state.event_log.listening:
            self._state.event_log.assigned(agent, task.run, (task.id,))
        if self._state.recorder is not None:
            self._state.recorder.assigned(agent, task.run, (task.id,))
        self._watch(task, began)
        return True

    def _take_off(self, task: TaskRecord, second: TaskRecord, now: float) -> None:
        """A second run is over: count what it took."""
        del self.second_runs[task]
        second.state = GONE
        group = self.groups[task.group]
        group.times.spend(now - group.second_runs.pop(second))
        self._forget_if_empty(task.group, group)

    def _task_of(self, second: TaskRecord) -> TaskRecord:
        task = self._state.find(second.id)
        assert task is not None, f"the second run of task {second.id:x} has no task"
        return task

    # --- one turn ---------------------------------------------------------------------------------------------------

    def limit(self, now: float) -> None:
        """Withdraw second runs that take more than they may."""
        if now < self._limit_at:
            return
        self._limit_at = math.inf
        for group in list(self.groups.values()):
            excess, growing = group.excess(now)
            if excess >= 0:
                for second in reversed(growing):
                    self.stop(self._task_of(second), now)
            elif growing:
                self._limit_at = min(self._limit_at, now + max(_SHORTEST_SECONDS, -excess / len(growing)))

    def choose(self, now: float) -> Iterator[tuple[AgentRecord, TaskRecord]]:
        """Second runs to start now, with their agents; each is to be started before the next is asked for."""
        if now < self._check_at:
            return
        late = sorted(self._late(now), key=lambda found: found[0])
        self._check_at = now + (CHECK_SECONDS if late else self._quiet_seconds(now))
        idle = self._idle_workers() if late else {}
        for _, task in late:
            group = self.groups[task.group]
            if idle and group.committed(now) <= group.times.share:
                agent = self._place(task, idle)
                if agent is not None:
                    self._limit_at = now + _SHORTEST_SECONDS
                    idle[agent] -= 1
                    if not idle[agent]:
                        del idle[agent]
                    yield agent, self._begin(task, agent, now)

    def _late(self, now: float) -> Iterator[tuple[float, TaskRecord]]:
        """Late runs that may get a second one, with the times of their dispatch; forgets those that are over."""
        for key, group in list(self.groups.items()):
            latest = now - group.times.late_after
            for task, (run, began) in list(group.watched.items()):
                if began > latest:
                    break
                if task.state != ASSIGNED or task.run != run:
                    del group.watched[task]
                elif task not in self.second_runs and _may_run_twice(task):
                    yield began, task
            self._forget_if_empty(key, group)

    def _quiet_seconds(self, now: float) -> float:
        """How long no run will be late, by what is measured now."""
        quiet = LONGEST_CHECK_SECONDS
        for group in self.groups.values():
            if group.watched:
                _, began = next(iter(group.watched.values()))
                quiet = min(quiet, began + group.times.late_after - now)
        return max(CHECK_SECONDS, quiet)

    def _idle_workers(self) -> dict[AgentRecord, int]:
        """Idle workers that no waiting task could have, by agent."""
        waiting = self._state.waiting
        return {
            agent: agent.workers - agent.active
            for agent in self._state.agents.values()
            if agent.active < agent.workers
            and not agent.resuming
            and not is_reserved(agent)
            and not waiting.has_tasks_for(agent.worker_class)
        }

    def _place(self, task: TaskRecord, idle: Iterable[AgentRecord]) -> AgentRecord | None:
        """The agent for a second run: of another host if possible, and the least loaded one."""
        requirement, group, first = task.group.lane.requirement, task.group, task.agent
        functions = [function for function in (group.function, group.serializer) if function is not None]
        able = [
            agent
            for agent in idle
            if agent is not first
            and can_take(agent, requirement)
            and not self._state.waiting.is_wanted(requirement.share_of(agent.worker_class), agent.worker_class)
            and all(function.body is not None or function.id in agent.functions for function in functions)
        ]
        host = first.host if first is not None else ""
        return min(able, key=lambda agent: (agent.host == host, agent.active / agent.workers), default=None)

    def _begin(self, task: TaskRecord, agent: AgentRecord, now: float) -> TaskRecord:
        second = TaskRecord(task.id, task.group, task.call)
        second.state, second.agent = SECOND, agent
        if task.extra is not None:
            more = second.more()
            more.stored, more.inputs = task.extra.stored, dict(task.extra.inputs)
            second.note().earlier_runs = task.attempt - 1
        task.note()  # a task with notes is not forwarded among others: its end withdraws the other run
        self.second_runs[task] = second
        group = self.groups[task.group]
        _, began = group.watched.pop(task)
        group.second_runs[second] = now
        self._state.event_log.add_text(
            logging.INFO,
            EventKind.RUN,
            f"a second run begins on {agent.name or agent.host}: the first takes {now - began:.1f} s, "
            f"most others {group.times.expected:.1f} s",
            task.id,
        )
        return second

    def check(self) -> None:
        """Assert the invariants."""
        of_groups = {second for group in self.groups.values() for second in group.second_runs}
        at_agents = [task for agent in self._state.agents.values() for task in agent.runs.values()]
        assert of_groups == set(self.second_runs.values()) == {record for record in at_agents if record.state == SECOND}
        for second in of_groups:
            task, agent = self._task_of(second), second.agent
            assert task.state == ASSIGNED and self.second_runs[task] is second, f"task {second.id:x} is {task.state}"
            assert agent is not None and agent is not task.agent and agent.runs.get(second.run) is second
        assert all(group.watched or group.second_runs for group in self.groups.values())


def _may_run_twice(task: TaskRecord) -> bool:
    """Whether the run of an assigned task may get a second one."""
    extra, agent = task.extra, task.agent
    if agent is None or task.run in agent.blocked or task.group.lane.calls_missing:
        return False
    if extra is None:
        return True
    if extra.missing_inputs or extra.is_apart:
        return False
    return extra.notes is None or not extra.notes.children
