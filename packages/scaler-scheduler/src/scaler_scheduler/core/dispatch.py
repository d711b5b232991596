"""Dispatch: which agent gets which waiting task.

An agent is given measured work for `horizon_seconds` per worker and, for tasks of at most BEHIND_SECONDS, one more task
to queue behind each running one; of longer ones some ahead while the scheduler is busy (`scaler_protocol.coalescing`);
at most its queue size, and at most its window, which doubles as results come back (slow start). Chains, suspects,
exclusive, nested and pinned tasks may exceed the window. So a worker is not idle while a message travels, and little
work queues behind a task that turns out to be slow. Tasks go to the least loaded agent of a worker class (`even_load`);
the policy `capability` serves classes with few capabilities first, so that workers with rare capabilities stay free for
tasks that need them. Idle workers of all classes come first, then more is queued behind runs. What is
queued may be recalled (`scaler_scheduler.core.balance`).

A turn first plans which agent gets which tasks, moves planned tasks to where their inputs are
(`scaler_scheduler.core.locality`), and then starts the runs: run ids are made once, consecutive for each agent.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from scaler_protocol.coalescing import most_ahead, pressure, tasks_ahead, tasks_together
from scaler_protocol.errors import NoWorkerError
from scaler_protocol.messages import NeedFunctions, Recall
from scaler_protocol.monitoring import EventKind
from scaler_scheduler.core.balance import SHORTEST_SECONDS, Balance
from scaler_scheduler.core.chains import with_followers
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.exclusive import is_reserved
from scaler_scheduler.core.foreign_runtimes import ForeignRuntimes
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.queue import QUANTUM, ClassQueue
from scaler_scheduler.core.records import AgentRecord, GroupRecord, LaneRecord, TaskRecord
from scaler_scheduler.core.run_messages import functions_of, message_parts, names_released, run_columns, run_message
from scaler_scheduler.core.shares import note_runs, room_for
from scaler_scheduler.core.short_agents import Entry, ShortAgents
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, HELD, WAITING
from scaler_scheduler.requirements import Requirement, WorkerClass, describe_runtime, is_met_by_offer

BEHIND_SECONDS = 0.05
"""Tasks up to this long may queue behind a running one, so that the worker never waits for its next task."""
WITHOUT_GRANT = 4
"""So many tasks per worker are dispatched although the client has no credit for their long results: enough to keep
workers busy, few enough that the next ones may find credit."""
AHEAD_RUNS = 8
"""Agents with so many runs per worker are sent no nodes ahead of their inputs: they have work while these travel, and
another agent may get the nodes."""
_STALE_ENTRIES = 64

Plan = dict[AgentRecord, list[TaskRecord]]
"""Tasks chosen for agents in this turn, which have no run yet. `AgentRecord.load` includes them."""


class Dispatch:
    """Decides in `assign` and `speculate`; the other methods record what has changed."""

    def __init__(self, state: SchedulerState, completion: Completion) -> None:
        self._state = state
        self._completion = completion
        self._agents_with_room: dict[WorkerClass, list[Entry]] = {}
        """By class, a heap; the least loaded first."""
        self._short = ShortAgents(state, self._agents_with_room)
        self._agent_counts: dict[WorkerClass, int] = {}
        self._foreign = ForeignRuntimes()
        self._pushes = 0
        self._classes_changed = False
        self._pressure = 0.0
        """How much is dispatched ahead: see `scaler_protocol.coalescing`."""
        self.balance = Balance(state)

    def joined(self, agent: AgentRecord, now: float) -> None:
        """An agent has connected and can be given work."""
        worker_class = agent.worker_class
        self._foreign.joined(worker_class.runtime)
        self._agent_counts[worker_class] = self._agent_counts.get(worker_class, 0) + 1
        if worker_class not in self._agents_with_room:
            self._agents_with_room[worker_class] = []
            self._state.waiting.add_class(worker_class)
            self._classes_changed = True
        agent.window = agent.workers
        self._state.locality.joined(agent)
        self._state.with_room[agent] = None

    def left(self, agent: AgentRecord) -> None:
        """An agent is gone."""
        self._state.locality.left(agent)
        self._state.with_room.pop(agent, None)
        self._state.with_other_runs.pop(agent, None)
        self._state.withdrawn.pop(agent, None)
        self.balance.left(agent)
        agent.entry_version = -1
        worker_class = agent.worker_class
        self._short.left(agent)
        self._agent_counts[worker_class] -= 1
        if not self._agent_counts[worker_class]:
            del self._agent_counts[worker_class], self._agents_with_room[worker_class]
            self._short.class_left(worker_class)
            self._state.waiting.remove_class(worker_class)
            self._classes_changed = True

    def note_busy(self, share: float) -> None:
        """The scheduler is busy for this share of its time: more tasks are dispatched ahead, or fewer."""
        self._pressure = pressure(share)
        self._state.outcomes_wait = self._pressure > 0.0

    def queue_defined(self, functions: Iterable[FunctionRecord], now: float) -> None:
        """The bytes of these functions have arrived: queue the tasks that were HELD for them."""
        for function in functions:
            waiting, function.waiting_tasks = function.waiting_tasks, {}
            for number, tasks in waiting.items():
                session = self._state.sessions[number]
                session.missing_functions.discard(function)
                found = [task for task in map(session.find, tasks) if task is not None and task.state == HELD]
                self._state.queue(found, now)

    def check_eligible(self, lane: LaneRecord, now: float) -> None:
        """Tasks were added to a lane: if no connected worker can run them, log it once, and doubt their Python."""
        requirement = lane.requirement
        if lane.listed or not self._agent_counts or self._may_be_served(requirement):
            return
        self._log_unserved(requirement)
        if self._foreign.is_foreign(requirement.runtime):
            self._foreign.doubt(lane, now)

    def fail_foreign(self, now: float) -> None:
        """Fail tasks whose Python no worker has had, unless a worker manager can start one."""
        for lane in self._foreign.take_due(now):
            requirement = lane.requirement
            if not self._agent_counts or self._may_be_served(requirement):
                continue
            there = ", ".join(sorted({describe_runtime(worker_class.runtime) for worker_class in self._agent_counts}))
            error = NoWorkerError(f"the client has {describe_runtime(requirement.runtime)}, the workers have {there}")
            for task in lane.records():
                if task.state == WAITING:
                    self._completion.fail(task, error, now)

    def _may_be_served(self, requirement: Requirement) -> bool:
        """Whether a worker can run these tasks, or a worker manager can start one that can."""
        if self._state.waiting.can_be_served(requirement):
            return True
        return any(is_met_by_offer(requirement, worker_class) for worker_class in self._state.offered)

    def _log_unserved(self, requirement: Requirement) -> None:
        if self._state.waiting.report_once(requirement):
            nearest = min((requirement.unmet_by(worker_class) for worker_class in self._agent_counts), key=len)
            self._state.log(
                f"no connected worker offers {', '.join(nearest)}: tasks that need it wait",
                EventKind.SCHEDULER,
                logging.WARNING,
            )

    # --- one turn ---------------------------------------------------------------------------------------------------

    def assign(self) -> None:
        """Start waiting tasks on agents with room."""
        if self._classes_changed and self._agent_counts:
            self._classes_changed = False
            for requirement in self._state.waiting.unserved():
                if not self._may_be_served(requirement):
                    self._log_unserved(requirement)
        for agent in self._state.with_room:
            if agent.workers and not agent.resuming and not is_reserved(agent):
                agent.entry_version += 1
                self._list_room(agent, agent.active)
        self.balance.changed(self._state.with_room)
        self._start_pinned()
        self._start_exclusive()
        self._start_suspects()
        self._start_nested()
        self._state.with_room.clear()
        if not self._state.waiting.count:
            return
        plan = self._filled()
        for agent, tasks in self._state.locality.improve(plan).items():
            self._replan(agent, tasks, plan)
        self._state.locality.add_transfers(plan)
        for agent, tasks in plan.items():
            self._start(agent, tasks)

    def _filled(self) -> Plan:
        """Plan tasks for all agents with room."""
        plan: Plan = {}
        self._short.changed()
        while True:
            worker_classes = self._class_order()
            if len(worker_classes) > 1:
                for worker_class in worker_classes:
                    self._fill(worker_class, plan, idle_only=True)
            for worker_class in worker_classes:
                self._fill(worker_class, plan)
            if not self._short.is_outdated():
                return plan

    def _start_pinned(self) -> None:
        """Tasks of one worker go to its agent at once, or fail."""
        state = self._state
        while state.pinned:
            to_send, failing = state.pinned.take(state.agent_of, recovering=self._completion.is_recovering)
            for agent, tasks in to_send.items():
                for task in tasks:  # each may be of another root session
                    self._add_load(agent, [task])
                self._start(agent, tasks)
            for task, error in failing:
                self._completion.fail(task, error, state.event_log.now)
            if not (to_send or failing):
                return

    def _start_exclusive(self) -> None:
        """Exclusive tasks go to the agents that were reserved for them, once these are empty."""
        for agent in self._state.exclusive.reserve(self._state.agents.values()):
            agent.entry_version += 1  # it is given nothing else
            self.balance.changed((agent,))
            if (queued := agent.active - agent.workers) > 0 and not agent.recalling:
                agent.recalling = True
                self._state.send(agent.peer, Recall(queued))
        for agent, task in self._state.exclusive.assign():
            self._add_load(agent, [task])
            self._start(agent, [task])

    def _start_suspects(self) -> None:
        """Suspects go first, and stay on the agents that were chosen to keep them apart."""
        agents, changed = self._state.agents.values(), bool(self._state.with_room)
        for agent, task in self._state.suspects.assign(agents, changed=changed):
            tasks = with_followers([task], _room_ahead(agent, agent.active + 1, task.group.lane))
            self._add_load(agent, tasks)
            self._start(agent, tasks)

    def _start_nested(self) -> None:
        """Tasks of parents that run outside of their agent's host go there at once, whatever waits there already.

        The scheduler does not hear that such a parent waits for them, so the agent seems to have no room. It starts
        the deepest tasks first.
        """
        lanes, self._state.nested_lanes = self._state.nested_lanes, {}
        for lane in lanes:
            agent = lane.agent
            if agent is None or agent.peer not in self._state.agents or not agent.workers or agent.resuming:
                continue
            requirement = lane.requirement
            if requirement.unmet_by(agent.worker_class) or requirement.share_of(agent.worker_class):
                continue
            if tasks := self._state.waiting.take_all(lane):
                self._add_load(agent, tasks)
                self._start(agent, tasks)

    def _class_order(self) -> list[WorkerClass]:
        worker_classes = list(self._agents_with_room)
        if self._state.config.allocate_policy == "capability":
            worker_classes.sort(key=lambda worker_class: len(worker_class.capabilities))
        return worker_classes

    def _list_room(self, agent: AgentRecord, active: int) -> None:
        """List an agent among those with room if it may have some, with `active` tasks; it has no valid entry now."""
        workers = agent.workers
        if active >= workers + most_ahead(self._pressure, workers):
            longest = self._state.config.horizon_seconds + BEHIND_SECONDS
            if agent.load >= workers * longest or active >= min(agent.window, workers * agent.queue_size):
                return  # as `_room` would find, whichever lane is next
        self._pushes += 1
        heap = self._agents_with_room[agent.worker_class]
        heapq.heappush(heap, (active / workers, self._pushes, agent.entry_version, agent))
        # Under light load nothing pops stale entries.
        if len(heap) > _STALE_ENTRIES and len(heap) > _STALE_ENTRIES + 2 * self._agent_counts[agent.worker_class]:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].entry_version]
            heapq.heapify(heap)

    def _fill(self, worker_class: WorkerClass, plan: Plan, *, idle_only: bool = False) -> None:
        """Plan tasks for the agents of a class, or for their idle workers only, the least loaded first, until tasks or
        room run out."""
        heap, waiting = self._agents_with_room[worker_class], self._state.waiting
        queue, agents = waiting.of_class(worker_class), self._agent_counts[worker_class]
        if parts := waiting.parts_of(worker_class):
            self._short.reconsider(worker_class, parts)
        while waiting.count and (agent := _least_loaded(heap)) is not None:
            active = agent.active + len(plan.get(agent, ()))
            share = agent.workers - active if idle_only else max(agent.workers, waiting.count // agents)
            if share <= 0:
                return
            if (part := self._short.part_for(agent, parts) if parts else queue) is None:
                continue
            if (lane := part.next()) is None:
                return
            heapq.heappop(heap)
            if not idle_only:
                share = max(share, self._together(agent, lane))
            if not (tasks := self._take(agent, active, part, lane, share, one_lane=bool(parts))):
                continue
            if parts and _shares(agent, tasks[0].group.lane):  # what is left is counted by runs
                self._start(agent, tasks)
            else:
                plan.setdefault(agent, []).extend(tasks)
            self._list_room(agent, active + len(tasks))
            if parts:
                self._short.reconsider(worker_class, parts)

    def _together(self, agent: AgentRecord, lane: LaneRecord) -> int:
        """How many tasks of this lane the agent is given at least, even if others get none."""
        seconds = lane.first.group.function.seconds
        return 0 if seconds is None else tasks_together(self._pressure, seconds, agent.workers)

    def _take(
        self, agent: AgentRecord, active: int, queue: ClassQueue, lane: LaneRecord | None, most: int, *, one_lane: bool
    ) -> list[TaskRecord]:
        """Tasks for an agent with `active` ones, from this lane, which is next, and those after it.

        At most `most`, and QUANTUM if they are of several lanes.
        """
        tasks: list[TaskRecord] = []
        while lane is not None and (room := self._room(agent, active + len(tasks), lane)) > 0:
            limit = min(room, most - len(tasks))
            taken = self._state.waiting.take(queue, lane, limit, one_lane=one_lane)
            followed = with_followers(taken, _room_ahead(agent, active + len(tasks) + len(taken), lane))
            self._add_load(agent, followed)
            tasks += followed
            most = min(most, QUANTUM)
            if one_lane or len(taken) >= limit or len(tasks) >= most:
                break
            lane = queue.next()
        return tasks

    def _room(self, agent: AgentRecord, active: int, lane: LaneRecord) -> int:
        """How many tasks of this lane the agent, which has `active` ones, should be given now."""
        most = min(agent.window, agent.workers * agent.queue_size) - active
        idle = agent.workers - active
        if agent.consumables is not None and (left := room_for(agent, lane.requirement)) is not None:
            most, idle = min(most, left), min(idle, left)
        if most <= 0:
            return max(0, idle)
        horizon = self._state.config.horizon_seconds
        seconds = lane.first.group.function.seconds
        if seconds is not None and seconds > BEHIND_SECONDS:
            idle = min(most, idle + tasks_ahead(self._pressure, seconds, agent.workers))
        if (granted := self._granted(agent, lane)) is not None:
            planned = active - agent.active
            most = min(most, max(granted - planned, WITHOUT_GRANT * agent.workers - active, 0))
        newest = next(reversed(agent.runs.values()), None)
        # What the agent has been given counts, too: otherwise tasks that others went before would find no room.
        durations = (seconds, newest.group.function.seconds if newest is not None else None)
        behind = max((each for each in durations if each is not None and each <= BEHIND_SECONDS), default=0.0)
        budget = agent.workers * (horizon + behind) - agent.load
        if budget <= 0:
            return max(0, idle)
        return min(most, max(idle, math.ceil(budget / max(SHORTEST_SECONDS, horizon if seconds is None else seconds))))

    def _granted(self, agent: AgentRecord, lane: LaneRecord) -> int | None:
        """How many tasks of this lane would be granted long results; None if that does not limit what is dispatched.

        It does not where no grants are made, nor while other lanes have tasks, which would wait behind this one.
        """
        if self._state.recorder is not None or agent.relay_incarnation or lane.size < self._state.waiting.count:
            return None
        return self._state.long_results.room(lane.first.group)

    def _add_load(self, agent: AgentRecord, tasks: Sequence[TaskRecord]) -> None:
        """Count what these tasks, which are of one root session, will take of the agent, and of the session's share."""
        horizon, load = self._state.config.horizon_seconds, 0.0
        for task in tasks:
            seconds = task.group.function.seconds
            task.cost = cost = horizon if seconds is None else seconds
            load += cost
        agent.load += load
        tasks[0].group.lane.session.account(max(load, SHORTEST_SECONDS * len(tasks)))

    def _replan(self, agent: AgentRecord, tasks: list[TaskRecord], plan: Plan) -> None:
        """Plan these tasks for an agent instead of those that it had; its capacity is listed again in the next turn."""
        before = sum(task.cost for task in plan.get(agent, ()))
        after = sum(task.cost for task in tasks)
        agent.load = max(0.0, agent.load - before + after) if tasks or agent.runs else 0.0
        plan[agent] = tasks
        self._state.with_room[agent] = None

    def _start(self, agent: AgentRecord, tasks: list[TaskRecord]) -> None:
        """Make a run of each task, and send them in messages of bounded size."""
        groups = {task.group for task in tasks}
        if _undefined(agent, groups):
            tasks = self._hold_undefined(agent, tasks)
        first, runs = self._state.new_runs(len(tasks)), agent.runs
        for run, task in enumerate(tasks, first):
            task.state, task.agent, task.run = ASSIGNED, agent, run
            runs[run] = task
        if agent.consumables is not None:
            note_runs(agent, tasks)
            self._short.changed()
        agent.progressed = True
        self.balance.changed((agent,))
        for group in groups:
            if group.run_times is not None:
                self._completion.speculation.started(tasks, self._state.event_log.now)
                break
        for part, columns in message_parts(tasks):
            ids = [task.id for task in part]
            if self._state.event_log.listening:
                self._state.event_log.assigned(agent, part[0].run, ids)
            if self._state.recorder is not None:
                self._state.recorder.assigned(agent, part[0].run, ids)
            self._send_run(agent, part, ids, columns)

    def _hold_undefined(self, agent: AgentRecord, tasks: list[TaskRecord]) -> list[TaskRecord]:
        """Hold tasks with functions whose bytes neither the agent nor the scheduler has; returns the other tasks."""
        ready: list[TaskRecord] = []
        held: list[TaskRecord] = []
        for task in tasks:
            undefined = _undefined(agent, (task.group,))
            if not undefined:
                ready.append(task)
                continue
            held.append(task)
            task.state = HELD
            task.group.lane.session.account(-task.cost)
            session = task.group.session
            for function in undefined:
                if session.number not in function.waiting_tasks:
                    self._state.send(session.peer, NeedFunctions((function.id,), session.number))
                    session.missing_functions.add(function)
                function.waiting_tasks.setdefault(session.number, {})[task.id] = None
        cost = sum(task.cost for task in held)
        agent.load = max(0.0, agent.load - cost) if ready or agent.runs else 0.0
        self._state.with_room[agent] = None
        if self._state.event_log.listening:
            self._state.event_log.entered(HELD, held)
        return ready

    def _send_run(self, agent: AgentRecord, tasks: list[TaskRecord], ids: list[int], columns: dict[str, Any]) -> None:
        """Send tasks with consecutive runs as one message, after the agent has forgotten their old outcomes."""
        if names_released(agent, ids, columns["needs"]):
            self._state.send_released(agent)
        granted = () if self._state.recorder is not None else self._state.long_results.grant(agent, tasks)
        self._state.send(agent.peer, run_message(agent, tasks, ids, columns, granted))

    def speculate(self, now: float) -> None:
        """Start second runs of late ones on idle workers; monitors and journals know the first ones only."""
        for agent, second in self._completion.speculation.choose(now):
            self._add_load(agent, [second])
            second.run = self._state.new_runs(1)
            agent.runs[second.run] = second
            self._state.with_other_runs[agent] = None
            note_runs(agent, [second])
            agent.progressed = True
            self._state.with_room[agent] = None
            self._send_run(agent, [second], [second.id], run_columns([second]))

    def due(self) -> float | None:
        """When loads should be compared again, or tasks fail."""
        return min((due for due in (self._foreign.due(), self.balance.due()) if due is not None), default=None)


def _least_loaded(heap: list[Entry]) -> AgentRecord | None:
    """The first agent with room; drops entries that are not valid any more."""
    while heap:
        _, _, entry_version, agent = heap[0]
        if entry_version == agent.entry_version:
            return agent
        heapq.heappop(heap)
    return None


def _room_ahead(agent: AgentRecord, active: int, lane: LaneRecord) -> int:
    """How many nodes an agent with so many runs may be sent ahead of their inputs; a relay is sent none.

    Nor are such sent that take consumables: an agent has no more runs of these than it has enough for.
    """
    if agent.relay_incarnation or _shares(agent, lane):
        return 0
    return agent.workers * agent.queue_size - active if active < AHEAD_RUNS * agent.workers else 0


def _shares(agent: AgentRecord, lane: LaneRecord) -> bool:
    """Whether runs of this lane take consumables of the agent."""
    return agent.consumables is not None and bool(lane.requirement.share_of(agent.worker_class))


def _undefined(agent: AgentRecord, groups: Collection[GroupRecord]) -> list[FunctionRecord]:
    """The functions of groups whose bytes neither the agent nor the scheduler has."""
    return [
        function for function in functions_of(groups) if function.body is None and function.id not in agent.functions
    ]
