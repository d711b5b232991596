"""The scheduler's tables of sessions, graphs, groups and functions: one mutable row each."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import cast

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Encoding, Group, Status
from scaler_scheduler.core.agent_record import AgentRecord
from scaler_scheduler.core.lane_record import LaneKey, LaneRecord
from scaler_scheduler.core.run_times import RunTimes
from scaler_scheduler.core.task_records import EndedTasks, KeptOutcome, Outcome, TaskBlock, TaskEntry, TaskRecord
from scaler_scheduler.requirements import Runtime

SMOOTHING = 0.2
"""Weight of the newest duration in a function's running mean."""
GroupKey = tuple[Group, "SessionRecord", int, "AgentRecord | None"]
"""Group as submitted, root session, depth, and the agent of the parents."""


@dataclass(slots=True, eq=False)
class KeyShare:
    """The share of the workers' time for all sessions of a key; a session without a key has one of its own."""

    waiting: int = 0
    """Root sessions with waiting tasks."""


@dataclass(slots=True, eq=False)
class SessionRecord:
    """One client, or the tasks that one worker process submits (a nested session, owned through its agent)."""

    number: int
    peer: bytes
    """Its client, or the agent of a nested session; empty for a named session without a client."""
    runtime: Runtime = None
    nested: bool = False
    name: str = ""
    host: str = ""
    resuming: bool = False
    """Kept although it has no tasks: after a restart, agents may still report some."""
    last_wanted: int = 0
    """The greatest task that its client has asked for in Reconcile: later ones are unknown to earlier schedulers."""
    last_task: int = 0
    """The greatest task that is recorded in a journal."""
    attached: bool = True
    """Whether its process is connected: outcomes are sent only then."""
    kept: dict[int, KeptOutcome] | None = None
    """Outcomes for a process that is away; None if none are kept."""
    served: float = 0.0
    """Seconds of worker time that the dispatched tasks of this root session took, or by the mean of their functions are
    to take; times the number of sessions of its key that have waiting tasks, because the sessions of a key have one
    share together. The session that was served least goes first."""
    share: KeyShare = field(default_factory=KeyShare)
    waiting: int = 0
    """Waiting tasks of this root session."""
    call_bytes: int = 0
    """Bytes of the calls outside of graphs that have not ended, or more: see `scaler_scheduler.core.call_budgets`."""
    task_bytes: int = 0
    """Bytes of all its tasks, or more."""
    result_credit: int = 0
    """Bytes of long results that may be on their way to its client, or held by it: see `LongResults`."""
    result_bytes: int = 0
    """How many of these are granted, under way or held."""
    counted_at: float = -1.0
    """When these were counted last because of a budget."""
    watched: bool = False
    """Whether its client is sent Ended for intermediate nodes."""
    groups: OrderedDict[GroupKey, GroupRecord] = field(default_factory=OrderedDict)
    """The groups used last; each task refers to its own group."""
    lanes: dict[LaneKey, LaneRecord] = field(default_factory=dict)
    """Of this root session."""
    missing_functions: set[FunctionRecord] = field(default_factory=set)
    """Functions whose bytes tasks of this session are HELD for."""
    tasks: dict[int, TaskEntry] = field(default_factory=dict)
    """`find` and `records` give records; tasks of one message or report may share an entry."""
    graphs: dict[int, GraphRecord] = field(default_factory=dict)
    """By the id of the first task."""
    named: NamedSession | None = None
    """The state of a named session; None for a session that ends with its client."""

    def find(self, task: int) -> TaskRecord | None:
        """The task with this id, or None; it has a record of its own from now on."""
        entry = self.tasks.get(task)
        if isinstance(entry, TaskBlock):
            lane = entry.group.lane
            entry.open()
            lane.open_first()
            entry = self.tasks[task]
        if isinstance(entry, EndedTasks):
            entry = self.tasks[task] = entry.record(task)
        return cast("TaskRecord | None", entry)

    def records(self) -> Iterator[TaskRecord]:
        """All tasks; each has a record of its own from now on."""
        for task in self.tasks:
            yield cast("TaskRecord", self.find(task))

    def account(self, seconds: float) -> None:
        """Add worker time to `served`; negative if tasks of this root session take less than was added before."""
        self.served += seconds * max(1, self.share.waiting + (not self.waiting))

    def wait(self, tasks: int) -> None:
        """So many more tasks of this root session wait; less than 0 for fewer."""
        self.share.waiting -= bool(self.waiting)
        self.waiting += tasks
        self.share.waiting += bool(self.waiting)

    def join(self, share: KeyShare) -> None:
        """The session is one of the sessions of a key."""
        self.share.waiting -= bool(self.waiting)
        self.share = share
        self.share.waiting += bool(self.waiting)

    def end(self) -> None:
        """Break reference cycles through this session, which the garbage collector would free late."""
        for group in self.groups.values():
            group.function.sessions.discard(self.number)
            if group.serializer is not None:
                group.serializer.sessions.discard(self.number)
        for function in self.missing_functions:
            function.waiting_tasks.pop(self, None)
        self.groups.clear()
        self.missing_functions.clear()


@dataclass(slots=True, eq=False)
class SessionTask:
    """A task of a named session, from its submission until nothing is kept of it."""

    session: SessionRecord
    id: int
    function: FunctionRecord
    encoding: int = Encoding.PICKLE
    claimed: bool = True
    """Whether the attached client has a future of it, which is sent the outcome."""
    ended: KeptOutcome | None = None
    """None while it has not ended."""
    since: float = 0.0
    """When it ended, or was last sent to a client."""
    size: int = 0
    """The bytes that its outcome counts."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended."""
        return self.ended[0] if self.ended is not None else None


