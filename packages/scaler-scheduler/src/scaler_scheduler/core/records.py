"""The scheduler's tables: rows of tasks, sessions, lanes, groups and agents, which refer to each other."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from itertools import islice, repeat
from typing import Final, cast

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import AgentStatus, Group
from scaler_protocol.payloads import NONE, Payloads
from scaler_scheduler.core.agent_reports import WorkerSums
from scaler_scheduler.core.consumables import Consumables
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.lane_ages import LaneAges
from scaler_scheduler.core.named_session_record import NamedSession
from scaler_scheduler.core.node_columns import NodeColumns
from scaler_scheduler.core.run_times import RunTimes
from scaler_scheduler.core.shared_calls import SharedCalls, share
from scaler_scheduler.core.task_extra import RunNotes, TaskExtra
from scaler_scheduler.core.task_states import DONE, HELD, WAITING, KeptOutcome
from scaler_scheduler.requirements import Requirement, Runtime, WorkerClass

LaneKey = tuple[int, int, Requirement, "AgentRecord | None"]
"""Priority, depth, requirement, and the agent of the parents, see `LaneRecord.agent`."""
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
    was_elsewhere: bool = False
    """Whether its process was connected to an earlier incarnation before its last Hello."""
    last_wanted: int = 0
    """The greatest task that its process then asked for in Reconcile: later ones are unknown to earlier schedulers."""
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
        elif isinstance(entry, EndedTasks | HeldNodes):
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
        before, self.waiting = self.waiting, self.waiting + tasks
        if not (before and self.waiting):
            self.share.waiting += bool(self.waiting) - bool(before)

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
            function.waiting_tasks.pop(self.number, None)
        self.groups.clear()
        self.missing_functions.clear()


@dataclass(slots=True, eq=False)
class LaneRecord:
    """Waiting tasks that differ only in age: same root session, priority, depth, requirement and agent."""

    session: SessionRecord
    priority: int
    depth: int
    requirement: Requirement
    agent: AgentRecord | None
    """Where they go at once if it can take them: the agent of their parents, which run outside of its host."""
    tasks: deque[TaskRecord | TaskBlock] = field(default_factory=deque)
    """The first one is never a block that has been opened."""
    queued: int = 0
    """How many tasks these are."""
    ready: list[tuple[int, int, int, TaskRecord]] = field(default_factory=list)
    """Nodes whose inputs have all arrived, as a heap: graph by graph, each in the order of its nodes."""
    tombstones: int = 0
    """Entries of tasks that are not wanted any more."""
    listed: bool = False
    """Whether it has tasks, and queues of worker classes have it."""
    ages: LaneAges = field(default_factory=LaneAges)
    groups: int = 0
    """Remembered groups whose tasks wait here."""
    registered: bool = False
    """Whether the task queue has it: as long as it has groups or tasks."""
    calls_missing: bool = False
    """For tasks known by id only, after a restart: their calls must be submitted again before they can run."""

    @property
    def key(self) -> LaneKey:
        """Its key in the root session's table of lanes."""
        return self.priority, self.depth, self.requirement, self.agent

    @property
    def size(self) -> int:
        """Number of entries, including those of tasks that are not wanted any more."""
        return self.queued + len(self.ready)

    @property
    def since(self) -> float:
        """When its oldest task was added."""
        return self.ages.oldest(self.size)

    @property
    def first(self) -> TaskRecord | TaskBlock:
        """The next task, or the block that it is the first one of."""
        return self.ready[0][-1] if self.is_ready_next() else self.tasks[0]

    def is_ready_next(self) -> bool:
        """Whether a ready node goes next: before other tasks, so that results are used up, but after earlier nodes of
        its own graph."""
        if not self.ready or not self.tasks:
            return bool(self.ready)
        front, task = self.tasks[0], self.ready[0][-1]
        if task.id < front.id or front.extra is None or front.extra.graph is None:
            return True
        return task.extra is None or front.extra.graph is not task.extra.graph

    def records(self) -> list[TaskRecord]:
        """All entries, whichever goes first; blocks are opened."""
        found = [entry[-1] for entry in self.ready]
        for entry in self.tasks:
            found += entry.open() if isinstance(entry, TaskBlock) else (entry,)
        self.tasks = deque(found[len(self.ready) :])
        return found

    def pop(self, limit: int) -> list[TaskRecord]:
        """Take the next tasks that are wanted, at most `limit`."""
        taken: list[TaskRecord] = []
        if not self.tombstones and not self.ready:
            while self.tasks and len(taken) < limit:
                taken += self._pop_first(limit - len(taken))
            return taken
        ready, tasks, pop = self.ready, self.tasks, heapq.heappop
        if not self.tombstones and not tasks:
            return [pop(ready)[-1] for _ in range(min(limit, len(ready)))]
        while (ready or tasks) and len(taken) < limit:
            if ready and (not tasks or self.is_ready_next()):
                task = pop(ready)[-1]
            else:
                (task,) = self._pop_first(1)
            if task.state == WAITING:
                taken.append(task)
            else:
                self.tombstones -= 1
        return taken

    def _pop_first(self, limit: int) -> list[TaskRecord]:
        """The first tasks, at least one and at most `limit`, which are all of one block or of none."""
        tasks = self.tasks
        first = tasks.popleft()
        if isinstance(first, TaskBlock):
            taken = first.take(limit)
            if len(first):
                tasks.appendleft(first)
        else:
            taken = [first]
            while tasks and len(taken) < limit and isinstance(task := tasks[0], TaskRecord):
                tasks.popleft()
                taken.append(task)
        self.queued -= len(taken)
        if tasks:
            self.open_first()
        return taken

    def open_first(self) -> None:
        """Put the tasks of blocks that have been opened in their place, as long as such a block is the first entry."""
        tasks = self.tasks
        while tasks and isinstance(block := tasks[0], TaskBlock) and block.records is not None:
            tasks.popleft()
            tasks.extendleft(reversed(block.records))

    def remove(self, task: TaskRecord) -> None:
        """Remove the entry of a task."""
        if any(entry[-1] is task for entry in self.ready):
            self.ready = [entry for entry in self.ready if entry[-1] is not task]
            heapq.heapify(self.ready)
            return
        self.records()
        self.tasks.remove(task)
        self.queued -= 1

    def drop_unwanted(self, task: TaskRecord) -> None:
        """Remove all entries of tasks that do not wait any more, and that of this one."""
        alive = deque[TaskRecord | TaskBlock]()
        for entry in self.tasks:
            if isinstance(entry, TaskRecord):
                among: Sequence[TaskRecord] = (entry,)
            elif entry.records is None:
                alive.append(entry)
                continue
            else:
                among = entry.records
            alive.extend([waiting for waiting in among if waiting.state == WAITING and waiting is not task])
        self.ready = [entry for entry in self.ready if entry[-1].state == WAITING and entry[-1] is not task]
        heapq.heapify(self.ready)
        self.tombstones = 0
        self.tasks, self.queued = alive, sum([len(entry) if isinstance(entry, TaskBlock) else 1 for entry in alive])

    def clear(self) -> None:
        """Remove all entries."""
        self.tasks.clear()
        self.ready.clear()
        self.queued = self.tombstones = 0

    def check(self) -> None:
        """Assert that entries are counted, and that some task is wanted if there are any; for tests."""
        entries = [entry[-1] for entry in self.ready]
        unopened = 0
        for entry in self.tasks:
            if isinstance(entry, TaskRecord):
                entries.append(entry)
            elif entry.records is None:
                unopened += len(entry)
            else:
                entries += entry.records
        assert self.size == len(entries) + unopened, (self.size, len(entries), unopened)
        unwanted = sum(task.state != WAITING for task in entries)
        assert self.tombstones == unwanted and (unwanted < self.size or not self.size), (unwanted, self.size)
        first = self.tasks[0] if self.tasks else None
        assert not isinstance(first, TaskBlock) or first.records is None, "the first block has been opened"


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


