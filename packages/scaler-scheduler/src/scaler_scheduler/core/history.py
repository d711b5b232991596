"""History: the last failures, events and figures, which monitors that subscribe late are sent. Pure, no IO.

It is kept without monitors, too, so an entry costs an append: the traceback of a failure is read when it is sent.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import field
from heapq import merge
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from scaler_protocol.errors import restore
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import NAME, OUTPUT_BYTES, shortened
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import MonitorHistory
from scaler_protocol.ranges import Text
from scaler_protocol.run_figures import RunFigures
from scaler_protocol.tracebacks import excerpt, traceback_text
from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.core.task_states import Outcome

E = TypeVar("E")
ENTRIES: Final = 1000
"""Most failures, and most events."""
FAILURE_BYTES: Final = 4 * 2**20
EVENT_BYTES: Final = 2**19
PRINTED: Final = 5000
"""Most texts that tasks have printed."""
PRINTED_BYTES: Final = 4 * 2**20
PRINTED_TEXT: Final = Text(4096)
CAUSES: Final = 10_000
"""Most tasks of which it is known which task's failure ended them."""
FIGURE_SECONDS: Final = 5.0
"""Least time between two figures."""
FIGURES: Final = 120
"""PastFigures kept: those of ten minutes."""
TEXT: Final = Text(1000)
"""The limit of one sentence for monitors."""
TRACEBACK_LIMIT: Final = 4000
"""Characters sent of a traceback, from its end."""
_RSS_MOST: Final = 2**64 - 1
"""What the column of a message can hold: agents report what they like."""
EXCERPTS: Final = 100
"""Excerpts of tracebacks that are kept until the outcomes come, which is in the same turn or the next one."""
_UNKNOWN: Final = "the error is too long for monitors: the client has it"
_ENTRY_BYTES: Final = 200
"""About what an entry takes without its text."""


class _Part(Generic[E]):
    """Entries of one kind, with their numbers and sizes, and the sum of these."""

    __slots__ = ("entries", "used")

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int, E]] = deque()
        self.used = 0


class _Owner(Generic[E]):
    """The entries of one owner, by kind, and the sum of their sizes."""

    __slots__ = ("parts", "used")

    def __init__(self) -> None:
        self.parts: dict[Hashable, _Part[E]] = {}
        self.used = 0


class SharedRing(Generic[E]):
    """The entries added last, within bounds: the owner with most loses the oldest of the kind of which it has most."""

    def __init__(self, entries: int, size: int) -> None:
        self._least = size // entries
        """Each entry counts as at least so many bytes, so that one sum bounds both."""
        self._limit = self._least * entries
        self._used = 0
        self._owners: dict[Hashable, _Owner[E]] = {}
        self._added = 0

    def add(self, owner: Hashable, entry: E, size: int, kind: Hashable = None) -> list[E]:
        """Add an entry; returns the entries that are forgotten, because they exceed the bounds."""
        size = max(size, self._least)
        owned = self._owners.setdefault(owner, _Owner())
        part = owned.parts.setdefault(kind, _Part())
        self._added += 1
        part.entries.append((self._added, size, entry))
        part.used += size
        owned.used += size
        self._used += size
        forgotten = []
        while self._used > self._limit:
            forgotten.append(self._forget_one(owner, kind))
        return forgotten

    def _forget_one(self, owner: Hashable, kind: Hashable) -> E:
        """Forget the oldest entry of whoever has more than his share: of this owner and kind, or of those with most."""
        owned = self._owners.get(owner)
        if owned is None or owned.used * len(self._owners) < self._limit:
            owner = max(self._owners, key=lambda each: self._owners[each].used)
            owned = self._owners[owner]
        parts = owned.parts
        if kind not in parts or parts[kind].used * len(parts) < owned.used:
            kind = max(parts, key=lambda each: parts[each].used)
        part = parts[kind]
        _, size, entry = part.entries.popleft()
        part.used -= size
        owned.used -= size
        self._used -= size
        if not part.entries:
            del parts[kind]
            if not parts:
                del self._owners[owner]
        return entry

    def __iter__(self) -> Iterator[E]:
        """The entries in the order in which they were added."""
        parts = (part.entries for owned in self._owners.values() for part in owned.parts.values())
        return (entry for _, _, entry in merge(*parts, key=itemgetter(0)))


