"""The records of AgentCore: runs, datagrams in flight, workers."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Final

from scaler_protocol.ids import pid_of, worker_name
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import MESSAGE_IDS, Group, Reconcile, Status, WorkerState
from scaler_worker.ipc.frames import FUNCTIONS_LIMIT

NO_RUN: Final = int.from_bytes(b"no run", "little")
"""In the run cell of a worker before its first run. Not 0, since a task may overwrite the cell with zeros."""
UNKNOWN = math.inf
"""The estimate of a function that has not run yet."""
OVERDUE_SECONDS: Final = 0.005
"""A run is overdue this long after ten times its estimate; then the runs behind it are reclaimed."""
SEPARATE = 4
SEPARATE_MICROSECONDS = 1_000.0
"""Results of a datagram of at most SEPARATE short runs are read as soon as each is written."""
OVERHEAD_MICROSECONDS = 3.0
"""Overhead of a worker per run."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The settings of AgentCore."""

    workers: int
    name: str
    host: str
    names: tuple[str, ...] = ()
    task_timeout_seconds: float = 0.0
    object_retention_seconds: float = 3600.0
    secret: bytes = b""
    """Derives the ids of stored results; empty without object storage."""
    preload: str = ""
    """The preload of workers, for error messages."""
    drain_timeout_seconds: float = 25.0
    """How long the agent may drain before it exits."""
    memory_limit_per_worker: int = 0
    """Bytes that the task of one worker may use; 0 is no limit."""
    scheduler: str = ""
    """The address of the scheduler, for error messages."""
    consumables: tuple[tuple[str, int], ...] = ()
    """How much the host has of each consumable."""
    gpus: tuple[str, ...] = ()
    """The GPUs that workers are given, one each."""


class FunctionKind:
    """A function with the encoding of its calls and results; workers know it by its handle."""

    __slots__ = ("encoding", "estimate", "fault", "function", "handle", "parked", "serializer", "stream_output")

    def __init__(self, handle: int, group: Group) -> None:
        self.handle = handle
        self.function, self.serializer = group.function, group.serializer
        self.encoding, self.stream_output = group.encoding, group.stream_output
        self.estimate = UNKNOWN
        """Moving average of the duration of a run, in microseconds."""
        self.fault = b""
        """FAILED payload for its runs if the definition could not be sent to a worker."""
        self.parked: list[Entry] = []
        """Runs that wait for the bytes of the function."""

    def measured(self, microseconds: float) -> None:
        """Update the estimate with a mean duration; it rises faster than it falls, since underestimating costs more."""
        found = microseconds + OVERHEAD_MICROSECONDS
        if self.estimate == UNKNOWN:
            self.estimate = found
        else:
            self.estimate += (found - self.estimate) * (0.5 if found > self.estimate else 0.2)


class TaskGroup:
    """Tasks that share function kind, priority, depth, timeout and what they take."""

    __slots__ = ("depth", "kind", "level", "pid", "priority", "takes", "timeout")

    def __init__(self, group: Group, kind: FunctionKind, default_timeout: float) -> None:
        self.kind = kind
        self.priority, self.depth = group.priority, group.depth
        self.level = (-group.priority, -group.depth)
        self.pid = pid_of(group.worker)
        """The only worker that may run the tasks; 0: any."""
        self.takes = tuple(zip(group.capability_names, group.capability_values, strict=True))
        """What each run takes of the consumables of the host and of the cluster."""
        # A NaN is no timeout either: the comparison is false for it.
        self.timeout = group.timeout_seconds if group.timeout_seconds > 0 else default_timeout


# A plain tuple: a named one costs 150 ns more per task to create, a fifth of the core's whole turn.
Entry = tuple[int, int, TaskGroup, bytes, int, int]
"""One run: run id, task id, group, call, attempt, flags of `scaler_worker.ipc.frames`."""
RUN: Final = 0
TASK: Final = 1
GROUP: Final = 2
ATTEMPT: Final = 4
FLAGS: Final = 5


