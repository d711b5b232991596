"""The tables that the parts of the scheduler's core share, and the operations that keep them consistent."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from scaler_io.links.effects import Effect, Log, Send
from scaler_protocol.errors import ProtocolError
from scaler_protocol.ids import SPARE_INCARNATIONS, first_run, is_nested, session_of
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import DELETED_TOGETHER
from scaler_protocol.messages import Message, NeedTasks, Release, Status, Withdraw, pieces_of
from scaler_protocol.objects import OBJECT_ID_BYTES, REFERENCE_BYTES, SHARED_BYTES
from scaler_protocol.operations import Drain
from scaler_protocol.sessions import KeepSession
from scaler_protocol.storage import CopyReplicas, DeleteObjects
from scaler_scheduler.core.call_budgets import CallBudgets
from scaler_scheduler.core.cluster_shares import ClusterShares
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.dispatch_times import DispatchTimes
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.event_log import EventLog
from scaler_scheduler.core.exclusive import ExclusiveTasks
from scaler_scheduler.core.functions import FunctionStore
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.locality import Locality
from scaler_scheduler.core.long_results import LongResults
from scaler_scheduler.core.pinned import PinnedTasks
from scaler_scheduler.core.queue import TaskQueue
from scaler_scheduler.core.records import AgentRecord, GroupRecord, LaneRecord, SessionRecord, TaskEntry, TaskRecord
from scaler_scheduler.core.session_results import SessionResults
from scaler_scheduler.core.suspects import Suspects
from scaler_scheduler.core.task_extra import TaskExtra
from scaler_scheduler.core.task_states import ASSIGNED, GONE, HELD, SECOND, WAITING
from scaler_scheduler.requirements import WorkerClass

if TYPE_CHECKING:
    from scaler_scheduler.core.recorder import Recorder

DRAINED_LIMIT = 1024
"""Agents of which it is remembered that they are to drain."""
ENDED_GRAPHS_LIMIT = 100
"""Ended graphs kept for monitors."""


@dataclass(frozen=True, slots=True)
class SendToStorage:
    """Effect: send a message to object storage, where the scheduler owns all named sessions."""

    message: KeepSession | DeleteObjects | CopyReplicas


class SchedulerState:
    """Sessions with their tasks, agents with their runs, functions, the task queue, and pending messages."""

    def __init__(self, incarnation: int, config: SchedulerConfig) -> None:
        self.config = config
        self.incarnation = incarnation
        self._first_run, self._last_run = first_run(incarnation), first_run(incarnation + SPARE_INCARNATIONS)
        self.next_run = self._first_run + 1
        self.dispatch_times = DispatchTimes()
        self.sessions: dict[int, SessionRecord] = {}
        self.ended_sessions: deque[SessionRecord] = deque()
        """Root sessions that are over, of whose tasks not all are forgotten."""
        self.agents: dict[bytes, AgentRecord] = {}
        self.functions = FunctionStore()
        self.budgets = CallBudgets(self.sessions, config.max_session_bytes, 2 * config.max_session_bytes)
        self.event_log = EventLog(measured=config.measured)
        self.waiting = TaskQueue(self.event_log)
        self.locality = Locality()
        self.long_results = LongResults()
        self.suspects = Suspects()
        self.exclusive = ExclusiveTasks()
        self.pinned = PinnedTasks()
        self.cluster = ClusterShares.of(config.cluster_capabilities, config.recovery_seconds)
        self.results = SessionResults(config.result_retention_seconds, config.result_limit, self._delete_from_storage)
        """The kept outcomes of named sessions."""
        self.out: list[Effect | SendToStorage | WriteDump] = []
        self.nested_lanes: dict[LaneRecord, None] = {}
        """Lanes with an agent of their own that have new tasks."""
        self.outcomes_wait = False
        """Whether agents may keep outcomes back, since the scheduler is busy (`scaler_protocol.coalescing`)."""
        self.recorder: Recorder | None = None
        """Records events for a journal; None without one."""
        self.refusal = ""
        """Why no new work is taken; empty if it is."""
        self.restoring = False
        """Whether the tables are being rebuilt from a journal: no task is queued until all of it is known."""
        self.assigned_before: dict[int, tuple[bytes, int]] = {}
        """Tasks that are HELD since, by the journal, an agent has them: its identity and the run."""
        self.drained: dict[bytes, None] = {}
        """Identities of agents that were told to drain and have not said Goodbye; the oldest beyond are forgotten."""
        self.withdrawn: dict[AgentRecord, list[int]] = {}
        """Runs that agents are told to stop with the next Withdraw."""
        self.unused_objects: dict[SessionRecord, list[bytes]] = {}
        """Objects of forgotten intermediate nodes, to be deleted by their sessions."""
        self.ended_graphs: deque[GraphRecord] = deque(maxlen=ENDED_GRAPHS_LIMIT)
        """The graphs that ended last; `graphs_ended` counts all."""
        self.graphs_ended = 0
        self.offered: tuple[WorkerClass, ...] = ()
        """Worker classes that worker managers can start."""
        self.with_room, self.with_other_runs = dict[AgentRecord, None](), dict[AgentRecord, None]()
        """Connected agents: whose room may have changed since the last dispatch; that may have runs of no task."""

    def send(self, to: bytes, message: Message) -> None:
        """Send a message to a peer."""
        self.out.append(Send(to, message))

    def delete_objects(self, session: SessionRecord, objects: Sequence[bytes]) -> None:
        """Have objects of a session deleted: by its process, or from here if it is named and may have none."""
        if session.named is not None:
            self._delete_from_storage(session.number, objects)
        else:
            for message in _deletions(session.number, objects):
                self.send(session.peer, message)

    def _delete_from_storage(self, named_session: int, objects: Sequence[bytes]) -> None:
        self.out += map(SendToStorage, _deletions(named_session, objects))

    def copy_results(self, results: Iterable[bytes]) -> None:
        """Somebody has requested these stored results, given by packed references: object storage copies big ones."""
        objects = [
            packed[:OBJECT_ID_BYTES]
            for packed in results
            if len(packed) == REFERENCE_BYTES and int.from_bytes(packed[OBJECT_ID_BYTES:], "little") >= SHARED_BYTES
        ]
        if objects:
            self.out += [SendToStorage(CopyReplicas(some)) for some in pieces_of(objects)]

    def log(self, text: str, kind: int, level: int = logging.INFO, *, subject: str = "") -> None:
        """Write a line to the scheduler's log and to monitors, about a subject of this EventKind."""
        self.out.append(Log(level, text))
        self.event_log.add_text(level, kind, text, subject=subject)

    def is_own(self, run: int) -> bool:
        """Whether the run id belongs to this incarnation."""
        return self._first_run <= run < self._last_run

    def runs_after(self, run: int) -> range:
        """The ids of own runs that follow this one: all of them if it is 0, or another incarnation's."""
        return range(run + 1 if self.is_own(run) else self._first_run, self._last_run)

    def new_runs(self, count: int) -> int:
        """The first of so many new run ids, which are dispatched now."""
        first = self.next_run
        self.next_run += count
        self.dispatch_times.note(first, self.event_log.now)
        return first

    def find(self, task: int) -> TaskRecord | None:
        """The task with this id, or None."""
        session = self.sessions.get(session_of(task))
        return session.find(task) if session else None

    def entry(self, task: int) -> TaskEntry | None:
        """How the task with this id is known, or None if it is not: makes no record of it."""
        session = self.sessions.get(session_of(task))
        return session.tasks.get(task) if session else None

    def agent_of(self, identity: bytes) -> AgentRecord | None:
        """The agent of this identity, or the relay that it is behind; None if it is gone."""
        return self.agents.get(identity) or self.pinned.behind.get(identity)

    def find_run(self, run: int) -> TaskRecord | None:
        """The task of this run, on any agent; None if the run is over."""
        for agent in self.agents.values():
            if (task := agent.runs.get(run)) is not None:
                return task if task.state in (ASSIGNED, SECOND) else None
        return None

    def count_assigned(self) -> int:
        """How many runs of ASSIGNED tasks agents have; without looking at each of them."""
        for agent in list(self.with_other_runs):
            if all(task.state == ASSIGNED for task in agent.runs.values()):
                del self.with_other_runs[agent]
        others = sum(task.state != ASSIGNED for agent in self.with_other_runs for task in agent.runs.values())
        return sum(len(agent.runs) for agent in self.agents.values()) - others

    def queue(self, tasks: Sequence[TaskRecord], now: float, *, first: bool = False, soon: bool = False) -> None:
        """Make tasks wait for a worker; those with missing inputs, suspects, pinned and exclusive ones are HELD.

        `first` and `soon` are those of `TaskQueue.add`.
        """
        lanes: dict[LaneRecord, list[TaskRecord]] = {}
        for task in tasks:
            task.state, task.agent = WAITING, None
            extra = task.extra
            if self.restoring:
                task.state = HELD
            elif extra is not None and (
                extra.missing_inputs
                or (extra.notes is not None and extra.is_apart and not task.group.lane.calls_missing)
            ):
                self._hold(task, extra)
            else:
                lanes.setdefault(task.group.lane, []).append(task)
        for lane, members in lanes.items():
            if lane.calls_missing or lane.requirement.agent:
                self._hold_lane(lane, members)
                continue
            if self.event_log.listening:
                self.event_log.entered(WAITING, members)
            self.waiting.add(members, lane, now, first=first, soon=soon)
            if lane.agent is not None:
                self.nested_lanes[members[0].group.lane] = None

    def _hold_lane(self, lane: LaneRecord, tasks: list[TaskRecord]) -> None:
        """Hold tasks whose calls must be submitted again, or that only one worker may run."""
        if self.event_log.listening:
            self.event_log.entered(HELD, tasks)
        for task in tasks:
            task.state = HELD
        if lane.calls_missing:
            self.send(lane.session.peer, NeedTasks([task.id for task in tasks]))
            return
        for task in tasks:
            task.more()
            self.pinned.add(task)

    def _hold(self, task: TaskRecord, extra: TaskExtra) -> None:
        """The task cannot wait in a lane, since it lacks inputs or must run apart from others."""
        task.state = HELD
        if extra.is_apart:
            (self.exclusive if extra.is_exclusive else self.suspects).add(task)
        if self.event_log.listening:
            self.event_log.entered(HELD, (task,))

    def drain(self, agent: AgentRecord) -> None:
        """Have an agent finish its runs, hand over what it keeps, and leave; it is told again if it comes back."""
        self.drained[agent.peer] = None
        if len(self.drained) > DRAINED_LIMIT:
            del self.drained[next(iter(self.drained))]
        self.send(agent.peer, Drain(agent.number, 0))

    def withdraw(self, task: TaskRecord) -> None:
        """Withdraw the run of a task: its agent gets the Withdraw before any other work."""
        if task.agent is not None:
            self.withdraw_run(task.agent, task.run)

    def take_over(self, task: TaskRecord) -> None:
        """Withdraw the run of a task that has another run, or an outcome."""
        if (agent := task.agent) is not None:
            self.withdraw(task)
            # The agent still has the run: its outcome, which comes later, must find a record, and not this task's.
            stand_in = TaskRecord(task.id, task.group, b"")
            stand_in.state, stand_in.agent, stand_in.run, stand_in.cost = GONE, agent, task.run, task.cost
            agent.runs[task.run] = stand_in

    def withdraw_run(self, agent: AgentRecord, run: int) -> None:
        """Have an agent stop a run, even if no task here has it."""
        if agent.runs:
            self.with_other_runs[agent] = None
        self.withdrawn.setdefault(agent, []).append(run)

    def send_withdrawn(self) -> None:
        """Tell agents which runs to stop."""
        for agent, runs in self.withdrawn.items():
            self.send(agent.peer, Withdraw(runs))
        self.withdrawn.clear()

    def send_released(self, agent: AgentRecord) -> None:
        """Tell an agent which outcomes it need not keep any more."""
        if agent.released and self.agents.get(agent.peer) is agent:
            tasks, agent.released = agent.released, {}
            for some in pieces_of(list(tasks)):
                self.send(agent.peer, Release(some))

    def leave_agent(self, task: TaskRecord) -> None:
        """The task's run has ended or was returned: remove it from its agent, which has room again."""
        agent = task.agent
        if agent is not None and agent.runs.pop(task.run, None) is not None:
            self.long_results.over((task.run,))
            agent.load = max(0.0, agent.load - task.cost) if agent.runs else 0.0
            agent.blocked.discard(task.run)
            self.with_room[agent] = None

    def drop(self, task: TaskRecord) -> None:
        """The task is no longer wanted: forget it and stop its run. No message goes to its owner."""
        session = task.group.session
        session.tasks.pop(task.id, None)
        state, task.state = task.state, GONE
        self.count_ended(task, Status.CANCELLED)
        if self.event_log.listening:
            self.event_log.gone(task.id)
        if state == WAITING:
            self.waiting.discard(task)
        elif state == ASSIGNED and task.agent is not None:
            self.withdraw(task)
        elif task.extra is not None:
            self.leave_apart(task)
        task.calls = b""

    def drop_plain(self, task: int) -> None:
        """A task without a record, whose session is over, is no longer wanted."""
        self.event_log.ended[Status.CANCELLED] += 1
        if self.event_log.listening:
            self.event_log.gone(task)

    def leave_apart(self, task: TaskRecord) -> None:
        """A task that is HELD as a suspect, as pinned or as exclusive need not run any more, or runs already."""
        self.suspects.remove(task)
        self.pinned.remove(task)
        agent = self.exclusive.remove(task)
        if agent is not None and self.agents.get(agent.peer) is agent:
            self.with_room[agent] = None

    def count_ended(self, task: TaskRecord, status: int) -> None:
        """Count a task that ended with this status, in the totals and in its graph."""
        self.event_log.ended[status] += 1
        graph = task.extra.graph if task.extra is not None else None
        if graph is not None and graph.end(task.group.function, status):
            self._end_graph(task.group.session, graph)

    def count_values(self, nodes: Sequence[TaskRecord]) -> set[SessionRecord]:
        """Count tasks that ended with values, most of them nodes of one graph. Returns their sessions."""
        self.event_log.ended[Status.VALUE] += len(nodes)
        counts: dict[tuple[GroupRecord, GraphRecord | None], int] = {}
        for node in nodes:
            key = node.group, node.extra.graph if node.extra is not None else None
            counts[key] = counts.get(key, 0) + 1
        for (group, graph), count in counts.items():
            if graph is not None and graph.end(group.function, Status.VALUE, count):
                self._end_graph(group.session, graph)
        return {group.session for group, _ in counts}

    def graph_arrived(self, session: SessionRecord, graph: GraphRecord) -> None:
        """No more nodes will be submitted, since the last one was, or was refused: the graph may have ended."""
        graph.has_arrived()
        if not graph.open:
            self._end_graph(session, graph)

    def _end_graph(self, session: SessionRecord, graph: GraphRecord) -> None:
        graph.ended = self.event_log.now
        self.graphs_ended += 1
        self.ended_graphs.append(session.graphs.pop(graph.first))

    def nested(self, number: int, agent: AgentRecord) -> SessionRecord:
        """The nested session of this number, made if new; raises ProtocolError if it is a client's or another agent's.

        An agent knows the numbers of the clients whose tasks it has: one that had such a session would keep the client
        from coming back after a restart.
        """
        if not is_nested(number):
            raise ProtocolError(f"session {number} is one of clients, and the sender is an agent")
        session = self.sessions.get(number)
        if session is None:
            session = SessionRecord(number, agent.peer, runtime=agent.worker_class.runtime, nested=True)
            session.was_elsewhere = agent.was_elsewhere
            self.sessions[number] = session
        if session.peer != agent.peer:
            raise ProtocolError(f"session {number} is not the sender's")
        return session

    def forget_nested(self, numbers: Iterable[int]) -> None:
        """Tasks of these sessions were forgotten: drop nested sessions without tasks."""
        for number in numbers:
            session = self.sessions.get(number)
            if session is not None and session.nested and not session.tasks and not session.resuming:
                del self.sessions[number]
                self.waiting.drop_session(session)
                session.end()


def _deletions(session: int, objects: Sequence[bytes]) -> Iterator[DeleteObjects]:
    for at in range(0, len(objects), DELETED_TOGETHER):
        yield DeleteObjects(objects[at : at + DELETED_TOGETHER], session)