@dataclass(slots=True)
class Failure:
    """A task that raised, or could not run."""

    number: int
    time: float
    task: int
    function: str
    session: int
    client: str
    agent: int
    agent_name: str
    status: int
    profile: bytes
    payload: bytes
    text: str = ""
    """What monitors are sent; empty until they are."""

    def read(self) -> str:
        """The traceback, or the error."""
        if not self.text:
            self.text, self.payload = _error_text(self.status, self.payload) or "no traceback", b""
        return self.text


def _error_text(status: int, payload: bytes) -> str:
    if status == Status.FAILED:
        return shortened(str(restore(payload)), TEXT)
    return excerpt(traceback_text(payload), TRACEBACK_LIMIT)


@dataclass(frozen=True, slots=True)
class Event:
    """A sentence about what has happened, of a logging level and an EventKind, and the task concerned or 0."""

    number: int
    time: float
    level: int
    kind: int
    task: int
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class PrintedText:
    """What a task has printed at once, in one of its runs."""

    number: int
    task: int
    attempt: int
    text: str


def printed_columns(printed: Sequence[PrintedText]) -> dict[str, Any]:
    """The columns of messages to monitors with what tasks have printed."""
    return {
        "printed_numbers": [each.number for each in printed],
        "printed_tasks": [each.task for each in printed],
        "printed_attempts": [each.attempt for each in printed],
        "printed": [each.text for each in printed],
    }


@dataclass(frozen=True, slots=True)
class PastFigures:
    """Tasks that had ended, tasks then by where they were, cores and bytes of all workers."""

    time: float
    ended: int
    waiting: int
    assigned: int
    running: int
    cpu: float
    rss: int