@dataclass(slots=True, eq=False)
class NamedSession:
    """The state of a named session, which outlives its client."""

    name: str
    key: bytes
    """Proves the session to the scheduler and to object storage; made from name and secret."""
    detached_at: float | None = None
    """None while a client is attached."""
    last_client: bytes = b""
    """The identity of the client that is, or was last, attached."""
    tasks: dict[int, SessionTask] = field(default_factory=dict)
    """In the order of submission."""
    labels: dict[str, int] = field(default_factory=dict)
    """Tasks by the names that clients gave their futures."""
    ids_from: int = 0
    ids_to: int = 2**32 - 1
    """The counts of task ids that are not used: single ones go up, blocks come down."""

    def use(self, counts: Sequence[int]) -> None:
        """Ids with these counts are used."""
        singles = [count for count in counts if count < 2**31]
        self.ids_from = max(self.ids_from, max(singles, default=-1) + 1)
        if len(singles) < len(counts):
            self.ids_to = min(self.ids_to, min(count for count in counts if count >= 2**31) - 1)


@dataclass(slots=True, eq=False)
class NodeCounts:
    """Nodes of one function of a graph, by how they ended; the rest of `submitted` has not ended."""

    submitted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(slots=True, eq=False)
class GraphRecord:
    """One graph. Its session has it until all of its nodes have ended; then it is kept for monitors."""

    first: int
    """The id of its first task."""
    number: int
    """The number that monitors know it by."""
    size: int
    """Number of nodes, those included that are not submitted yet."""
    session: int
    begun: float
    ended: float = 0.0
    """When the last node ended; 0 until then."""
    open: int = 0
    """Nodes that were submitted and have not ended."""
    counts: dict[FunctionRecord, NodeCounts] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The id of its last task."""
        return self.first + self.size - 1

    @property
    def arriving(self) -> bool:
        """Whether nodes of it are not submitted yet."""
        return self._submitted < self.size

    def has_received(self, task: int) -> bool:
        """Whether this is one of its nodes, and was submitted: nodes are submitted in the order of their ids."""
        return self.first <= task < self.first + self._submitted

    @property
    def _submitted(self) -> int:
        return sum(each.submitted for each in self.counts.values())

    def has_arrived(self) -> None:
        """No more nodes will be submitted; those that were refused, or that a journal has forgotten, do not count."""
        self.size = self._submitted

    def enter(self, tasks: Sequence[TaskRecord]) -> None:
        """Count submitted nodes."""
        self.open += len(tasks)
        for task in tasks:
            task.more().graph = self
        for group, submitted in Counter([task.group for task in tasks]).items():
            if group.function not in self.counts:
                self.counts[group.function] = NodeCounts()
            self.counts[group.function].submitted += submitted

    def end(self, task: TaskRecord, status: int) -> bool:
        """Count a node that ended with this status; returns whether it was the last one."""
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
        return not self.arriving or any(each.cancelled for each in self.counts.values())


@dataclass(slots=True, eq=False)
class GroupRecord:
    """A Group of one session, with everything about it resolved once."""

    group: Group
    session: SessionRecord
    lane: LaneRecord
    function: FunctionRecord
    serializer: FunctionRecord | None
    for_agents: Group
    """As sent to agents: without requirements, which they meet, and with the depth that the scheduler computed."""
    run_times: RunTimes | None = None
    """Of groups that allow second runs."""
    weight: int = 0
    """About how many bytes it takes."""
    number: int = 0
    """The number that monitors know it by; 0 before they were sent the group."""
    snapshot: int = 0
    """The number of the last monitor snapshot for which the group was sent."""


class _Referable:
    """Adds the slot for weak references, which `dataclass(slots=True)` lacks before Python 3.11."""

    __slots__ = ("__weakref__",)


@dataclass(slots=True, eq=False)
class FunctionRecord(_Referable):
    """One function: its bytes if they are kept, and the mean duration of a call in seconds once measured."""

    id: bytes
    name: str = ""
    body: bytes | None = None
    stored: bool = False
    """Whether the body is a reference into object storage."""
    seconds: float | None = None
    submitted: int = 0
    """Calls submitted since the record was made."""
    runs: int = 0
    """Runs that ended, and how long all of them took."""
    run_seconds: float = 0.0
    result_size: int = 0
    """The greatest class of its results that were in object storage, of those of `scaler_protocol.result_sizes`."""
    long_share: float = 0.0
    """The share of long results among those of its latest runs that were granted one: a running mean, 0 to 1."""
    asking: set[bytes] = field(default_factory=set)
    """Identities of agents that wait for the bytes."""
    sessions: set[int] = field(default_factory=set)
    """Numbers of sessions that submitted calls of it; some of them may have ended."""
    waiting_tasks: dict[SessionRecord, dict[TaskRecord, None]] = field(default_factory=dict)
    """HELD tasks that cannot be dispatched until the bytes have arrived."""

    def measured(self, seconds: float, runs: int) -> None:
        """Add the duration of a call, which stands for so many runs, to the mean and the sums."""
        self.runs += runs
        self.run_seconds += runs * seconds
        if self.seconds is None:
            self.seconds = seconds
        else:
            self.seconds += SMOOTHING * (seconds - self.seconds)
