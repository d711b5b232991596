"""The rows of AgentCore: what runs are, which of them a worker was given, what workers are."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scaler_protocol.messages import Group, WorkerState
from scaler_worker.ipc.frames import FOLLOWS, FUNCTIONS_LIMIT

NO_RUN: Final = int.from_bytes(b"no run", "little")
"""In the word of a worker that has not begun its first run. A task may write zeros over the word: these name no run."""
UNKNOWN = math.inf
"""The estimate of a function that has not run yet."""
SEPARATE = 4
SEPARATE_MICROSECONDS = 1_000.0
"""So few runs of one datagram, and no longer than this together, are heard of one by one."""
OVERHEAD_MICROSECONDS = 3.0
"""What a run costs its worker beyond its own duration."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What AgentCore needs to know."""

    workers: int
    name: str
    host: str
    names: tuple[str, ...] = ()
    task_timeout_seconds: float = 0.0
    object_retention_seconds: float = 3600.0
    secret: bytes = b""
    """By which objects of runs are named; empty where there is no object storage."""
    preload: str = ""
    """What workers run before they are ready."""


class FunctionKind:
    """A function together with how its calls and results are written; workers know it by its handle."""

    __slots__ = ("encoding", "estimate", "fault", "function", "handle", "parked", "serializer", "stream_output")

    def __init__(self, handle: int, group: Group) -> None:
        self.handle = handle
        self.function, self.serializer = group.function, group.serializer
        self.encoding, self.stream_output = group.encoding, group.stream_output
        self.estimate = UNKNOWN
        """Microseconds of a run, moving average."""
        self.fault = b""
        """Why a worker could not be told of it (a FAILED payload): how runs end that come back for that."""
        self.parked: list[Entry] = []
        """Runs that wait for the bytes of the function."""

    def measured(self, microseconds: float) -> None:
        """Take the mean duration of some runs; rises are believed sooner than falls, for guessing low costs more."""
        found = microseconds + OVERHEAD_MICROSECONDS
        if self.estimate == UNKNOWN:
            self.estimate = found
        else:
            self.estimate += (found - self.estimate) * (0.5 if found > self.estimate else 0.2)


class TaskGroup:
    """A group of tasks as the agent sees it."""

    __slots__ = ("kind", "level", "timeout")

    def __init__(self, group: Group, kind: FunctionKind, default_timeout: float) -> None:
        self.kind = kind
        self.level = (-group.priority, -group.depth)
        # Whatever is no number of seconds is none: of one that is not a number no comparison would ever come true.
        self.timeout = group.timeout_seconds if group.timeout_seconds > 0 else default_timeout


Entry = tuple[int, int, TaskGroup, bytes, int, int]
"""One run: run id, task id, lane, call, attempt, flags of `scaler_worker.ipc.frames`."""


class Datagram:
    """Runs that a worker was given at once, `at` the first of them that has not ended."""

    __slots__ = ("at", "checked", "entries", "estimate", "revoked", "sequence", "since")

    def __init__(self, sequence: int, entries: list[Entry], estimate: float) -> None:
        self.sequence, self.entries, self.estimate = sequence, entries, estimate
        self.at = 0
        self.since = 0.0
        """When the run at `at` became the worker's next one."""
        self.checked = 0.0
        """When something was last done about what stands behind it."""
        self.revoked = False

    def left(self) -> list[Entry]:
        """The runs that have not ended."""
        return self.entries[self.at :]

    @property
    def is_swept(self) -> bool:
        """Whether its results are read from time to time, many with one wake-up, and not each at once."""
        count = len(self.entries)
        return count > SEPARATE or (count > 1 and self.estimate >= SEPARATE_MICROSECONDS)


