"""Intake: from a Submit to tasks that wait, each in its lane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from scaler_protocol.errors import ProtocolError, ScalerError, describe
from scaler_protocol.ids import agent_of, count_of, session_of
from scaler_protocol.messages import Done, Encoding, Group, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.dispatch import Dispatch
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.node_columns import NodeColumns, are_rows, dependents_by_need
from scaler_scheduler.core.records import AgentRecord, GroupRecord, HeldNodes, SessionRecord, TaskBlock, TaskRecord
from scaler_scheduler.core.run_times import RunTimes
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, DONE, GONE, HELD, SECOND, WAITING
from scaler_scheduler.requirements import Requirement

DEEPEST = 2**16 - 1
"""Nested tasks at a greater depth are treated as if they were at this one."""
GROUP_BYTES = 1024
"""About what a group takes beside the names of its capabilities, with its function and lane."""
GROUPS_LIMIT = 2048
"""Groups of one session that are remembered for its later messages."""


class Submitter(NamedTuple):
    """The session of submitted tasks, None if their parent's run is over, and the parent of nested tasks."""

    peer: bytes
    session: SessionRecord | None
    parent: TaskRecord | None


class Intake:
    """Resolves each group of a message once, and enters its tasks.

    `key_of` tells the key that a peer has proved, empty without keys.
    """

    def __init__(
        self, state: SchedulerState, completion: Completion, dispatch: Dispatch, key_of: Callable[[bytes], bytes]
    ) -> None:
        self._state = state
        self._completion = completion
        self._dispatch = dispatch
        self._key_of = key_of

    def submit(self, submitter: Submitter, event: Submit, now: float) -> None:
        """Enter new tasks of a client, or of a task that runs on an agent; they fail if they cannot be entered."""
        session = submitter.session
        if session is None:
            self._cancel_orphans(submitter.peer, event, now)
            return
        records: list[TaskRecord] = []
        block: TaskBlock | None = None
        held: set[int] = set()
        try:
            groups = self._groups(session, submitter.parent, event)
            if submitter.parent is None and self._is_plain(session, event, groups):
                block = TaskBlock(event.tasks, groups[0], event.calls)
                self._take_block(session, block, event, now)
                return
            if submitter.parent is None and self._is_new_piece(session, event, groups):
                held = self._held(session, event)
                if needed := dependents_by_need(event, held):
                    self._take_piece(session, event, groups, held, needed, now)
                    return
            records = self._records(event, groups)
            self._take(session, submitter.parent, event, records, now)
        except Exception as error:
            if held:
                records = [record for task in event.tasks if (record := session.find(task)) is not None]
            if block is not None:
                records = block.open()
            self._fail_all(submitter.peer, session, event, records, error, now)
            raise

    def _cancel_orphans(self, peer: bytes, event: Submit, now: float) -> None:
        """The run that submits these has ended meanwhile."""
        self._completion.cancel_known(event.tasks, now)
        count = len(event.tasks)
        self._state.send(peer, Done(event.tasks, [Status.CANCELLED] * count, Payloads([b""] * count)))

    def _groups(self, session: SessionRecord, parent: TaskRecord | None, event: Submit) -> list[GroupRecord]:
        root, depth, agent = session, 0, None
        if parent is not None:
            root, depth = parent.group.lane.session, min(parent.group.for_agents.depth + 1, DEEPEST)
            agent = parent.agent if not session.nested else None
        return [self._group(session, group, root, depth, agent) for group in event.groups]

    def _fail_all(
        self,
        peer: bytes,
        session: SessionRecord,
        event: Submit,
        records: list[TaskRecord],
        error: Exception,
        now: float,
    ) -> None:
        """An unexpected error while tasks were entered: all of them fail, entered or not."""
        failure = ScalerError(f"the scheduler could not take this task: {error!r}")
        self.refuse(peer, event, failure)
        self._take_back(session, records, failure, now)
        if (graph := session.graphs.get(event.graph)) is not None and not graph.counts:
            del session.graphs[event.graph]

    def _is_plain(self, session: SessionRecord, event: Submit, groups: Sequence[GroupRecord]) -> bool:
        """Whether the tasks are new, and alike, and have nothing but a call, and can all wait in a lane."""
        if len(groups) != 1 or not _has_calls_only(event) or session.named is not None or self._state.restoring:
            return False
        lane = groups[0].lane
        return not (lane.calls_missing or lane.requirement.agent) and session.tasks.keys().isdisjoint(event.tasks)

    def _take_block(self, session: SessionRecord, block: TaskBlock, event: Submit, now: float) -> None:
        group, event_log = block.group, self._state.event_log
        session.watched |= event.watched
        session.tasks.update(dict.fromkeys(event.tasks, block))
        event_log.submitted += len(block)
        group.function.submitted += len(block)
        if event_log.listening:
            event_log.entered_alike(WAITING, group, event.tasks)
        self._state.waiting.add_block(block, now)
        self._dispatch.check_eligible(group.lane, now)

    def _is_new_piece(self, session: SessionRecord, event: Submit, groups: Sequence[GroupRecord]) -> bool:
        """Whether the tasks are new nodes of a graph, sent as clients do at first, and can be held without records."""
        if not (event.graph and event.dependents) or session.named is not None or self._state.restoring:
            return False
        if any(group.lane.calls_missing or group.lane.requirement.agent for group in groups):
            return False
        return session.tasks.keys().isdisjoint(event.tasks) and are_rows(event)

    @staticmethod
    def _held(session: SessionRecord, event: Submit) -> set[int]:
        """The positions of nodes that lack nothing but results of tasks which have not ended."""
        known, own = session.tasks, range(event.tasks[0], event.tasks[-1] + 1)
        others = [need for need in set(event.needs) if need not in own]
        over = {need for need in others if (entry := known.get(need)) is None or entry.state == DONE}
        held = set(event.dependents).difference(event.stored)
        if over:
            held.difference_update([at for at, need in zip(event.dependents, event.needs, strict=True) if need in over])
        return held

    def _take_piece(
        self,
        session: SessionRecord,
        event: Submit,
        groups: list[GroupRecord],
        held: set[int],
        needed: Mapping[int, Sequence[int]],
        now: float,
    ) -> None:
        """Enter nodes of a graph; those at the positions `held`, by which others are `needed`, without records."""
        session.watched |= event.watched
        event_log, graph, columns = self._state.event_log, self._graph(session, event), NodeColumns(event)
        task_groups = event.task_groups or [0] * len(event.tasks)
        graph.enter(_count_calls(Counter(map(groups.__getitem__, task_groups))))
        nodes = [HeldNodes(group, graph, columns) for group in groups]
        session.tasks.update(zip(event.tasks, map(nodes.__getitem__, task_groups), strict=True))
        records: dict[int, TaskRecord] = {}
        for position in sorted(held.symmetric_difference(range(len(event.tasks)))):
            task, group = event.tasks[position], groups[task_groups[position]]
            record = records[position] = session.tasks[task] = TaskRecord(task, group, columns.calls[position])
            extra = record.more()
            extra.graph, extra.stored = graph, position in event.stored
        event_log.submitted += len(event.tasks)
        self._connect(session, graph, event)
        if event_log.listening:
            for number, group in enumerate(groups):
                tasks = [event.tasks[at] for at in sorted(held) if task_groups[at] == number]
                event_log.entered_alike(HELD, group, tasks)
        self._completion.dependencies.hold(session, needed)
        self._completion.enter(session, event, records, now)
        self._enter([record for record in records.values() if record.state == WAITING], now)

    def _connect(self, session: SessionRecord, graph: GraphRecord, event: Submit) -> None:
        """New nodes of a graph have been entered: tell monitors what they need, and whether more will come."""
        if self._state.event_log.listening:
            nodes = [event.tasks[position] for position in event.dependents]
            self._state.event_log.connected(graph, nodes, event.needs)
        if _has_last_node(event):
            self._state.graph_arrived(session, graph)

    @staticmethod
    def _records(event: Submit, groups: list[GroupRecord]) -> list[TaskRecord]:
        if event.task_groups:
            return list(map(TaskRecord, event.tasks, [groups[group] for group in event.task_groups], event.calls))
        group = groups[0]
        return [TaskRecord(task, group, call) for task, call in zip(event.tasks, event.calls, strict=True)]

    def _take(
        self, session: SessionRecord, parent: TaskRecord | None, event: Submit, records: list[TaskRecord], now: float
    ) -> None:
        session.watched |= event.watched
        plain = _has_calls_only(event)
        new, met = records, list[TaskRecord]()
        if not session.tasks.keys().isdisjoint(event.tasks):
            new, met = _merge(session, records, plain)
        graph = self._graph(session, event) if event.graph and new else None
        known = len(session.tasks)
        session.tasks.update([(record.id, record) for record in new])
        self._state.event_log.submitted += len(session.tasks) - known
        if session.named is not None:
            session.named.use([count_of(task) for task in event.tasks])
            requested = set(range(len(records))).difference(event.intermediate)
            self._state.results.enter(session, [records[at] for at in sorted(requested) if records[at].state != GONE])
        _count_calls(Counter([record.group for record in chain(new, met)]))
        if graph is not None:
            graph.enter(Counter([record.group.function for record in new]))
            for record in new:
                record.more().graph = graph
            self._connect(session, graph, event)
        if parent is not None:
            notes = parent.note()
            notes.children = notes.children or []
            notes.children += [record.id for record in chain(new, met)]
            if self._state.event_log.listening and new:
                self._state.event_log.nested(parent.id, [record.id for record in new])
        if not plain:
            for position in event.stored:
                records[position].more().stored = True
            self._completion.enter(session, event, dict(enumerate(records)), now)
        self._enter([record for record in records if record.state == WAITING], now)

    def _take_back(self, session: SessionRecord, records: list[TaskRecord], error: ScalerError, now: float) -> None:
        """Fail the tasks that were entered before the error, whichever state they reached."""
        lanes = {record.group.lane for record in records}
        queued = {task for lane in lanes for task in lane.records()}
        for record in records:
            if session.tasks.get(record.id) is record and record.state in (WAITING, HELD):
                if record not in queued:
                    record.state = HELD
                self._completion.fail(record, error, now)

    def _graph(self, session: SessionRecord, event: Submit) -> GraphRecord:
        graph, event_log = session.graphs.get(event.graph), self._state.event_log
        if graph is None:
            graph = session.graphs[event.graph] = GraphRecord(
                event.graph, event_log.next_number(), event.graph_size, session.number, event_log.now
            )
        return graph

    def _enter(self, records: list[TaskRecord], now: float) -> None:
        self._state.queue(records, now)
        for lane in {record.group.lane for record in records}:
            self._dispatch.check_eligible(lane, now)

    def submitter(self, peer: bytes, event: Submit) -> Submitter:
        """Find who submits these tasks. Raises ProtocolError, without any change, if they are not the sender's."""
        number = session_of(event.tasks[0])
        session = self._state.sessions.get(number)
        if session is not None and session.peer != peer:
            raise ProtocolError(f"session {number} is not the sender's")
        if not event.parent:
            if session is None or session.nested:
                raise ProtocolError(f"session {number} is not connected")
            return Submitter(peer, session, None)
        agent = self._state.agents.get(peer)
        if agent is None:
            if session is None:
                raise ProtocolError(f"session {number} is not connected")
            return Submitter(peer, session, self._parent_of(peer, event.parent))
        parent = agent.runs.get(event.parent)
        if parent is None or parent.state not in (ASSIGNED, SECOND):
            return Submitter(peer, None, None)
        return Submitter(peer, self._state.nested(number, agent), parent)

    def _parent_of(self, peer: bytes, run: int) -> TaskRecord | None:
        """The task of this run, if the client may be inside of it: it has the key of its agent, or of its own client.

        Whoever nests tasks in a run has them sent to its agent at once, at the expense of its client's share.
        """
        parent = self._state.find_run(run)
        if parent is None or parent.agent is None:
            return None
        keys = {self._key_of(parent.agent.peer), self._key_of(parent.group.lane.session.peer)}
        return parent if self._key_of(peer) in keys else None

    def refuse(self, peer: bytes, event: Submit, error: ScalerError) -> None:
        """Answer a refused Submit: its tasks have failed. Of its graph no more nodes are expected than will come.

        Known tasks are left out, since they end on their own.
        """
        session = self._state.sessions.get(session_of(event.graph))
        if session is not None and session.peer == peer and _has_last_node(event):
            graph = session.graphs.get(event.graph)
            if graph is not None and graph.counts:
                self._state.graph_arrived(session, graph)
        refused = [task for task in event.tasks if self._is_refusable(peer, task)]
        if refused:
            count = len(refused)
            self._state.send(peer, Done(refused, [Status.FAILED] * count, Payloads([describe(error)] * count)))

    def _is_refusable(self, peer: bytes, task: int) -> bool:
        """Whether the task is the sender's own, and no other message will report its end."""
        session = self._state.sessions.get(session_of(task))
        if session is None:  # a nested session begins with its first Submit
            return peer in self._state.agents
        record = session.find(task)
        return session.peer == peer and (record is None or record.is_call_missing)

    def _group(
        self, session: SessionRecord, group: Group, root: SessionRecord, depth: int, agent: AgentRecord | None
    ) -> GroupRecord:
        key = (group, root, depth, agent)
        record = session.groups.get(key)
        if record is not None:
            if len(session.groups) > GROUPS_LIMIT // 2:  # others may be forgotten before it
                session.groups.move_to_end(key)
        else:
            needs = tuple(sorted(zip(group.capability_names, group.capability_values, strict=True)))
            runtime = None if group.encoding == Encoding.JSON else session.runtime
            lane = self._state.waiting.lane(
                root, group.priority, depth, Requirement(needs, runtime, agent_of(group.worker)), agent
            )
            functions = self._state.functions
            record = session.groups[key] = GroupRecord(
                group,
                session,
                lane,
                functions.use(group.function),
                functions.use(group.serializer) if group.serializer else None,
                replace(group, capability_names=(), capability_values=(), depth=depth, speculate=False),
                RunTimes() if group.speculate else None,
            )
            record.weight = GROUP_BYTES + sum(map(len, group.capability_names))
            session.task_bytes += record.weight
            lane.groups += 1
            record.function.sessions.add(session.number)
            if record.serializer is not None:
                record.serializer.sessions.add(session.number)
            if len(session.groups) > GROUPS_LIMIT:
                _, oldest = session.groups.popitem(last=False)
                self._state.waiting.release_group(oldest.lane)
        return record


