"""What the scheduler remembers: one mutable row per task, session and agent."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING

from scaler_protocol.capabilities import Capabilities, missing
from scaler_protocol.handshake import Hello
from scaler_protocol.messages import AgentStatus, Group, Status

if TYPE_CHECKING:
    from scaler_scheduler.core.functions import FunctionRecord


class TaskState(IntEnum):
    """Where a task stands; scaler_scheduler.core.core draws the transitions."""

    WAITING = 0
    """In a lane, ready to run."""
    HELD = 1
    """Not in a lane: it lacks inputs or the bytes of its function."""
    ASSIGNED = 2
    """An agent has it, queued or running."""
    DONE = 3
    """Its owner was sent the outcome; the agent keeps it until the owner releases it."""
    GONE = 4
    """Nobody wants it; where it still stands in a lane or on an agent it is passed over."""


GIVEN_UP_RUNS = 8

# Plain integers: an enum member costs a look-up and a comparison in Python wherever it is touched.
WAITING, HELD, ASSIGNED, DONE, GONE = (int(state) for state in TaskState)

Outcome = tuple[int, bytes, bool]
"""Status, payload, and whether that is a reference."""

Runtime = tuple[str, str] | None
"""Python's and cloudpickle's versions (minor); None for calls that need neither."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a task needs of a worker: capabilities, and a Python that can load it."""

    capabilities: Capabilities
    runtime: Runtime

    def lacking(self, offer: Offer) -> list[str]:
        """What `offer` lacks, as text; empty when its workers can take the task."""
        lacks = missing(self.capabilities, dict(offer.capabilities))
        if self.runtime is not None and self.runtime != offer.runtime:
            lacks.append(describe_runtime(self.runtime))
        return lacks


@dataclass(frozen=True, slots=True)
class Offer:
    """What every worker of an agent offers. Agents of equal offers are one class."""

    capabilities: Capabilities
    runtime: Runtime


def runtime_of(hello: Hello) -> Runtime:
    """What must agree between who pickles and who unpickles: Python and cloudpickle, without patch levels."""
    if not hello.python:
        return None
    return ".".join(hello.python.split(".")[:2]), ".".join(hello.cloudpickle.split(".")[:2])


def describe_runtime(runtime: Runtime) -> str:
    """A runtime in words."""
    return f"Python {runtime[0]} with cloudpickle {runtime[1]}" if runtime else "any Python"


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One client, or the tasks that one worker process submits (a nested session, owned through its agent)."""

    number: int
    peer: bytes
    runtime: Runtime = None
    nested: bool = False
    name: str = ""
    host: str = ""
    resuming: bool = False
    """Not to be forgotten though it has no tasks: some may still be found after a restart."""
    served: int = 0
    """Tasks of this root session dispatched so far: its place in the round."""
    waiting: int = 0
    watched: bool = False
    """Whether it is told of inner nodes that have ended."""
    groups: OrderedDict[tuple[Group, SessionRecord, int], GroupRecord] = field(default_factory=OrderedDict)
    """Those used last; a task knows its group itself."""
    lanes: dict[tuple[int, int, Requirement], LaneRecord] = field(default_factory=dict)
    """Of this root session, by priority, depth and requirement."""
    lacking: set[FunctionRecord] = field(default_factory=set)
    """Functions that tasks of this session are HELD for, until their bytes have come."""
    tasks: dict[int, TaskRecord] = field(default_factory=dict)
    graphs: dict[int, GraphRecord] = field(default_factory=dict)
    """By their first tasks."""

    def end(self) -> None:
        """Let go what refers to the session: collecting such circles is put off for long."""
        for group in self.groups.values():
            group.function.sessions.discard(self.number)
            if group.serializer is not None:
                group.serializer.sessions.discard(self.number)
        for function in self.lacking:
            function.held.pop(self, None)
        self.groups.clear()
        self.lacking.clear()


@dataclass(slots=True, eq=False)
class NodeCounts:
    """How the nodes of one function of a graph stand; those that have not ended are the rest of `submitted`."""

    submitted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(slots=True, eq=False)
class GraphRecord:
    """One graph: its session's for as long as it has nodes that have not ended, then kept for monitors."""

    first: int
    """Its first task."""
    number: int
    """Graphs are counted as they come."""
    size: int
    """How many nodes it will have."""
    session: int
    begun: float
    ended: float = 0.0
    """When the last node ended; 0 before."""
    open: int = 0
    """Nodes that were submitted and have not ended."""
    counts: dict[FunctionRecord, NodeCounts] = field(default_factory=dict)

    def enter(self, tasks: Sequence[TaskRecord]) -> None:
        """These nodes are submitted."""
        self.open += len(tasks)
        for task in tasks:
            task.more().graph = self
            function = task.group.function
            if function not in self.counts:
                self.counts[function] = NodeCounts()
            self.counts[function].submitted += 1

    def end(self, task: TaskRecord, status: int) -> bool:
        """A node has ended so; whether that was the last."""
        self.open -= 1
        counts = self.counts[task.group.function]
        if status == Status.VALUE:
            counts.done += 1
        elif status == Status.CANCELLED:
            counts.cancelled += 1
        else:
            counts.failed += 1
        if self.open:
            return False
        every = self.counts.values()
        return sum(each.submitted for each in every) >= self.size or any(each.cancelled for each in every)