class TaskRecord:
    """One task."""

    __slots__ = ("agent", "calls", "cost", "extra", "group", "id", "run", "state")

    def __init__(self, task: int, group: GroupRecord, call: bytes | SharedCalls) -> None:
        self.id = task
        self.group = group
        self.calls = call
        """Its call, or where it is among those of others."""
        self.state = WAITING
        self.agent: AgentRecord | None = None
        self.run = 0
        """0 before the first one, and when it has ended: of 36 bytes that nobody needs there may be millions."""
        self.cost = 0.0
        """Expected seconds, estimated when it was dispatched."""
        self.extra: TaskExtra | None = None

    @property
    def call(self) -> bytes:
        """Its call."""
        return self.calls if isinstance(self.calls, bytes) else self.calls.of(self.id)

    @property
    def call_bytes(self) -> int:
        """The bytes of its call."""
        return len(self.call)

    def more(self) -> TaskExtra:
        """The rarely used fields, made on first use."""
        if self.extra is None:
            self.extra = TaskExtra()
        return self.extra

    def note(self) -> RunNotes:
        """What is known of its runs, to be changed."""
        extra = self.more()
        if extra.notes is None:
            extra.notes = RunNotes()
        return extra.notes

    @property
    def notes(self) -> RunNotes | None:
        """What is known of its runs; None if nothing is."""
        return self.extra.notes if self.extra is not None else None

    @property
    def is_call_missing(self) -> bool:
        """Whether, since a restart, its call has not been submitted again, and no agent runs it."""
        return self.state == HELD and self.group.lane.calls_missing

    @property
    def attempt(self) -> int:
        """The number of the current (or next) run, from 1."""
        extra = self.extra
        return 1 if extra is None or extra.notes is None else 1 + extra.notes.earlier_runs


