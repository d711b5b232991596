"""The event log: what happens to tasks, recorded in columns for monitors. Pure, no IO.

The parts of the core record every step of a batch. Without subscribers only totals and the history are kept; `start`
records the state of all tasks that have not ended, and `take` returns what was recorded since the last call.
"""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, count, islice, repeat

from scaler_protocol.byte_planes import to_planes
from scaler_protocol.capabilities import Capabilities
from scaler_protocol.limits import shortened
from scaler_protocol.messages import Status, pieces_of
from scaler_protocol.monitoring import PACKED_EDGE, EventKind, TaskEvents, TaskStep
from scaler_scheduler.core.durations import Durations
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.history import TEXT, Event, History, PrintedText, printed_columns
from scaler_scheduler.core.recorded_steps import RecordedSteps, little_endian
from scaler_scheduler.core.records import (
    AgentRecord,
    GroupRecord,
    LaneRecord,
    SessionRecord,
    TaskEntry,
    TaskRecord,
    edges_of,
)
from scaler_scheduler.core.task_states import ASSIGNED, HELD, WAITING, Outcome
from scaler_scheduler.requirements import describe_runtime

SNAPSHOT_TASKS = 50_000
"""Most waiting tasks recorded for a new subscriber, so that it does not delay the scheduler."""
SNAPSHOT_EDGES = 100_000
"""Most edges of graphs recorded then; graphs with more are left out."""
TEXTS = 1000
"""Most texts between two calls of `take`; further ones are dropped."""
_STEPS = {WAITING: TaskStep.WAITING, HELD: TaskStep.HELD}


def capability_text(capabilities: Capabilities) -> str:
    """Capabilities in the syntax of `--per-worker-capabilities`."""
    return ",".join(name if value < 0 else f"{name}={value}" for name, value in capabilities)