@dataclass(slots=True, eq=False)
class LaneRecord:
    """Waiting tasks that differ only in age: same root session, priority, depth and requirement."""

    session: SessionRecord
    priority: int
    depth: int
    requirement: Requirement
    tasks: deque[TaskRecord] = field(default_factory=deque)
    ready: list[tuple[int, int, int, TaskRecord]] = field(default_factory=list)
    """Those that have just got what they take, as a heap: graph by graph, each in its order."""
    tombstones: int = 0
    since: float = 0.0
    listed: bool = False
    groups: int = 0
    """Groups that a session remembers whose tasks wait here."""
    known: bool = False
    """Whether the waiting room has it: as long as it has groups, or tasks."""
    unseen: bool = False
    """For tasks known by their ids alone, after a restart: their calls must be submitted again before they can run."""

    @property
    def size(self) -> int:
        """How many there are, those that nobody wants any more included."""
        return len(self.tasks) + len(self.ready)

    @property
    def first(self) -> TaskRecord:
        """Who is next."""
        return self.ready[0][-1] if self.is_ready_next() else self.tasks[0]

    def is_ready_next(self) -> bool:
        """Ready tasks go first, for results are to be used up, but not before those that their graph has first."""
        if not self.ready or not self.tasks:
            return bool(self.ready)
        front, task = self.tasks[0], self.ready[0][-1]
        if task.id < front.id or front.extra is None or front.extra.graph is None:
            return True
        return task.extra is None or front.extra.graph is not task.extra.graph


@dataclass(slots=True, eq=False)
class GroupRecord:
    """A Group of one session, with everything about it resolved once."""

    group: Group
    session: SessionRecord
    lane: LaneRecord
    function: FunctionRecord
    serializer: FunctionRecord | None
    for_agents: Group
    """Without requirements, which are met, and with the depth that the scheduler worked out."""
    number: int = 0
    """What monitors know it by, once they were told of it."""
    told: int = 0
    """The snapshot since which they know it."""


@dataclass(slots=True, eq=False)
class TaskExtra:
    """What few tasks have."""

    stored: bool = False
    lost_runs: int = 0
    shared_losses: int = 0
    """Runs lost with an agent of which nobody can say which run ended it: see scaler_scheduler.core.suspects."""
    suspect: bool = False
    seen: float = 0.0
    """When its agent first reported a suspect's run to be on a worker."""
    charged: int = 0
    """The run that was counted as lost with its agent, should the agent come back with it."""
    given_up: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=GIVEN_UP_RUNS))
    """Runs that were lost with their agents, which may come back with them."""
    raised_runs: int = 0
    lacking: int = 0
    """How many results have not come."""
    inputs: dict[int, tuple[bytes, bool] | None] = field(default_factory=dict)
    """What it takes of which task, payload and whether that is a reference; None until it has come."""
    dependents: list[TaskRecord] = field(default_factory=list)
    children: list[int] = field(default_factory=list)
    graph: GraphRecord | None = None
    takers: int = 0
    """Tasks of its graph that take its result and have not ended."""
    inner: bool = False
    """Its owner never asked for the result."""
    held: bool = True
    """Whether the owner's word is awaited before the outcome is forgotten."""
    outcome: Outcome | None = None
    """How it ended, for as long as it has takers."""