class WorkerRecord:
    """One worker process."""

    __slots__ = (
        "blocked",
        "charged_run",
        "children",
        "cpu",
        "datagrams",
        "idle_since",
        "inferred_blocked",
        "kill_reason",
        "kill_target",
        "knows",
        "last_run",
        "name",
        "number",
        "pid",
        "retire_reason",
        "revoked_run",
        "sequence",
        "sessions",
        "skipped",
        "state",
        "withdrawn",
    )  # fmt: skip

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name, self.pid = number, name, 0
        self.state: int = WorkerState.STARTING
        self.datagrams: deque[Datagram] = deque()
        self.sequence = 0
        self.knows: OrderedDict[int, FunctionKind] = OrderedDict()
        """By handle: what it was told of and may still hold; what it has dropped it asks for."""
        self.last_run = NO_RUN
        """The last run that has ended, or was given back."""
        self.charged_run = 0
        """The run for whose doings it is killed, which counts as its death under that."""
        self.skipped = False
        """Whether it did not start what it was given last, though that was not revoked."""
        self.revoked_run = NO_RUN
        """The first of the runs that were last taken back from what it had read: it may have come to that one."""
        self.blocked = False
        self.inferred_blocked = False
        """Whether `blocked` was concluded from its doing nothing."""
        self.withdrawn: set[int] = set()
        """Runs in flight that nobody wants any more."""
        self.kill_target: int | None = None
        """The run that is to be stopped, by killing the worker."""
        self.kill_reason: bytes = b""
        """How that run ends (a FAILED payload); empty where that is settled already."""
        self.idle_since = 0.0
        self.children: set[int] = set()
        """Unfinished tasks that the current run submitted."""
        self.sessions: dict[int, None] = {}
        self.retire_reason = ""
        """Why it ends by itself, if it has said so."""
        self.cpu = -1
        """Nanoseconds at the last look, if there was one since it has children."""

    def learn(self, kind: FunctionKind) -> None:
        """It is told of a kind; of as many as it can hold we remember that it was."""
        self.knows[kind.handle] = kind
        if len(self.knows) > FUNCTIONS_LIMIT:
            self.knows.popitem(last=False)

    def run_named(self, word: int) -> int:
        """The run that it is in, by what its word says; 0 where it is in none.

        The word names that run, or the last one that has ended, or one that it did not start because it is revoked.
        Any other number was written by a task, so that is in the next run: it is charged, or stopped, all the same.
        """
        entry = self.next_entry()
        if entry is None or word in (self.last_run, self.revoked_run):
            return 0
        return word if any(each[0] == word for each in self.entries()) else entry[0]

    def entries(self) -> list[Entry]:
        """The runs it was given that have not ended, in its order."""
        return [entry for datagram in self.datagrams for entry in datagram.left()]

    def next_entry(self) -> Entry | None:
        """The run it is at, or will be at next."""
        if not self.datagrams:
            return None
        head = self.datagrams[0]
        return head.entries[head.at]


class WaitingRuns:
    """The queue of an agent: higher priority first, then deeper, then in order of arrival."""

    __slots__ = ("_count", "_keys", "_levels")

    def __init__(self) -> None:
        self._levels: dict[tuple[int, int], deque[Entry]] = {}
        self._keys: list[tuple[int, int]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        return (entry for key in self._keys for entry in self._levels[key])

    def _level(self, key: tuple[int, int]) -> deque[Entry]:
        level = self._levels.get(key)
        if level is None:
            level = self._levels[key] = deque()
            self._keys.append(key)
            self._keys.sort()
        return level

    def _forget_empty(self) -> None:
        for key in [key for key in self._keys if not self._levels[key]]:
            self._keys.remove(key)
            del self._levels[key]

    def extend(self, entries: Sequence[Entry]) -> None:
        """New runs."""
        self._count += len(entries)
        if len(lanes := {entry[2] for entry in entries}) == 1:
            self._level(lanes.pop().level).extend(entries)
        else:
            for entry in entries:
                self._level(entry[2].level).append(entry)

    def requeue(self, entries: Sequence[Entry]) -> None:
        """Runs that were taken and not started: they are next again, in their order."""
        self._count += len(entries)
        for entry in reversed(entries):
            self._level(entry[2].level).appendleft(entry)

    def take(self, count: int, microseconds: float, size: int) -> list[Entry]:
        """The next runs of one level: at least one, no more than `count`, within the bounds together.

        A run that takes what the one before makes comes with it, come what may.
        """
        queue = self._levels[self._keys[0]]
        entry = queue.popleft()
        taken = [entry]
        microseconds -= entry[2].kind.estimate
        size -= len(entry[3])
        while queue:
            entry = queue[0]
            microseconds -= entry[2].kind.estimate
            size -= len(entry[3])
            if not entry[5] & FOLLOWS and (len(taken) >= count or microseconds < 0 or size < 0):
                break
            taken.append(queue.popleft())
        self._count -= len(taken)
        if not queue:
            self._forget_empty()
        return taken

    def take_newest(self, count: int) -> list[Entry]:
        """Up to `count` runs from the far end."""
        taken: list[Entry] = []
        for key in reversed(self._keys):
            queue = self._levels[key]
            while queue and len(taken) < count:
                taken.append(queue.pop())
        self._count -= len(taken)
        self._forget_empty()
        return taken

    def remove(self, runs: set[int]) -> list[Entry]:
        """Take out these runs, as many as are here."""
        removed: list[Entry] = []
        for key in self._keys:
            level = self._levels[key]
            if found := [entry for entry in level if entry[0] in runs]:
                removed += found
                self._levels[key] = deque(entry for entry in level if entry[0] not in runs)
        self._count -= len(removed)
        self._forget_empty()
        return removed