class EventLog:
    """Totals since the start, and the steps since the last `take`. `now` is the time of the current event."""

    def __init__(self, *, measured: bool = False) -> None:
        """With `measured`, runs and waits are measured although nobody listens."""
        self._measured = measured
        self.listening = False
        self.measuring = measured
        """Whether `waited` and `done` are called."""
        self.now = 0.0
        self.submitted = 0
        self.ended = [0] * (Status.LOST + 1)
        """Number of ended tasks, by status."""
        self.lost_runs = 0
        self.not_found = 0
        self.run_durations = Durations()
        self.wait_durations = Durations()
        self.history = History()
        self._numbers = count(1)
        self._texts_said = self._printed_texts = 0
        self._snapshot = 0
        self._clear()

    def _clear(self) -> None:
        self._groups: list[GroupRecord] = []
        self._steps = RecordedSteps()
        self._texts: list[Event] = []
        self._printed: list[PrintedText] = []
        self._pieces: list[tuple[GraphRecord, int]] = []
        """Of each piece of a graph: the graph, and the number of its edges."""
        self._edges: list[int] = []

    @property
    def unfinished(self) -> int:
        """Number of tasks that have not ended."""
        return self.submitted - sum(self.ended)

    def next_number(self) -> int:
        """The next number for a group, agent or graph; numbers are never reused."""
        return next(self._numbers)

    # --- steps: called only while `listening`, `waited` and `done` while `measuring` ---------------------------------

    def entered(self, state: int, tasks: Sequence[TaskRecord]) -> None:
        """These tasks, possibly none, have become WAITING or HELD."""
        step = _STEPS[state]
        if len(tasks) == 1:
            self._step(step, self._number_of(tasks[0].group), (tasks[0].id,))
            return
        groups = {task.group for task in tasks}
        if len(groups) == 1:
            self._step(step, self._number_of(groups.pop()), [task.id for task in tasks])
            return
        by_group: dict[GroupRecord, list[int]] = {}
        for task in tasks:
            by_group.setdefault(task.group, []).append(task.id)
        for group, ids in by_group.items():
            self._step(step, self._number_of(group), ids)

    def entered_alike(self, state: int, group: GroupRecord, tasks: Sequence[int]) -> None:
        """These tasks of one group have become WAITING or HELD."""
        self._step(_STEPS[state], self._number_of(group), tasks)

    def assigned(self, agent: AgentRecord, first_run: int, tasks: Sequence[int]) -> None:
        """These tasks were sent to an agent, with consecutive run ids."""
        self._step(TaskStep.ASSIGNED, agent.number, tasks)
        self._steps.add_run(first_run)

    def done(self, agent: AgentRecord | None, tasks: Sequence[int], statuses: Iterable[int], profiles: bytes) -> None:
        """These tasks have ended with these statuses; `profiles` are packed."""
        self.run_durations.add_runs(profiles)
        if not self.listening:
            return
        self._step(TaskStep.ENDED, agent.number if agent else 0, tasks)
        self._steps.add_outcomes(statuses, profiles)

    def again(self, task: TaskRecord, status: int, profile: bytes) -> None:
        """The run of this task is over, and the task runs again: `entered` is called next."""
        if self.listening and task.agent is not None:
            self._step(TaskStep.AGAIN, task.agent.number, (task.id,))
            self._steps.add_outcomes((status,), profile)

    def waited(self, waits: Iterable[tuple[float, int]]) -> None:
        """Tasks are sent to agents that have waited since these times, at each so many."""
        self.wait_durations.add_waits(waits, self.now)

    def gone(self, task: int) -> None:
        """This task is no longer wanted."""
        self._step(TaskStep.CANCELLED, 0, (task,))

    def nested(self, parent: int, tasks: Sequence[int]) -> None:
        """These tasks were submitted by another one."""
        self._step(TaskStep.NESTED, parent, tasks)

    def lacking(self, task: int, cause: int) -> None:
        """This task ends without a run, since another one, which it needs, has ended without a value.

        Of one that has itself ended so the cause is told. It is remembered without monitors, too.
        """
        cause = self.history.add_cause(task, cause)
        if self.listening:
            self._step(TaskStep.LACKING, cause, (task,))

    def connected(self, graph: GraphRecord, nodes: Iterable[int], inputs: Iterable[int]) -> None:
        """Nodes of a graph were submitted. Each of these needs the result of the task at the same position."""
        known, before = range(graph.first, graph.first + min(graph.size, 2**32)), len(self._edges)
        for node, needed in zip(nodes, inputs, strict=True):
            if node in known and needed in known:
                self._edges.append(node - graph.first)
                self._edges.append(needed - graph.first)
        self._pieces.append((graph, (len(self._edges) - before) // 2))

    # --- texts: kept without monitors, too ----------------------------------------------------------------------------

    def add_text(self, level: int, kind: int, text: str, task: int = 0, subject: str = "") -> None:
        """Keep a text of this logging level and EventKind; `task` is the id of the task it is about, or 0."""
        self._texts_said += 1
        event = Event(self._texts_said, self.now, level, kind, task, shortened(subject, TEXT), shortened(text, TEXT))
        self.history.add_event(event)
        self._tell(event)

    def add_failure(self, task: TaskRecord, outcome: Outcome, profile: bytes) -> None:
        """Keep why a task has ended without a value."""
        self._texts_said += 1
        failure = self.history.add_failure(self._texts_said, task, outcome, profile, self.now)
        if self.listening:
            level = logging.ERROR if failure.status == Status.RAISED else logging.WARNING
            self._tell(Event(failure.number, self.now, level, EventKind.FAILURE, task.id, "", failure.read()))

    def add_output(self, task: TaskRecord, text: bytes) -> None:
        """Keep what a task has printed."""
        self._printed_texts += 1
        printed = self.history.add_printed(self._printed_texts, task, text)
        if self.listening and printed is not None and len(self._printed) < TEXTS:
            self._printed.append(printed)

    def _tell(self, event: Event) -> None:
        if self.listening and len(self._texts) < TEXTS:
            self._texts.append(event)

    def _step(self, step: int, subject: int, tasks: Sequence[int], at: float | None = None) -> None:
        self._steps.add(step, subject, tasks, self.now if at is None else at)

    def _number_of(self, group: GroupRecord) -> int:
        if group.snapshot != self._snapshot:
            group.number, group.snapshot = group.number or self.next_number(), self._snapshot
            self._groups.append(group)
        return group.number

    def take_figures(self, agents: Iterable[AgentRecord]) -> None:
        """Keep figures of this moment."""
        self.history.take_figures(self.now, sum(self.ended), self.unfinished, agents)

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def start(self, agents: Iterable[AgentRecord], sessions: Iterable[SessionRecord]) -> None:
        """A monitor has subscribed: record all tasks that have not ended, as if they had just reached their state.

        Waiting ones are recorded with the time at which their lane got them.
        """
        self._clear()
        self.listening = self.measuring = True
        self._snapshot += 1
        by_state: dict[int, list[tuple[int, TaskEntry]]] = {WAITING: [], ASSIGNED: [], HELD: []}
        room = SNAPSHOT_TASKS
        parents: dict[int, Sequence[int]] = {}
        for task, entry in chain.from_iterable(session.tasks.items() for session in sessions):
            if entry.state == ASSIGNED or (room and entry.state in by_state):
                by_state[entry.state].append((task, entry))
                room -= entry.state != ASSIGNED
            if entry.extra is not None and (notes := entry.extra.notes) is not None and notes.children:
                parents[task] = notes.children
        self._add_edges(chain.from_iterable(by_state.values()))
        for since, members in self._ages(by_state[WAITING]):
            self._found(WAITING, members, since)
        self._found(WAITING, by_state[ASSIGNED], self.now)  # groups are recorded with these steps only
        self._found(HELD, by_state[HELD], self.now)
        if parents:
            self._add_nested({task for task, _ in chain.from_iterable(by_state.values())}, parents)
        for agent in agents:
            self._add_runs(agent)

    def _found(self, state: int, tasks: Iterable[tuple[int, TaskEntry]], since: float) -> None:
        """These tasks are WAITING or HELD since a time."""
        by_group: defaultdict[GroupRecord, list[int]] = defaultdict(list)
        for task, entry in tasks:
            by_group[entry.group].append(task)
        for group, ids in by_group.items():
            for piece in pieces_of(ids):
                self._step(_STEPS[state], self._number_of(group), piece, at=since)

    def _ages(self, waiting: Iterable[tuple[int, TaskEntry]]) -> Iterator[tuple[float, list[tuple[int, TaskEntry]]]]:
        """Since when these tasks wait, in the order of their ids; about, if they have left in another order."""
        by_lane: defaultdict[LaneRecord, list[tuple[int, TaskEntry]]] = defaultdict(list)
        for task, entry in waiting:
            by_lane[entry.group.lane].append((task, entry))
        for lane, members in by_lane.items():
            rest = iter(members)
            for since, size in lane.ages.first(len(members), lane.size):
                yield since, list(islice(rest, size))
            yield self.now, list(rest)

    def _add_nested(self, tasks: AbstractSet[int], parents: Mapping[int, Iterable[int]]) -> None:
        """Record which of these tasks others have submitted; `parents` have the ids of theirs."""
        for parent, children in parents.items():
            if listed := [child for child in children if child in tasks]:
                self.nested(parent, listed)

    def _add_edges(self, tasks: Iterable[tuple[int, TaskEntry]]) -> None:
        """Record what these nodes of graphs need."""
        needs: dict[GraphRecord, list[tuple[int, int]]] = {}
        for task, entry in tasks:
            graph, needed = edges_of(task, entry)
            if graph is not None:
                needs.setdefault(graph, []).extend(zip(repeat(task), needed))
        room = SNAPSHOT_EDGES
        for graph, edges in needs.items():
            if len(edges) <= room:
                room -= len(edges)
                self.connected(graph, (node for node, _ in edges), (needed for _, needed in edges))

    def _add_runs(self, agent: AgentRecord) -> None:
        first = 0
        ids: list[int] = []
        for run, task in agent.runs.items():
            if task.state != ASSIGNED:
                continue
            if ids and run != first + len(ids):
                self.assigned(agent, first, ids)
                ids = []
            if not ids:
                first = run
            ids.append(task.id)
        if ids:
            self.assigned(agent, first, ids)

    def stop(self) -> None:
        """No monitor is subscribed any more."""
        self.listening, self.measuring = False, self._measured
        self._clear()

    def take(self, since: float) -> TaskEvents | None:
        """Events since the last call, or None. `since` is the Unix time, in seconds, at which `now` was 0.

        They are as many as one message may have; if others are left, it says that it goes on.
        """
        if not (self._steps or self._texts or self._groups or self._printed or self._pieces):
            return None
        groups, pieces, edges = self._groups, self._pieces, self._edges
        self._groups, self._pieces, self._edges = [], [], []
        columns, goes_on = self._steps.take(), bool(self._steps)
        texts, printed = ([], []) if goes_on else (self._texts, self._printed)  # they are about tasks that were told
        if not goes_on:
            self._texts, self._printed = [], []
        return TaskEvents(
            goes_on=goes_on,
            group_numbers=[group.number for group in groups],
            group_functions=[group.function.name for group in groups],
            group_sessions=[group.lane.session.number for group in groups],
            group_priorities=[group.lane.priority for group in groups],
            group_capabilities=[capability_text(group.lane.requirement.capabilities) for group in groups],
            group_runtimes=[
                describe_runtime(runtime) if (runtime := group.lane.requirement.runtime) else "" for group in groups
            ],
            group_clients=[group.lane.session.name for group in groups],
            since=since,
            **columns,
            text_numbers=[event.number for event in texts],
            text_times=[since + event.time for event in texts],
            text_levels=[event.level for event in texts],
            text_kinds=[event.kind for event in texts],
            text_tasks=[event.task for event in texts],
            text_subjects=[event.subject for event in texts],
            texts=[event.text for event in texts],
            **printed_columns(printed),
            edge_graphs=[graph.number for graph, _ in pieces],
            edge_first_tasks=[graph.first for graph, _ in pieces],
            edge_counts=[count for _, count in pieces],
            edges=to_planes(little_endian(array("I", edges)), PACKED_EDGE.size),
        )