class TaskRecord:
    """One task."""

    __slots__ = ("agent", "call", "cost", "extra", "group", "id", "run", "state")

    def __init__(self, task: int, group: GroupRecord, call: bytes) -> None:
        self.id = task
        self.group = group
        self.call = call
        self.state = WAITING
        self.agent: AgentRecord | None = None
        self.run = 0
        self.cost = 0.0
        """Seconds it was expected to take when it was dispatched."""
        self.extra: TaskExtra | None = None

    def more(self) -> TaskExtra:
        """The rarely used part, made on first use."""
        if self.extra is None:
            self.extra = TaskExtra()
        return self.extra

    @property
    def is_unseen(self) -> bool:
        """Whether nobody has said yet, since a restart, what is to be called; and it is on no agent."""
        return self.state == HELD and self.group.lane.unseen

    @property
    def attempt(self) -> int:
        """The number of the current (or next) run, from 1."""
        extra = self.extra
        if extra is None:
            return 1
        return 1 + extra.lost_runs + extra.shared_losses + extra.raised_runs


@dataclass(slots=True, eq=False)
class AgentRecord:
    """One agent: N equal workers on one host."""

    peer: bytes
    name: str
    host: str
    workers: int
    queue_size: int
    offer: Offer
    runs: dict[int, TaskRecord] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    functions: dict[bytes, None] = field(default_factory=dict)
    """Those it was sent last; it asks for what it has dropped."""
    load: float = 0.0
    """Expected seconds of what it has."""
    window: int = 0
    """Slow start: at most so many unfinished runs, doubling as they come back."""
    released: list[int] = field(default_factory=list)
    recalling: bool = False
    resuming: bool = False
    """Whether it is still to say what it runs and keeps: until then it is given nothing."""
    returning: bool = False
    """Whether it has been welcomed before, perhaps by an earlier incarnation of the scheduler."""
    suspect: TaskRecord | None = None
    """The last suspect that it was given."""
    ticket: int = 0
    """Which of its entries in the heap of agents with room is the valid one."""
    running: frozenset[int] = frozenset()
    """Runs that were on a worker at its last report."""
    newer: int = 0
    """Runs from this one on were dispatched after that report."""
    number: int = 0
    """What monitors know it by."""
    status: AgentStatus | None = None
    """Its last report, which came at `heard`."""
    heard: float = 0.0

    @property
    def active(self) -> int:
        """Runs that hold, or wait for, a worker's place."""
        return len(self.runs) - len(self.blocked)

    def on_workers(self) -> set[int]:
        """Runs that are on a worker now, as far as is known: blocked and reported ones, then the oldest since."""
        likely = [run for run in self.runs if run in self.running and run not in self.blocked]
        likely += [run for run in self.runs if run >= self.newer and run not in self.blocked]
        return self.blocked.union(likely[: self.workers])

    def unreported(self) -> set[int]:
        """The newest runs that no report can have told of: one of them may have ended the agent as it came in."""
        return {run for run in islice(reversed(self.runs), self.workers) if run >= self.newer}


class Letter:
    """Outcomes for one owner that could not be passed on in the message they came in."""

    __slots__ = ("profiles", "results", "statuses", "stored", "tasks")

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.statuses: list[int] = []
        self.results: list[bytes] = []
        self.stored: list[int] = []
        self.profiles: list[bytes] = []

    def add(self, task: int, outcome: Outcome, profile: bytes) -> None:
        """One more."""
        status, payload, stored = outcome
        if stored:
            self.stored.append(len(self.tasks))
        self.tasks.append(task)
        self.statuses.append(status)
        self.results.append(payload)
        self.profiles.append(profile)