@dataclass(slots=True)
class History:
    """The memory. Times are those of the core's clock."""

    failures: SharedRing[Failure] = field(default_factory=lambda: SharedRing(ENTRIES, FAILURE_BYTES))
    forgotten: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """When the last failure was that is not remembered, by function: of the last ENTRIES such functions."""
    events: SharedRing[Event] = field(default_factory=lambda: SharedRing(ENTRIES, EVENT_BYTES))
    printed: SharedRing[PrintedText] = field(default_factory=lambda: SharedRing(PRINTED, PRINTED_BYTES))
    printed_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    """By task and attempt, of those that printed last."""
    excerpts: dict[int, str] = field(default_factory=dict)
    """Of tracebacks, by task, until the outcomes come."""
    causes: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Of tasks that have ended without a run, by id: the task that they need and that ended without a value."""
    figures: deque[PastFigures] = field(default_factory=lambda: deque(maxlen=FIGURES))
    runs: RunFigures = field(default_factory=RunFigures)
    """About hosts and workers."""
    figures_at: float = 0.0
    """When the next figures are to be taken."""

    def add_event(self, event: Event) -> None:
        """Keep an event; events of each kind have an equal share."""
        self.events.add(event.kind, event, _ENTRY_BYTES + len(event.text))

    def add_failure(self, number: int, task: TaskRecord, outcome: Outcome, profile: bytes, now: float) -> Failure:
        """Keep a failure; those of the sessions of a key have an equal share together, in it those of a function."""
        status, payload, stored = outcome
        excerpt_of_stored = self.excerpts.pop(task.id, "")
        root, agent = task.group.lane.session, task.agent
        failure = Failure(
            number, now, task.id, task.group.function.name, task.group.session.number, root.name,
            agent.number if agent else 0, (agent.name or agent.host) if agent else "", status, profile,
            b"" if stored else payload, (excerpt_of_stored or _UNKNOWN) if stored else "",
        )  # fmt: skip
        size = _ENTRY_BYTES + len(failure.payload) + len(failure.text) + len(failure.function)
        for each in self.failures.add(root.share, failure, size, kind=(failure.function, status)):
            self.forgotten[each.function] = max(each.time, self.forgotten.pop(each.function, each.time))
            if len(self.forgotten) > ENTRIES:
                self.forgotten.popitem(last=False)
        return failure

    def add_excerpt(self, task: int, text: bytes) -> None:
        """A failure of this task follows whose error is stored; this is an excerpt of its traceback."""
        self.excerpts[task] = shortened(text.decode("utf-8", "replace"), PRINTED_TEXT)
        if len(self.excerpts) > EXCERPTS:
            del self.excerpts[next(iter(self.excerpts))]

    def add_cause(self, task: int, cause: int) -> int:
        """Keep why a task has ended without a run; returns the task whose failure is the first cause."""
        cause = self.causes.get(cause, cause)
        self.causes[task] = cause
        if len(self.causes) > CAUSES:
            self.causes.popitem(last=False)
        return cause

    def add_printed(self, number: int, task: TaskRecord, text: bytes) -> PrintedText | None:
        """Keep what a task has printed; those of the sessions of a key have an equal share together. None: too much."""
        run = task.id, task.attempt
        size = self.printed_bytes.pop(run, 0) + len(text)
        self.printed_bytes[run] = size
        if len(self.printed_bytes) > PRINTED:
            del self.printed_bytes[next(iter(self.printed_bytes))]
        if size > OUTPUT_BYTES + PRINTED_TEXT.most:  # a worker says in its last piece that there is more
            return None
        printed = PrintedText(number, *run, shortened(text.decode("utf-8", "replace"), PRINTED_TEXT))
        self.printed.add(task.group.lane.session.share, printed, _ENTRY_BYTES + len(text))
        return printed

    def take_figures(self, now: float, ended: int, unfinished: int, agents: Iterable[AgentRecord]) -> None:
        """Keep figures of this moment."""
        self.figures_at = now + FIGURE_SECONDS
        self.runs.count_noted()
        assigned = running = rss = 0
        cpu = 0.0
        for agent in agents:
            assigned, running = assigned + len(agent.runs), running + len(agent.running)
            if (sums := agent.sums) is not None:
                cpu, rss = cpu + sums.cpu, rss + sums.rss
            elif agent.status is not None:
                cpu, rss = cpu + sum(agent.status.cpus), rss + sum(agent.status.rsses)
        waiting = max(0, unfinished - assigned)  # a task may have two runs
        self.figures.append(PastFigures(now, ended, waiting, assigned, running, cpu, min(rss, _RSS_MOST)))

    def message(self, since: float) -> MonitorHistory:
        """All of it. `since` is the Unix time, in seconds, at which the core's clock was 0."""
        failures, events, figures = list(self.failures), list(self.events), list(self.figures)
        return MonitorHistory(
            failure_numbers=[failure.number for failure in failures],
            failure_times=[since + failure.time for failure in failures],
            failure_tasks=[failure.task for failure in failures],
            failure_functions=[shortened(failure.function, NAME) for failure in failures],
            failure_sessions=[failure.session for failure in failures],
            failure_clients=[failure.client for failure in failures],
            failure_agents=[failure.agent for failure in failures],
            failure_agent_names=[failure.agent_name for failure in failures],
            failure_statuses=[failure.status for failure in failures],
            failure_profiles=b"".join([failure.profile for failure in failures]),
            failures=[failure.read() for failure in failures],
            forgotten_functions=[shortened(function, NAME) for function in self.forgotten],
            forgotten_times=[since + time for time in self.forgotten.values()],
            event_numbers=[event.number for event in events],
            event_times=[since + event.time for event in events],
            event_levels=[event.level for event in events],
            event_kinds=[event.kind for event in events],
            event_tasks=[event.task for event in events],
            event_subjects=[event.subject for event in events],
            events=[event.text for event in events],
            **printed_columns(list(self.printed)),
            **self.runs.columns(),
            figure_times=[since + each.time for each in figures],
            figure_ended=[each.ended for each in figures],
            figure_waiting=[each.waiting for each in figures],
            figure_assigned=[each.assigned for each in figures],
            figure_running=[each.running for each in figures],
            figure_cpus=[each.cpu for each in figures],
            figure_rsses=[each.rss for each in figures],
        )
