"""Dispatch: which agent gets which waiting task, and who gives some back.

An agent is given measured work for `horizon_seconds` per worker and, where tasks take no more than BEHIND_SECONDS, one
more to stand behind each; at most its queue size, and never more than its window, which doubles as results come back
(slow start): a worker is not idle while a message travels, and nothing waits long behind a task that turns out slow.
Tasks go to the least loaded
agent of a class (`even_load`); the policy `capability` serves classes with few capabilities first, so that the rare
ones stay free for tasks that need them. When nothing waits any more and some agent has idle workers, the one with
most work is asked for part of it.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Iterable

from scaler_protocol.errors import NoWorkerError
from scaler_protocol.limits import HELD_FUNCTIONS
from scaler_protocol.messages import MESSAGE_LIMIT, NeedFunctions, Recall, Run, Withdraw
from scaler_protocol.payloads import NONE, Payloads
from scaler_scheduler.core.chains import with_followers
from scaler_scheduler.core.completion import Outcomes
from scaler_scheduler.core.functions import FunctionRecord
from scaler_scheduler.core.records import (
    ASSIGNED,
    HELD,
    WAITING,
    AgentRecord,
    GroupRecord,
    LaneRecord,
    Offer,
    Requirement,
    TaskRecord,
    describe_runtime,
)
from scaler_scheduler.core.state import SchedulerState

RECALL_SECONDS = 0.005
"""An agent's queue is left alone if it holds less work than this per worker: fetching it costs more."""
BEHIND_SECONDS = 0.05
"""Tasks up to this long may stand one behind the other at a worker, so that it never waits for the next."""
REBALANCE_SECONDS = 0.01
"""How often the loads of agents are compared."""
_RUN_TASKS = 4096
_SHORTEST = 2e-6
_VOID_ENTRIES = 64