def _has_calls_only(event: Submit) -> bool:
    """Whether none of these tasks needs another, is a node of a graph, or has a call that is stored."""
    return not (event.stored or event.dependents or event.consumers or event.intermediate or event.graph)


def _has_last_node(event: Submit) -> bool:
    """Whether these tasks are the last ones of their graph: its nodes are submitted in order."""
    return bool(event.graph) and event.graph + event.graph_size - 1 in event.tasks


def _merge(session: SessionRecord, records: list[TaskRecord], plain: bool) -> tuple[list[TaskRecord], list[TaskRecord]]:
    """Merge resubmitted tasks into known records; discard duplicates.

    Returns the tasks to enter, and copies of tasks that run on agents and whose call was missing until now.
    """
    new: list[TaskRecord] = []
    met: list[TaskRecord] = []
    for copy in records:
        known = session.find(copy.id)
        if known is None:
            new.append(copy)
        elif known.is_call_missing:
            copy.extra = known.extra  # the copy replaces the record, and keeps its dependents
            new.append(copy)
        else:
            copy.state = GONE
            if known.group.lane.calls_missing and plain:
                known.group, known.calls = copy.group, copy.calls
                met.append(copy)
    return new, met


def _count_calls(groups: Mapping[GroupRecord, int]) -> Counter[FunctionRecord]:
    """Count calls of functions, given by group."""
    counts: Counter[FunctionRecord] = Counter()
    for group, calls in groups.items():
        group.function.submitted += calls
        counts[group.function] += calls
    return counts
