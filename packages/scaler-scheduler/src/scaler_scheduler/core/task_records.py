"""Tasks as the scheduler knows them: a record each, or columns and shared entries for those that need no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from typing import TYPE_CHECKING, Final

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.payloads import NONE, Payloads

if TYPE_CHECKING:
    from scaler_scheduler.core.agent_record import AgentRecord
    from scaler_scheduler.core.records import GraphRecord, GroupRecord


class TaskState(IntEnum):
    """The state of a task; `scaler_scheduler.core.core` shows the transitions."""

    WAITING = 0
    """In a lane, ready to run."""
    HELD = 1
    """Not in a lane: it lacks inputs, function bytes or its call, or is a suspect without an agent of its own."""
    ASSIGNED = 2
    """An agent has it, queued or running."""
    DONE = 3
    """Its owner was sent the outcome; the agent keeps it until the owner releases it."""
    GONE = 4
    """Nobody wants it; entries that it still has in a lane or on an agent are skipped."""
    SECOND = 5
    """Not a task, but the second run of one that is ASSIGNED: see `scaler_scheduler.core.speculation`."""


GIVEN_UP_RUNS = 8
FEW_TASKS = 16
"""So many inputs and dependents of a task are in tuples, which take a third of what lists and dictionaries do."""

# Plain integers: an enum member costs a look-up and a comparison in Python wherever it is touched.
WAITING, HELD, ASSIGNED, DONE, GONE, SECOND = (int(state) for state in TaskState)

Outcome = tuple[int, bytes, bool]
"""Status, payload, and whether that is a reference."""
Given = tuple[bytes, bool]
"""An input of a task: payload, and whether that is a reference."""
KeptOutcome = tuple[Outcome, bytes, str]
"""Outcome, profile, and the name of the agent."""


@dataclass(slots=True, eq=False)
class RunNotes:
    """What is known of a task's runs beside the current one, and what these have submitted: little of few tasks."""

    lost_runs: int = 0
    shared_losses: int = 0
    """Runs lost with an agent when it is unknown which run ended it: see `scaler_scheduler.core.suspects`."""
    suspect: bool = False
    exclusive: bool = False
    """Whether it used more memory than a worker may, and runs alone: see `scaler_scheduler.core.exclusive`."""
    seen: float = 0.0
    """When its agent first reported the run of a suspect as being on a worker."""
    charged: int = 0
    """The run that was counted as lost with its agent; discounted if the agent comes back with it."""
    given_up: tuple[tuple[int, bytes], ...] = ()
    """The last GIVEN_UP_RUNS runs lost with their agents, with the agents' identities; an agent may come back with its
    run."""
    raised_runs: int = 0
    earlier_runs: int = 0
    """Runs that were on a worker before the task was queued again, whether they are charged to it or not."""
    counted: int = 0
    """The last of these that was given up with its agent; discounted if the agent comes back with it."""
    children: list[int] | None = None
    """Tasks that it has submitted."""
    second: TaskRecord | None = None
    """Its second run: see `scaler_scheduler.core.speculation`."""
    lost_seconds: int = 0
    """Second runs that ended without an outcome."""

    def give_up(self, run: int, agent: AgentRecord) -> None:
        """A run was lost with its agent, which may come back with it."""
        self.given_up = (*self.given_up[1 - GIVEN_UP_RUNS :], (run, agent.peer))


class TaskExtra:
    """Fields that few tasks need beside nodes of graphs, of which there may be millions."""

    __slots__ = (
        "consumers", "dependents", "given", "graph", "intermediate", "missing_inputs", "needs", "notes", "outcome",
        "owner_waits", "stored",
    )  # fmt: skip

    def __init__(self) -> None:
        self.stored = False
        self.needs: Collection[int] = ()
        """The tasks that make its inputs."""
        self.given: dict[int, Given] | None = None
        """The inputs that have arrived; None if none have."""
        self.missing_inputs = 0
        """Inputs that have not arrived."""
        self.dependents: Sequence[TaskRecord] = ()
        """Tasks that need its result, until it has ended; a list if they are many."""
        self.graph: GraphRecord | None = None
        self.consumers = 0
        """Tasks of its graph that use its result and have not ended."""
        self.intermediate = False
        """Whether its result is for other nodes only: the client did not ask for it."""
        self.owner_waits = True
        """Whether the owner must release the outcome before it is forgotten."""
        self.outcome: Outcome | None = None
        """How it ended; kept as long as it has consumers."""
        self.notes: RunNotes | None = None

    def add_dependent(self, task: TaskRecord) -> None:
        """This task needs its result."""
        dependents = self.dependents
        if len(dependents) < FEW_TASKS:
            self.dependents = (*dependents, task)
        elif isinstance(dependents, list):
            dependents.append(task)
        else:
            self.dependents = [*dependents, task]

    def inputs(self) -> Iterator[tuple[int, Given | None]]:
        """The tasks that make its inputs, each with the input, or None until that has arrived."""
        return zip(self.needs, map((self.given or {}).get, self.needs), strict=True)

    def results(self) -> Iterator[bytes]:
        """The payloads that are kept for this task and for those that need it."""
        if self.outcome is not None:
            yield self.outcome[1]
        for payload, _ in (self.given or {}).values():
            yield payload

    @property
    def is_suspect(self) -> bool:
        """Whether it may have ended its host."""
        return self.notes is not None and self.notes.suspect

    @property
    def is_exclusive(self) -> bool:
        """Whether it runs alone on a host."""
        return self.notes is not None and self.notes.exclusive

    @property
    def is_apart(self) -> bool:
        """Whether the task, if it is not on an agent, is a suspect or exclusive, and lacks no input."""
        notes = self.notes
        return notes is not None and (notes.suspect or notes.exclusive) and not self.missing_inputs


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
        """0 before the first one, and when it has ended: of 36 bytes that nobody needs there may be millions."""
        self.cost = 0.0
        """Expected seconds, estimated when it was dispatched."""
        self.extra: TaskExtra | None = None

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
        records = list(map(TaskRecord, ids, repeat(self.group), calls))
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


TaskEntry = TaskRecord | TaskBlock | EndedTasks
"""How a task is known in its session."""