class Dispatch:
    """Decides in `assign` and `rebalance`; everything else tells it what has changed."""

    def __init__(self, state: SchedulerState, outcomes: Outcomes) -> None:
        self._state = state
        self._outcomes = outcomes
        self._rooms: dict[Offer, list[tuple[float, int, int, AgentRecord]]] = {}
        self._members: dict[Offer, int] = {}
        self._pushes = 0
        self._offers_changed = False
        self._rebalance_at = 0.0
        self._wanting = False

    def joined(self, agent: AgentRecord, now: float) -> None:
        """An agent can be given work."""
        offer = agent.offer
        self._members[offer] = self._members.get(offer, 0) + 1
        if offer not in self._rooms:
            self._rooms[offer] = []
            self._state.waiting.add_offer(offer)
            self._offers_changed = True
        agent.window = agent.workers
        self._state.locality.joined(agent)
        self._state.freed[agent] = None

    def left(self, agent: AgentRecord) -> None:
        """An agent is gone."""
        self._state.locality.left(agent)
        self._state.freed.pop(agent, None)
        self._state.withdrawn.pop(agent, None)
        agent.ticket = -1
        offer = agent.offer
        self._members[offer] -= 1
        if not self._members[offer]:
            del self._members[offer], self._rooms[offer]
            self._state.waiting.remove_offer(offer)
            self._offers_changed = True

    def defined(self, functions: Iterable[FunctionRecord], now: float) -> None:
        """The bytes of these functions have come: tasks that were held for them wait again."""
        for function in functions:
            held, function.held = function.held, {}
            for session, tasks in held.items():
                session.lacking.discard(function)
                self._state.queue([task for task in tasks if task.state == HELD], now)

    def check_eligible(self, lane: LaneRecord, now: float) -> None:
        """Tasks were added to a lane: where no connected worker can take them, say so once, or fail them."""
        requirement = lane.requirement
        if not self._members or self._state.waiting.can_be_served(requirement):
            return
        if requirement.runtime and all(offer.runtime != requirement.runtime for offer in self._members):
            there = ", ".join(sorted({describe_runtime(offer.runtime) for offer in self._members}))
            error = NoWorkerError(f"the client has {describe_runtime(requirement.runtime)}, the workers have {there}")
            for task in [*lane.tasks, *(entry[-1] for entry in lane.ready)]:
                if task.state == WAITING:
                    self._outcomes.fail(task, error, now)
        else:
            self._tell_unserved(requirement)

    def _tell_unserved(self, requirement: Requirement) -> None:
        if self._state.waiting.is_news(requirement):
            nearest = min((requirement.lacking(offer) for offer in self._members), key=len)
            self._state.log(
                f"no connected worker offers {', '.join(nearest)}: tasks that need it wait", logging.WARNING
            )

    def assign(self, now: float) -> None:
        """Give waiting tasks to agents with room."""
        if self._offers_changed and self._members:
            self._offers_changed = False
            for requirement in self._state.waiting.unserved():
                self._tell_unserved(requirement)
        for agent in self._state.freed:
            if agent.workers and not agent.resuming:
                self._offer_room(agent)
        for agent, task in self._state.suspects.place(self._state.agents.values(), changed=bool(self._state.freed)):
            tasks = with_followers([task], agent.workers * agent.queue_size - agent.active - 1)
            self._assign(agent, tasks)
            self._run(agent, tasks, now)
        self._state.freed.clear()
        if not self._state.waiting.count:
            return
        given: dict[AgentRecord, list[TaskRecord]] = {}
        for offer in self._order():
            self._fill(offer, given, now)
        self._bring_home(given)
        for agent, tasks in given.items():
            self._run(agent, tasks, now)

    def _bring_home(self, given: dict[AgentRecord, list[TaskRecord]]) -> None:
        """Change who gets which of these tasks, so that inputs travel less."""
        locality = self._state.locality
        changed = locality.improve(given)
        for agent in changed:
            for task in given[agent]:
                self._state.leave_agent(task)
        for agent in changed:
            self._assign(agent, given[agent])
        locality.needed(given)

    def _order(self) -> list[Offer]:
        offers = list(self._rooms)
        if self._state.config.allocate_policy == "capability":
            offers.sort(key=lambda offer: len(offer.capabilities))
        return offers

    def _offer_room(self, agent: AgentRecord) -> None:
        """List an agent among those with room, at its present load; earlier entries become void."""
        agent.ticket += 1
        self._pushes += 1
        heap = self._rooms[agent.offer]
        heapq.heappush(heap, (agent.active / agent.workers, self._pushes, agent.ticket, agent))
        if len(heap) > _VOID_ENTRIES + 2 * self._members[agent.offer]:  # under light load nobody pops void entries
            heap[:] = [entry for entry in heap if entry[2] == entry[3].ticket]
            heapq.heapify(heap)

    def _fill(self, offer: Offer, given: dict[AgentRecord, list[TaskRecord]], now: float) -> None:
        heap = self._rooms[offer]
        while heap and self._state.waiting.count:
            _, _, ticket, agent = heap[0]
            if ticket != agent.ticket:
                heapq.heappop(heap)
                continue
            share = max(agent.workers, self._state.waiting.count // self._members[offer])
            room: int | None = None

            def limit(lane: LaneRecord, agent: AgentRecord = agent, share: int = share) -> int:
                nonlocal room
                room = min(share, self._room(agent, lane))
                return room

            taken = self._state.waiting.take(offer, limit, now)
            if taken:
                ready = len(taken)
                taken = with_followers(taken, agent.workers * agent.queue_size - agent.active - ready)
                taken[0].group.lane.session.served += len(taken) - ready
                self._assign(agent, taken)
                given.setdefault(agent, []).extend(taken)
            elif room is None:
                return  # nobody was asked: there are no tasks for this class
            heapq.heappop(heap)
            if taken:
                self._offer_room(agent)

    def _room(self, agent: AgentRecord, lane: LaneRecord) -> int:
        """How many tasks of this lane the agent should be given now."""
        active = agent.active
        most = min(agent.window, agent.workers * agent.queue_size) - active
        idle = agent.workers - active
        if most <= 0:
            return max(0, idle)
        horizon = self._state.config.horizon_seconds
        seconds = lane.first.group.function.seconds
        behind = seconds if seconds is not None and seconds <= BEHIND_SECONDS else 0.0
        budget = agent.workers * (horizon + behind) - agent.load
        if budget <= 0:
            return max(0, idle)
        return min(most, max(idle, math.ceil(budget / max(_SHORTEST, horizon if seconds is None else seconds))))

    def _assign(self, agent: AgentRecord, tasks: list[TaskRecord]) -> None:
        run, runs, load = self._state.next_run, agent.runs, 0.0
        horizon = self._state.config.horizon_seconds
        for task in tasks:
            seconds = task.group.function.seconds
            task.cost = cost = horizon if seconds is None else seconds
            load += cost
            task.state, task.agent, task.run = ASSIGNED, agent, run
            runs[run] = task
            run += 1
        agent.load += load
        self._state.next_run = run

    def _run(self, agent: AgentRecord, tasks: list[TaskRecord], now: float) -> None:
        """Send an agent its new tasks, in messages of bounded size with consecutive runs."""
        groups = {task.group for task in tasks}
        if any(
            function.body is None and function.id not in agent.functions
            for group in groups
            for function in (group.function, group.serializer)
            if function is not None
        ):
            tasks = self._hold_undefined(agent, tasks)
        start, size = 0, 0
        for position, task in enumerate(tasks):
            weight = len(task.call)
            if task.extra is not None and task.extra.inputs:
                weight += sum(len(given[0]) for given in task.extra.inputs.values() if given is not None)
            if position > start and (
                size + weight > MESSAGE_LIMIT
                or position - start >= _RUN_TASKS
                or task.run != tasks[start].run + position - start
            ):
                self._send_run(agent, tasks[start:position])
                start, size = position, 0
            size += weight
        if start < len(tasks):
            self._send_run(agent, tasks[start:])

    def _hold_undefined(self, agent: AgentRecord, tasks: list[TaskRecord]) -> list[TaskRecord]:
        ready: list[TaskRecord] = []
        for task in tasks:
            group = task.group
            lacking = [
                function
                for function in (group.function, group.serializer)
                if function is not None and function.body is None and function.id not in agent.functions
            ]
            if not lacking:
                ready.append(task)
                continue
            self._state.leave_agent(task)
            task.state = HELD
            if self._state.chronicle.listening:
                self._state.chronicle.stand(HELD, (task,))
            session = group.session
            for function in lacking:
                if session not in function.held:
                    self._state.send(session.peer, NeedFunctions((function.id,), session.number))
                    session.lacking.add(function)
                function.held.setdefault(session, {})[task] = None
        return ready

    def _send_run(self, agent: AgentRecord, tasks: list[TaskRecord]) -> None:
        first = tasks[0]
        groups: dict[GroupRecord, int] = {}
        for task in tasks:
            if task.group not in groups:
                groups[task.group] = len(groups)
        defined: dict[bytes, FunctionRecord] = {}
        for group in groups:
            for function in (group.function, group.serializer):
                if function is not None and function.id not in agent.functions:
                    defined[function.id] = function
        agent.functions.update(dict.fromkeys(defined))
        while len(agent.functions) > HELD_FUNCTIONS:
            del agent.functions[next(iter(agent.functions))]
        ids = [task.id for task in tasks]
        if self._state.chronicle.listening:
            self._state.chronicle.assigned(agent, first.run, ids)
        special = any(task.extra is not None for task in tasks)
        dependents, needs, inputs, inputs_stored, inputs_awaited = _inputs(tasks) if special else ([], [], [], [], [])
        self._state.send(
            agent.peer,
            Run(
                first.run,
                [group.for_agents for group in groups],
                ids,
                Payloads([task.call for task in tasks]),
                task_groups=[groups[task.group] for task in tasks] if len(groups) > 1 else (),
                attempts=[task.attempt for task in tasks] if special else (),
                stored=[i for i, task in enumerate(tasks) if task.extra and task.extra.stored] if special else (),
                dependents=dependents,
                needs=needs,
                inputs=Payloads(inputs) if inputs else NONE,
                inputs_stored=inputs_stored,
                inputs_awaited=inputs_awaited,
                functions=list(defined),
                names=[function.name for function in defined.values()],
                bodies=Payloads([function.body or b"" for function in defined.values()]),
                bodies_stored=[at for at, function in enumerate(defined.values()) if function.stored],
            ),
        )

    def withdraw(self) -> None:
        """Tell agents which runs nobody wants any more."""
        for agent, runs in self._state.withdrawn.items():
            self._state.send(agent.peer, Withdraw(runs))
        self._state.withdrawn.clear()

    def rebalance(self, now: float) -> None:
        """Where nothing waits and workers are idle, ask the agent with most queued work for part of it."""
        if now < self._rebalance_at:
            return
        self._wanting = False
        if self._state.waiting.count or len(self._state.agents) < 2:
            return
        self._rebalance_at = now + REBALANCE_SECONDS
        idle = sum(max(0, agent.workers - agent.active) for agent in self._state.agents.values())
        if not idle:
            return
        offers = {agent.offer for agent in self._state.agents.values() if agent.active < agent.workers}
        sized = [agent for agent in self._state.agents.values() if agent.workers]
        for agent in sorted(sized, key=lambda agent: -agent.load / agent.workers):
            queued = agent.active - agent.workers
            if queued <= 0 or agent.load / agent.workers < RECALL_SECONDS:
                continue
            self._wanting = True
            if not agent.recalling and self._movable(agent, offers):
                agent.recalling = True
                self._state.send(agent.peer, Recall(min(idle, math.ceil(queued / 2))))
            return

    @staticmethod
    def _movable(agent: AgentRecord, offers: set[Offer]) -> bool:
        """Whether some run of the agent could run at one of these offers; the newest is looked at."""
        newest = next(reversed(agent.runs.values()), None)
        return newest is not None and any(not newest.group.lane.requirement.lacking(offer) for offer in offers)

    def due(self) -> float | None:
        """When loads should be compared again."""
        return self._rebalance_at if self._wanting else None


def _inputs(tasks: list[TaskRecord]) -> tuple[list[int], list[int], list[bytes], list[int], list[int]]:
    dependents: list[int] = []
    needs: list[int] = []
    inputs: list[bytes] = []
    stored: list[int] = []
    awaited: list[int] = []
    for position, task in enumerate(tasks):
        if task.extra is not None:
            for need, given in task.extra.inputs.items():
                payload, is_stored = given or (b"", False)
                if given is None:
                    awaited.append(len(inputs))
                elif is_stored:
                    stored.append(len(inputs))
                dependents.append(position)
                needs.append(need)
                inputs.append(payload)
    return dependents, needs, inputs, stored, awaited
