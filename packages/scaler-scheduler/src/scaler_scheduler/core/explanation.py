"""Explanation: why a task has not ended, by what dispatch would do with the tables as they are. Pure, no IO.

The order of the queue is simulated for each worker class that can run the task: its levels of priority, the turns of
sessions, and the lanes of each, with the same keys as in `scaler_scheduler.core.queue`. Nothing is changed.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from scaler_protocol.limits import shortened
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.plurals import counted
from scaler_protocol.ranges import Text
from scaler_protocol.tracebacks import headline
from scaler_protocol.units import duration
from scaler_protocol.waiting import WaitReasons
from scaler_scheduler.core.event_log import capability_text
from scaler_scheduler.core.pinned import is_pinned
from scaler_scheduler.core.queue import AGEING_SECONDS, QUANTUM
from scaler_scheduler.core.records import LaneRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, DONE, HELD, WAITING
from scaler_scheduler.requirements import describe_runtime

STEPS: Final = 20_000
"""Turns that are simulated at most: about 50 ms."""
NEEDS: Final = 3
"""Missing inputs that are named."""
_SENTENCE: Final = Text(1000)


def why(state: SchedulerState, status: MonitorStatus, task: int, now: float) -> list[str]:
    """Sentences about a task; none if it is not known."""
    record = state.find(task)
    if record is None or record.state == DONE:
        return [shortened(sentence, _SENTENCE) for sentence in _how_ended(state, task, is_known=record is not None)]
    if record.state == WAITING:
        requirement = record.group.lane.requirement
        needs = capability_text(requirement.capabilities)
        runtime = describe_runtime(requirement.runtime) if requirement.runtime else ""
        ahead = sorted(tasks_ahead(state, record).items(), reverse=True)
        said = WaitReasons(status).why_waiting(needs, runtime, ahead)
    elif record.state == HELD:
        said = [_why_held(state, record)]
    elif record.state == ASSIGNED:
        said = [_where(record, now)]
    else:
        said = ["nobody wants it"]
    return [shortened(sentence, _SENTENCE) for sentence in said]


def _how_ended(state: SchedulerState, task: int, *, is_known: bool) -> list[str]:
    """As far as it is remembered: of the last failures."""
    history = state.event_log.history
    if (cause := history.causes.get(task)) is not None:
        return [f"it has ended without a run: task {cause:x}, which it needs, ended without a value"]
    failure = next((each for each in history.failures if each.task == task), None)
    if failure is not None:
        return [f"it has ended without a value: {headline(failure.read())}"]
    kept = "it has ended, and is not among the last failures: its client has the outcome, or will get it"
    return [kept] if is_known else []


def _why_held(state: SchedulerState, record: TaskRecord) -> str:
    extra = record.extra
    if extra is not None and extra.missing_inputs:
        missing = [need for need, value in extra.inputs.items() if value is None]
        named = ", ".join(f"{need:x} {_short_state(state, need)}" for need in islice(missing, NEEDS))
        return f"it is held: it needs the results of {counted(extra.missing_inputs, 'task')}: {named}"
    if record.group.lane.calls_missing:
        return "it is held: the scheduler was started again, and its client must send the call again"
    if extra is not None and extra.is_apart:
        if extra.is_exclusive:
            return "it is held: it has used too much memory, and waits for a host of its own"
        return "it is held: it may have ended a host, and waits for a host that runs no other such task"
    if record in state.pinned:
        return "it is held: the host of the only worker that may run it has not come back since the scheduler's restart"
    return "it is held: its client must send the body of its function"


def _short_state(state: SchedulerState, task: int) -> str:
    record = state.find(task)
    if record is None:
        return "(at the client)"
    words = {WAITING: "(waiting)", HELD: "(held)", ASSIGNED: "(on a host)"}
    return words.get(record.state, "(ended)")


def _where(record: TaskRecord, now: float) -> str:
    agent = record.agent
    if agent is None:
        return "it is on its way to a host"
    name = agent.name or agent.host
    if record.run in agent.blocked and is_pinned(record) and record.run not in agent.running:
        return f"it waits on {name} for the only worker that may run it, whose task waits for tasks of its own"
    if record.run in agent.blocked:
        return f"it runs on {name}, and waits for tasks that it has submitted"
    if record.run in agent.running:
        return f"it runs on {name}, for {duration(now - agent.running[record.run])}"
    return (
        f"it is queued on {name}, which has {counted(len(agent.runs), 'task')} for {counted(agent.workers, 'worker')}"
    )


def tasks_ahead(state: SchedulerState, task: TaskRecord) -> dict[int, int]:
    """By priority, the waiting tasks that dispatch would start before this one if no other task came.

    Of the worker classes that can run it, it is the one with the fewest such tasks.
    """
    lane = task.group.lane
    position = _position(lane, task)
    orders = [_Order(state, lanes).until(lane, position) for lanes in state.waiting.lanes_by_class(lane.requirement)]
    return min(orders, key=lambda counts: sum(counts.values()), default={})


def _position(lane: LaneRecord, task: TaskRecord) -> int:
    """How many tasks of its lane go before this one."""
    ready = sorted(entry for entry in lane.ready if entry[-1].state == WAITING)
    for position, entry in enumerate(ready):
        if entry[-1] is task:
            return position
    before = 0
    for each in lane.tasks:
        if isinstance(each, TaskRecord):
            if each is task:
                break
            before += each.state == WAITING
        elif each.records is None:
            before += len(each)
        else:
            among = [waiting for waiting in each.records if waiting.state == WAITING]
            if task in among:
                before += among.index(task)
                break
            before += len(among)
    return before + len(ready)


class _Order:
    """A copy of the keys of one class's queue, which turns can be taken from."""

    def __init__(self, state: SchedulerState, lanes: list[LaneRecord]) -> None:
        self._horizon = state.config.horizon_seconds
        self._left = {lane: lane.size - lane.tombstones for lane in lanes}
        self._served: dict[SessionRecord, float] = {}
        by_level: dict[int, dict[SessionRecord, list[tuple[int, int, int, LaneRecord]]]] = {}
        for lane in lanes:
            sessions = by_level.setdefault(lane.priority, defaultdict(list))
            heapq.heappush(sessions[lane.session], (-lane.depth, lane.first.id, id(lane), lane))
            self._served[lane.session] = lane.session.served
        self._lanes = by_level
        self._turns = {priority: [_turn(each, each.served) for each in level] for priority, level in by_level.items()}
        for turns in self._turns.values():
            heapq.heapify(turns)

    def until(self, wanted: LaneRecord, position: int) -> dict[int, int]:
        """The tasks, by priority, that are taken before the one at this position of a lane; at most STEPS turns."""
        ahead: dict[int, int] = defaultdict(int)
        for lane in islice(self._next(), STEPS):
            taken = self._take(lane)
            if lane is wanted:
                if taken > position:
                    ahead[lane.priority] += position
                    break
                position -= taken
            ahead[lane.priority] += taken
        return {priority: count for priority, count in ahead.items() if count}

    def _next(self) -> Iterator[LaneRecord]:
        while True:
            lanes = [lane for priority in self._turns if (lane := self._first(priority)) is not None]
            if not lanes:
                return
            yield min(lanes, key=self._key)

    def _key(self, lane: LaneRecord) -> float:
        return lane.ages.when(lane.size, lane.size - self._left[lane]) - AGEING_SECONDS * lane.priority

    def _first(self, priority: int) -> LaneRecord | None:
        turns, level = self._turns[priority], self._lanes[priority]
        while turns:
            served, _, _, session = turns[0]
            lanes = level[session]
            while lanes and not self._left[lanes[0][-1]]:
                heapq.heappop(lanes)
            if not lanes:
                heapq.heappop(turns)
            elif served != self._served[session]:
                heapq.heapreplace(turns, _turn(session, self._served[session]))
            else:
                return lanes[0][-1]
        return None

    def _take(self, lane: LaneRecord) -> int:
        """Take one turn of a lane: about what an idle worker is given."""
        seconds = lane.first.group.function.seconds
        cost = self._horizon if seconds is None else max(1e-6, seconds)
        count = min(self._left[lane], QUANTUM, max(1, int(self._horizon / cost)))
        self._left[lane] -= count
        session = lane.session
        self._served[session] += count * cost * max(1, session.share.waiting)
        return count


def _turn(session: SessionRecord, served: float) -> tuple[float, int, int, SessionRecord]:
    return served, session.number, id(session), session