class TaskBlock:
    """Waiting tasks of one message as columns, in their order: a record is made when one of them is needed.

    It looks like a record of its first task.
    """

    __slots__ = ("_at", "_bytes", "_calls", "_ids", "_offset", "group", "records")

    state: Final = WAITING
    extra: Final[TaskExtra | None] = None

    def __init__(self, tasks: Sequence[int], group: GroupRecord, calls: Payloads) -> None:
        self.group = group
        self.records: list[TaskRecord] | None = None
        """All of its tasks, once it has been opened: since then some may not be wanted any more."""
        self._ids, self._calls = tasks, calls
        self._at = self._offset = 0
        """Of the first task, and of its call."""
        self._bytes = sum(calls.lengths)

    def __len__(self) -> int:
        return len(self.records) if self.records is not None else len(self._ids) - self._at

    @property
    def id(self) -> int:
        """The first task."""
        return self._ids[self._at]

    @property
    def call_bytes(self) -> int:
        """The bytes of the calls of all its tasks; 0 if it has been opened."""
        return self._bytes - self._offset

    def take(self, most: int) -> list[TaskRecord]:
        """Take the first tasks, at most so many, out of a block that has not been opened."""
        begin, end = self._at, min(self._at + most, len(self._ids))
        calls, self._offset = self._calls.some(begin, end, self._offset)
        ids, self._at = self._ids[begin:end], end
        records = list(map(TaskRecord, ids, repeat(self.group), share(ids, calls)))
        self.group.session.tasks.update(zip(ids, records, strict=True))
        return records

    def open(self) -> list[TaskRecord]:
        """The records of all its tasks."""
        if self.records is None:
            self.records = self.take(len(self._ids))
            self._calls = NONE
        return self.records


class EndedTasks:
    """What is left of the tasks of one report that have nothing but an outcome, which their agent keeps.

    It looks like the record of each.
    """

    __slots__ = ("agent", "group")

    state: Final = DONE
    extra: Final[TaskExtra | None] = None
    call_bytes: Final = 0

    def __init__(self, agent: AgentRecord, group: GroupRecord) -> None:
        self.agent = agent
        self.group = group

    def record(self, task: int) -> TaskRecord:
        """A record for one of the tasks."""
        record = TaskRecord(task, self.group, b"")
        record.state, record.agent = DONE, self.agent
        return record


class HeldNodes:
    """Nodes of one message and group that lack results of tasks which have not ended.

    It looks like the record of each, which is made when one is needed: at the latest when its inputs are there.
    """

    __slots__ = ("columns", "graph", "group")

    state: Final = HELD
    extra: Final[TaskExtra | None] = None
    agent: Final[AgentRecord | None] = None
    call_bytes: Final = 0

    def __init__(self, group: GroupRecord, graph: GraphRecord, columns: NodeColumns) -> None:
        self.group = group
        self.graph = graph
        self.columns = columns

    def record(self, task: int) -> TaskRecord:
        """A record for one of the nodes."""
        columns = self.columns
        row = task - columns.first
        inputs, missing = columns.take_inputs(row)
        record = TaskRecord(task, self.group, columns.calls[row])
        record.state = HELD
        record.extra = TaskExtra(
            self.graph,
            inputs,
            missing,
            columns.dependents[row],
            columns.consumers[row],
            columns.intermediate[row] != 0,
        )
        return record


def edges_of(task: int, entry: TaskEntry) -> tuple[GraphRecord | None, Collection[int]]:
    """The graph that a task is a node of, or None, and the tasks that it needs."""
    if isinstance(entry, HeldNodes):
        return entry.graph, entry.columns.needs_of(task - entry.columns.first)
    extra = entry.extra
    return (extra.graph, extra.inputs) if extra is not None else (None, ())


def missing_inputs(task: int, entry: TaskEntry) -> list[int]:
    """The tasks that make the inputs which a task lacks."""
    if isinstance(entry, HeldNodes):
        row, columns = task - entry.columns.first, entry.columns
        return [need for need in columns.needs_of(row) if need not in (columns.given[row] or ())]
    return [need for need, given in entry.extra.inputs.items() if given is None] if entry.extra is not None else []