def reconciles(
    unfinished: Sequence[Entry], kept: Sequence[int], withdrawn: Sequence[Entry] = ()
) -> Iterator[Reconcile]:
    """What an agent tells a new scheduler: its runs, the tasks whose outcomes it keeps, and what runs have taken.

    Withdrawn runs have that until they are over.
    """
    taken = [(entry[RUN], *share) for entry in (*unfinished, *withdrawn) for share in entry[GROUP].takes]
    last = max(len(unfinished), len(kept), len(taken), 1) - 1
    for at in range(0, last + 1, MESSAGE_IDS):
        some, end = unfinished[at : at + MESSAGE_IDS], at + MESSAGE_IDS
        takers, names, values = zip(*taken[at:end], strict=True) if taken[at:end] else ((), (), ())
        yield Reconcile(
            [entry[TASK] for entry in some],
            run_ids(some),
            finished=kept[at:end],
            more=end <= last,
            takers=takers,
            taken_names=names,
            taken_values=values,
        )


def run_ids(entries: Iterable[Entry]) -> list[int]:
    """The run ids of entries."""
    return [entry[RUN] for entry in entries]


class Datagram:
    """Runs that were sent to a worker together; `at` is the position of the first that has not ended."""

    __slots__ = (
        "asked",
        "at",
        "begun",
        "checked",
        "entries",
        "estimate",
        "patience",
        "revoked",
        "seen",
        "sequence",
        "since",
    )

    def __init__(self, sequence: int, entries: list[Entry], estimate: float) -> None:
        self.sequence, self.entries, self.estimate = sequence, entries, estimate
        self.patience = OVERDUE_SECONDS + (0.0 if estimate == UNKNOWN else estimate / len(entries) / 1e5)
        """Seconds that one of its runs may take before it is overdue.

        Estimates of later runs do not count: one long run would justify all others that are behind it elsewhere.
        """
        self.at = 0
        self.since = 0.0
        """When the run at `at` became the next one."""
        self.checked = 0.0
        """When the runs behind it were last reclaimed."""
        self.revoked = False
        self.begun = False
        """Whether the worker was seen to have begun the run at `at`."""
        self.seen = 0.0
        """When the worker was last seen not to have begun it."""
        self.asked = 0.0
        """When it was last recalled to see that, or to stop the run."""

    def left(self) -> list[Entry]:
        """The runs that have not ended."""
        return self.entries[self.at :]

    @property
    def is_swept(self) -> bool:
        """Whether its results are read at intervals, many per wake-up, instead of each at once."""
        count = len(self.entries)
        return count > SEPARATE or (count > 1 and self.estimate >= SEPARATE_MICROSECONDS)


@dataclass(slots=True)
class EarlyReports:
    """Reports of a run that came while the reply of an earlier run is held back, until storage has its result."""

    children: set[int] = field(default_factory=set)
    blocked: bool = False