def is_intermediate(task: int, entry: TaskEntry) -> bool:
    """Whether the result of a task is for other nodes only: the client did not ask for it."""
    if isinstance(entry, HeldNodes):
        return bool(entry.columns.intermediate[task - entry.columns.first])
    return entry.extra is not None and entry.extra.intermediate


TaskEntry = TaskRecord | TaskBlock | EndedTasks | HeldNodes
"""How a task is known in its session."""


@dataclass(slots=True, eq=False)
class AgentRecord:
    """One agent: N equal workers on one host."""

    peer: bytes
    name: str
    host: str
    workers: int
    queue_size: int
    worker_class: WorkerClass
    unreported: range
    """Ids of runs that it had not received at its last report."""
    runs: dict[int, TaskRecord] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    functions: dict[bytes, None] = field(default_factory=dict)
    """Functions sent to it last; it asks for those that it has dropped."""
    load: float = 0.0
    """Expected seconds of its runs, and of tasks planned for it."""
    window: int = 0
    """Slow start: most unfinished runs; grows by one with each result."""
    released: dict[int, None] = field(default_factory=dict)
    """Tasks of which it need not keep the outcome any more, and has not been told so yet."""
    recalling: bool = False
    recall_from: float = 0.0
    """When it may be asked to return runs again; of agents without progress, the one with the earliest goes first."""
    progressed: bool = False
    """Whether it was given runs, or has reported results, since the loads were last compared."""
    idle: int = 0
    """Idle workers that other agents' runs may have, when the loads were last compared."""
    resuming: bool = False
    """Whether its Reconcile is pending: until then it is given no work."""
    returning: bool = False
    """Whether it was connected before, possibly to an earlier incarnation of the scheduler."""
    was_elsewhere: bool = False
    """Whether it was connected to an earlier incarnation just before."""
    suspect: TaskRecord | None = None
    """The suspect that it was given last."""
    reserved_for: TaskRecord | None = None
    """The exclusive task that it was reserved for last."""
    entry_version: int = 0
    """Identifies its valid entry in the heap of agents with room."""
    running: dict[int, float] = field(default_factory=dict)
    """Runs on a worker at its last report, with the time of the first report of each."""
    unused: int = 0
    """Workers without a run in that report: none of the runs that were queued then could have them."""
    number: int = 0
    """The number that monitors know it by."""
    status: AgentStatus | None = None
    """What is kept of its last report, which came at `reported_at`."""
    sums: WorkerSums | None = None
    """Of the workers in that report, if there are too many to keep or to list them all."""
    reported_at: float = 0.0
    manager: str = ""
    """The id of the worker manager that started it, or empty."""
    unit: str = ""
    """The name that its manager knows it by."""
    consumables: Consumables | None = None
    lives_on_seconds: float = 0.0
    """For how long at most its runs go on without a connection to the scheduler."""
    relay_incarnation: int = 0
    """Of a relay: which incarnation made the run ids that its agents know; 0: this is the agent of one host."""

    @property
    def is_draining(self) -> bool:
        """Whether it finishes its work to leave: it has no workers that take tasks. A relay may just have no host."""
        return not self.workers and not (self.relay_incarnation and not self.runs)

    @property
    def active(self) -> int:
        """Runs that occupy a worker's slot or wait for one: all but blocked ones (see `messages.Blocked`)."""
        return len(self.runs) - len(self.blocked)

    def on_workers(self, unsent: AbstractSet[int] = frozenset()) -> set[int]:
        """Runs that are probably on a worker: blocked and reported ones, then the oldest queued ones, then new ones."""
        active = [run for run in self.runs if run not in self.blocked and run not in unsent]
        reported = [run for run in active if run in self.running]
        if self.is_draining:
            return self.blocked.union(reported)
        others = [run for run in active if run not in self.running]
        queued = [run for run in others if run not in self.unreported]
        new = [run for run in others if run in self.unreported]
        freed = max(0, self.workers - self.unused - len(reported))
        return self.blocked.union((reported + queued[:freed] + new)[: self.workers])

    def next_queued(self, unsent: AbstractSet[int]) -> set[int]:
        """Runs reported as queued that come next: they have begun if earlier ones have ended, which may be unknown."""
        known = self.blocked.union(self.running, unsent)
        queued = (run for run in self.runs if run not in known and run not in self.unreported)
        return set(islice(queued, self.workers))

    def newest(self, unsent: AbstractSet[int]) -> set[int]:
        """The newest runs sent since the last report: one of them may have ended the agent on arrival."""
        sent_since = [run for run in self.runs if run in self.unreported and run not in unsent]
        return set(sent_since[-self.workers :] if self.workers else ())