class WorkerRecord:
    """One worker process."""

    __slots__ = (
        "agent",
        "blocked",
        "charged_run",
        "children",
        "cpu",
        "datagrams",
        "defined",
        "early",
        "gpu",
        "idle_since",
        "inferred_blocked",
        "kill_reason",
        "kill_status",
        "kill_target",
        "last_run",
        "name",
        "number",
        "pid",
        "retire_reason",
        "returned_unrevoked",
        "revoked_run",
        "revoked_sequence",
        "sequence",
        "sessions",
        "state",
        "still_seconds",
        "was_asked_to_end",
        "withdrawn",
    )  # fmt: skip

    def __init__(self, number: int, name: str, gpu: str = "", agent: str = "") -> None:
        self.number, self.name, self.agent, self.pid = number, name, agent, 0
        self.gpu = gpu
        """The GPU that it sees; empty if none, or whatever this host has."""
        self.state: int = WorkerState.STARTING
        self.datagrams: deque[Datagram] = deque()
        self.sequence = 0
        self.defined: OrderedDict[int, FunctionKind] = OrderedDict()
        """By handle: kinds that were defined at it; it reports FunctionMissing for those it has evicted."""
        self.last_run = NO_RUN
        """The last run that ended or was returned."""
        self.charged_run = 0
        """The run that is charged for killing this worker, as if the worker had died in it."""
        self.returned_unrevoked = False
        """Whether it returned its last datagram although that was not revoked."""
        self.revoked_run = NO_RUN
        """The first run that was last reclaimed from a revoked datagram: the run cell may show it."""
        self.revoked_sequence = 0
        """That datagram."""
        self.blocked = False
        self.inferred_blocked = False
        """Whether `blocked` was inferred from its CPU time."""
        self.withdrawn: set[int] = set()
        """Runs in flight that were withdrawn."""
        self.kill_target: int | None = None
        """The run to stop by killing this worker."""
        self.kill_reason: bytes = b""
        """The payload of that run's outcome; empty if its end is already reported."""
        self.kill_status: int = Status.FAILED
        """The status of that run's outcome."""
        self.idle_since = 0.0
        self.still_seconds = 0.0
        """For how long it has begun nothing of what it was sent, although it ran nothing."""
        self.children: set[int] = set()
        """Unfinished tasks that the current run has submitted."""
        self.early: dict[int, EarlyReports] = {}
        """By run: what runs behind the current one have reported."""
        self.sessions: dict[int, None] = {}
        self.retire_reason = ""
        """Why it retires; empty if it has not reported that."""
        self.was_asked_to_end = False
        """Whether it retires because somebody has asked its process to end."""
        self.cpu = -1
        """CPU nanoseconds at the last reading; -1 if there was none since it has children."""

    @property
    def called(self) -> str:
        """Its name on this agent, and the one that pages show."""
        return f"{self.name} ({worker_name(self.agent, self.pid)})"

    def learn(self, kind: FunctionKind) -> None:
        """Record that a kind is defined at this worker, for as many kinds as it can hold."""
        self.defined[kind.handle] = kind
        if len(self.defined) > FUNCTIONS_LIMIT:
            self.defined.popitem(last=False)

    def run_named(self, cell: int) -> int:
        """The run that it executes, according to its run cell; 0 if none.

        The cell holds that run, the last one that ended, or one that was not started because it is revoked; the latter
        may be its next run again. A task has written any other number, so the worker executes its next run, which can
        still be charged or stopped.
        """
        entry = self.next_entry()
        if entry is None or (cell != entry[RUN] and cell in (self.last_run, self.revoked_run)):
            return 0
        return cell if cell in run_ids(self.entries()) else entry[RUN]

    def begun(self, cell: int) -> list[Entry]:
        """The runs in flight that it may have begun, according to its run cell, in order.

        Results of those before the current one may be in transit to storage.
        """
        entries = self.entries()
        runs = run_ids(entries)
        # One that was reclaimed and sent again may wait or run: the cell shows the same.
        if current := cell if cell in runs else self.run_named(cell):
            return entries[: runs.index(current) + 1]
        if self.datagrams and cell == self.revoked_run and self.datagrams[0].sequence == self.revoked_sequence:
            return self.datagrams[0].left()
        return []

    def entries(self) -> list[Entry]:
        """The runs in flight that have not ended, in order."""
        return [entry for datagram in self.datagrams for entry in datagram.left()]

    def early_reports(self, run: int) -> EarlyReports | None:
        """Where to note what a run behind the current one reports; None if the worker does not have the run."""
        if run not in self.early and run in run_ids(self.entries()):
            self.early[run] = EarlyReports()
        return self.early.get(run)

    def next_entry(self) -> Entry | None:
        """The current run, or the next one."""
        if not self.datagrams:
            return None
        head = self.datagrams[0]
        return head.entries[head.at]
