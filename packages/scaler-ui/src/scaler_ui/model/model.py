"""MonitorModel: builds tables from the monitor stream. Pure, no IO.

Invariant: every task that the scheduler has published and that has not ended is live in the table of tasks. A snapshot
restores this after messages were lost.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import field, replace
from heapq import merge
from operator import attrgetter
from typing import TypeVar

from scaler_protocol.byte_planes import from_planes
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import (
    PACKED_BATCH,
    PACKED_EDGE,
    PACKED_ID,
    EventKind,
    MonitorHistory,
    MonitorMessage,
    MonitorStatus,
    StorageStatus,
    TaskEvents,
    TaskStep,
)
from scaler_protocol.profiles import PROFILE, Profile, profile_at
from scaler_protocol.run_figures import Growth, RecentRuns, RunFigures
from scaler_protocol.status_counts import off_hosts, queued, running, worker_cpu, worker_rss
from scaler_ui.model.delays import MonitorDelays
from scaler_ui.model.failed_task import LastFailures, TaskFailure
from scaler_ui.model.graph_edges import EdgeTable
from scaler_ui.model.minutes import Minutes
from scaler_ui.model.moments import Moment, mean_latency
from scaler_ui.model.task_table import TASKS, TaskTable
from scaler_ui.model.workloads import WorkloadTable

IN_TASK = "(in a task)"
"""What the sessions of tasks that submit tasks are called."""
K = TypeVar("K")
V = TypeVar("V")
STALE_SECONDS = 5.0
"""Seconds without a message after which the numbers are marked as old."""
EVENTS = 2_000
"""Events of each kind that are kept."""
PRINTED_CHARACTERS = 32 * 2**20
"""What tasks have printed, as far as it is kept."""
PRINTED_ENTRY = 200
"""Each text counts as so many characters more: about what it takes without them."""
NAMES = 20_000
"""Agents and clients whose names are known, also after they left, and other entries of one number or name each."""
FIRST_PAST_AGENT = 2**63
"""Agents of schedulers that have ended have the numbers from here on: each scheduler begins at 1 again."""
GROUPS = 100_000
BEGUN_AGAIN = "another scheduler has begun here: older tasks, failures and events are of the one before"
HISTORY_SECONDS = 600
CLOCK_STEP_SECONDS = 2.0
"""A clock that goes back by more was set."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The attributes that tasks of a group share, as published."""

    function: str = ""
    session: int = 0
    priority: int = 0
    needs: str = ""
    runtime: str = ""


@dataclass(slots=True)
class FunctionFigures:
    """Cost of the calls of a function that ended while this monitor listened: seconds and bytes."""

    ended: dict[int, int] = field(default_factory=dict)
    runs: int = 0
    duration: float = 0.0
    longest: float = 0.0
    cpu: float = 0.0
    transfers: float = 0.0
    """In which objects were fetched and results stored."""
    peak_memory: int = 0

    def has_ended(self, status: int, calls: int = 1) -> None:
        """Count calls that ended so."""
        self.ended[status] = self.ended.get(status, 0) + calls

    def ran(self, profile: Profile) -> None:
        """Count a run."""
        seconds = profile.duration_us / 1e6
        self.runs += 1
        self.duration += seconds
        self.longest = max(self.longest, seconds)
        self.cpu += profile.cpu_us / 1e6
        self.transfers += profile.transfer_us / 1e6
        self.peak_memory = max(self.peak_memory, profile.peak_memory)

    @property
    def count(self) -> int:
        """Calls that ended."""
        return sum(self.ended.values())


@dataclass(frozen=True, slots=True)
class MonitorEvent:
    """A text of an EventKind: its time in seconds since 1970, its level, the task concerned or 0, and its subject."""

    number: int
    time: float
    level: int
    kind: int
    task: int
    subject: str
    text: str


def _remember(table: dict[K, V], entries: Iterable[tuple[K, V]], limit: int) -> None:
    """Add entries, or renew them, and forget the oldest beyond the limit."""
    for key, value in entries:
        table.pop(key, None)
        table[key] = value
    _forget_oldest(table, limit)


def _forget_oldest(table: dict[K, V], limit: int) -> None:
    while len(table) > limit:
        del table[next(iter(table))]


def stale_report_seconds(status: MonitorStatus) -> float:
    """Seconds without a report after which the figures of a host are marked as old: hosts report with heartbeats."""
    return max(STALE_SECONDS, 2 * status.heartbeat_seconds)


class MonitorModel:
    """The state of all received messages. `now` is any monotonic clock in seconds."""

    def __init__(self, tasks: int = TASKS) -> None:
        self.status: MonitorStatus | None = None
        self.heard = 0.0
        self.silence_reason = ""
        """Why nothing is heard, as far as who listens knows: the keys, or messages that cannot be read."""
        self.began_again: float | None = None
        """When the scheduler began that took the place of another one, by its clock; None if none did."""
        self.storage: StorageStatus | None = None
        self.storage_heard = 0.0
        """When object storage was heard last, or since when it could be: only a scheduler that speaks tells of it."""
        self.faults: dict[int, str] = {}
        """The last texts about tasks: of one that raised its traceback, else a sentence."""
        self.failures = LastFailures()
        """Also those that failed before this monitor listened."""
        self.causes: OrderedDict[int, int] = OrderedDict()
        """Of tasks that ended without a run, by id: the task that they need and that ended without a value."""
        self.agents: dict[int, str] = {}
        """Names of agents by number, also of those that have left."""
        self.hosts: dict[int, str] = {}
        """Their hosts."""
        self.clients: dict[int, str] = {}
        """Names of clients by session, also of those that have left."""
        self.tasks = TaskTable(tasks)
        self.functions: OrderedDict[str, FunctionFigures] = OrderedDict()
        self.workloads = WorkloadTable()
        self.run_figures = RunFigures()
        self.ended: dict[tuple[int, str], int] = {}
        """Tasks that ended while this monitor listened, by client and function."""
        self.last_ends: dict[int, float] = {}
        """When a task of each client ended last."""
        self.last_functions: dict[tuple[int, int], str] = {}
        """The function of the task that ended last, by agent and process."""
        self.delays = MonitorDelays()
        self._answers: deque[tuple[float, float]] = deque()
        """When object storage answered in the last minute, and how long it took."""
        self.groups: OrderedDict[int, GroupInfo] = OrderedDict()
        self.history: deque[Moment] = deque(maxlen=HISTORY_SECONDS)
        self.minutes = Minutes()
        self.graphs = EdgeTable()
        self._events: dict[int, deque[MonitorEvent]] = {}
        """By kind, in order."""
        self._heard_texts = 0
        """The number of the last text; those with greater ones are new."""
        self.printed: OrderedDict[int, list[tuple[int, str]]] = OrderedDict()
        """What tasks have printed, by id, with the attempt; of those that printed last."""
        self._heard_printed = self._printed_size = 0
        self._failed_rows: dict[int, int] = {}
        """Of tasks that failed in the message that is processed, by id."""
        self._timed, self._latency, self._beginning = 0, 0.0, False
        self._next_past_agent = FIRST_PAST_AGENT

    def take(self, message: MonitorMessage, now: float) -> None:
        """Process one message of the feed; messages must be in order."""
        if isinstance(message, MonitorStatus):
            self._take_status(message, now)
        elif isinstance(message, StorageStatus):
            self.storage, self.storage_heard = message, now
            self._answers.append((now, message.answer_seconds))
            while self._answers[0][0] < now - 60.0:
                self._answers.popleft()
        elif isinstance(message, MonitorHistory):
            self._take_history(message)
        else:
            self._take_events(message)

    def caught_up(self, now: float, delay: float) -> None:
        """All that had arrived is processed, so many seconds after the first of it may have come."""
        if self.status is not None:
            self.heard = now
        self.delays.add(now, delay)

    def client_name(self, session: int) -> str:
        """What a client is called, also after it has left."""
        return self.clients.get(session, f"session {session:x}") or IN_TASK

    def known_host(self, host: str) -> str:
        """The host, if it has or had agents; otherwise an empty text."""
        return host if host in self.hosts.values() else ""

    @property
    def storage_seconds(self) -> float:
        """How long object storage took to answer, at most, in the minute before its last answer."""
        return max((seconds for _, seconds in self._answers), default=0.0)

    @property
    def is_complete(self) -> bool:
        """Whether a snapshot has come to its end, so that all tasks that have not ended are known."""
        return self.status is not None and not self._beginning

    @property
    def events(self) -> list[MonitorEvent]:
        """The last events of each kind, in order."""
        return list(merge(*self._events.values(), key=attrgetter("time")))

    def is_stale(self, now: float) -> bool:
        """Whether the numbers are old: no message for STALE_SECONDS."""
        return self.status is None or now > self.heard + STALE_SECONDS

    def is_storage_silent(self, now: float) -> bool:
        """Whether the scheduler speaks, but object storage has not answered it for two times STALE_SECONDS."""
        return now > self.storage_heard + 2 * STALE_SECONDS + self.delays.longest and not self.is_stale(now)

    def group_of(self, row: int) -> GroupInfo:
        """The group of the task in this row."""
        return self.groups.get(self.tasks.value("group", row), GroupInfo())

    @property
    def rate(self) -> float:
        """Tasks that ended per second, over the recent history."""
        if len(self.history) < 2:
            return 0.0
        first, last = self._lately()
        return max(0, last.ended - first.ended) / (last.at - first.at) if last.at > first.at else 0.0

    @property
    def latency(self) -> float | None:
        """Mean seconds from submission to end of recently ended tasks; None if there are none."""
        return mean_latency(*self._lately()) if self.history else None

    def _lately(self) -> tuple[Moment, Moment]:
        last = self.history[-1]
        return next(moment for moment in self.history if moment.at >= last.at - STALE_SECONDS), last

    def _take_status(self, status: MonitorStatus, now: float) -> None:
        if self._beginning:
            self._begun()
        since, follows = status.at, True
        if self.is_stale(now):
            self.storage_heard = now
        if self.status is not None and status.incarnation != self.status.incarnation:
            self.history.clear()  # its totals begin at zero
            follows = False
            self.storage_heard = now
            self._heard_texts = self._heard_printed = 0
            self.graphs.clear()
            self._renumber_agents()
            self._tell_beginning(status)
        elif self.status is not None:
            since = min(since, self.status.at)
            self._follow_clock(self.status, status)
        self.status, self.heard = status, now
        _remember(self.agents, zip(status.agents, status.agent_names, strict=True), NAMES)
        _remember(self.hosts, zip(status.agents, status.agent_hosts, strict=True), NAMES)
        _remember(self.clients, zip(status.client_sessions, status.client_names, strict=True), NAMES)
        ended = status.succeeded + status.raised + status.failed + status.cancelled
        cpu, rss, run = worker_cpu(status), worker_rss(status), running(status)
        moment = Moment(status.at, ended, off_hosts(status), queued(status), run, cpu, rss, self._timed, self._latency)
        self._note_moment(moment)
        self.minutes.add(moment, follows=follows)
        self._note_runs(status, since)
        if status.snapshot:
            self.tasks.begin()
            self._beginning = True

    def _follow_clock(self, before: MonitorStatus, status: MonitorStatus) -> None:
        """Move what this scheduler has said lately with its clock, if that was set back: it would be new for so long.

        A monitor that comes now is told these times. A clock that is ahead may be that of a host that was asleep.
        """
        began = before.at - before.uptime
        step = status.at - status.uptime - began
        if step > -CLOCK_STEP_SECONDS:
            return
        for texts in self._events.values():
            for at, event in enumerate(texts):
                if event.time >= began:
                    texts[at] = replace(event, time=event.time + step)
        for task, failure in self.failures.items():
            if failure.time >= began:
                self.failures[task] = replace(failure, time=failure.time + step)
        for function, time in self.failures.displaced.items():
            if time >= began:
                self.failures.displaced[function] = time + step
        if self.began_again is not None:
            self.began_again += step

    def _note_moment(self, moment: Moment) -> None:
        """Add the last moment to those of the last ten minutes, also when clocks jump, or hosts were asleep."""
        while self.history and self.history[-1].at > moment.at:
            self.history.pop()
        while self.history and self.history[0].at < moment.at - HISTORY_SECONDS:
            self.history.popleft()
        self.history.append(moment)

    def past_agents(self, count: int) -> range:
        """Numbers for so many agents that no scheduler numbers any more."""
        first = self._next_past_agent
        self._next_past_agent += count
        return range(first, self._next_past_agent)

    def _renumber_agents(self) -> None:
        """Give the agents of a scheduler that has ended other numbers than those of the next one."""
        known = {*self.tasks.agents(), *self.agents, *(each.agent for each in self.failures.values())}
        ended = sorted(number for number in known if 0 < number < FIRST_PAST_AGENT)
        numbers = dict(zip(ended, self.past_agents(len(ended)), strict=True))
        self.tasks.renumber_agents(numbers)
        self.agents = {numbers.get(number, number): name for number, name in self.agents.items()}
        self.hosts = {numbers.get(number, number): host for number, host in self.hosts.items()}
        for task, failure in self.failures.items():
            self.failures[task] = replace(failure, agent=numbers.get(failure.agent, failure.agent))
        self.last_functions.clear()
        self.run_figures.forget_workers()

    def _tell_beginning(self, status: MonitorStatus) -> None:
        """What the scheduler says itself does not tell that it is another one than before."""
        self.began_again = began = max(0.0, status.at - status.uptime)
        self._keep(MonitorEvent(0, began, logging.WARNING, EventKind.SCHEDULER, 0, "", BEGUN_AGAIN))

    def _note_runs(self, status: MonitorStatus, since: float) -> None:
        columns = status.worker_runs, status.worker_pids, status.worker_cpus, status.worker_seconds
        self.tasks.run(*columns, since, status.at)

    def _begun(self) -> None:
        self.tasks.begun()
        self._beginning = False
        if self.status is not None:  # it came before the tasks that workers run
            self._note_runs(self.status, self.status.at)

    def _take_events(self, events: TaskEvents) -> None:
        for number, *described in zip(
            events.group_numbers, events.group_functions, events.group_sessions, events.group_priorities,
            events.group_capabilities, events.group_runtimes, strict=True,
        ):  # fmt: skip
            self.groups[number] = GroupInfo(*described)
            self.groups.move_to_end(number)
        named = zip(events.group_sessions, events.group_clients, strict=True)
        _remember(self.clients, ((session, client) for session, client in named if client), NAMES)
        while len(self.groups) > GROUPS:
            self.groups.popitem(last=False)
        self._take_batches(events)
        for event in zip(
            events.text_numbers, events.text_times, events.text_levels, events.text_kinds, events.text_tasks,
            events.text_subjects, events.texts, strict=True,
        ):  # fmt: skip
            self._say(MonitorEvent(*event))
        if not events.goes_on:
            self._miss_failures()
        self._take_printed(events)
        edges = from_planes(events.edges, PACKED_EDGE.size)
        self.graphs.add(events.edge_graphs, events.edge_first_tasks, events.edge_counts, edges)
        if self._beginning and not events.goes_on:
            self._begun()

    def _miss_failures(self) -> None:
        """Note the failures without a text: the scheduler sends so many at once."""
        for task, row in self._failed_rows.items():
            if task not in self.causes:  # those that never ran are no failures of their own
                self.failures.has_lost(self.tasks.function_name(row), self.tasks.value("ended", row))
        self._failed_rows.clear()

    def _take_batches(self, events: TaskEvents) -> None:
        at = ended = 0
        ids, runs = (from_planes(column, PACKED_ID.size) for column in (events.tasks, events.runs))
        every_status, every_profile = from_planes(events.statuses, 1), from_planes(events.profiles, PROFILE.size)
        first_runs = PACKED_ID.iter_unpack(runs)
        for step, subject, size, after in PACKED_BATCH.iter_unpack(from_planes(events.batches, PACKED_BATCH.size)):
            time = events.since + after / 1e6
            tasks = struct.unpack_from(f"<{size}Q", ids, PACKED_ID.size * at)
            at += size
            if step in (TaskStep.WAITING, TaskStep.HELD):
                group = self.groups.get(subject, GroupInfo())
                function = self.tasks.function_number(group.function)
                self.tasks.stand(tasks, step, subject, function, group.session, time)
            elif step == TaskStep.ASSIGNED:
                self.tasks.assign(tasks, subject, next(first_runs)[0], time)
            elif step in (TaskStep.ENDED, TaskStep.AGAIN):
                statuses = every_status[ended : ended + size]
                profiles = every_profile[PROFILE.size * ended : PROFILE.size * (ended + size)]
                ended += size
                if step == TaskStep.ENDED:
                    self._end(tasks, subject, statuses, profiles, time)
                else:
                    self.tasks.run_ended(tasks, subject, profiles, time)
            elif step == TaskStep.CANCELLED:
                self._leave(tasks, time)
            elif step == TaskStep.NESTED:
                self.tasks.nest(tasks, subject, time)
            elif step == TaskStep.LACKING:
                _remember(self.causes, ((task, subject) for task in tasks), NAMES)

    def _say(self, event: MonitorEvent) -> None:
        self._heard_texts = event.number
        self._keep(event)
        if event.task:
            _remember(self.faults, ((event.task, event.text),), EVENTS)
            if event.kind == EventKind.FAILURE and (row := self._failed_rows.pop(event.task, None)) is not None:
                task = self.tasks.row(row)
                status = self.tasks.value("status", row)
                failure = TaskFailure(event.time, task.id, task.function, task.session, task.agent, status, event.text)
                self.failures.add((failure,))
                self.workloads.failed(task.function, task.session, failure.exception)

    def _keep(self, event: MonitorEvent) -> None:
        self._events.setdefault(event.kind, deque(maxlen=EVENTS)).append(event)

    def _take_history(self, history: MonitorHistory) -> None:
        """Add what happened before this monitor listened, or while it missed messages."""
        texts = [
            MonitorEvent(*event)
            for event in zip(
                history.event_numbers, history.event_times, history.event_levels, history.event_kinds,
                history.event_tasks, history.event_subjects, history.events, strict=True,
            )
        ]  # fmt: skip
        failures = [
            TaskFailure(*failure)
            for failure in zip(
                history.failure_times, history.failure_tasks, history.failure_functions, history.failure_sessions,
                history.failure_agents, history.failure_statuses, history.failures, strict=True,
            )
        ]  # fmt: skip
        _remember(self.clients, zip(history.failure_sessions, history.failure_clients, strict=True), NAMES)
        _remember(self.agents, zip(history.failure_agents, history.failure_agent_names, strict=True), NAMES)
        for at in self.tasks.unknown(history.failure_tasks):
            profile, failure = profile_at(history.failure_profiles, at), failures[at]
            self.tasks.add_ended(
                failure.task, failure.function, failure.session, failure.agent, failure.status, profile, failure.time
            )
        self.failures.add(failures)
        for function, time in zip(history.forgotten_functions, history.forgotten_times, strict=True):
            self.failures.has_lost(function, time)
        for number, failure in zip(history.failure_numbers, failures, strict=True):
            level = logging.ERROR if failure.status == Status.RAISED else logging.WARNING
            texts.append(MonitorEvent(number, failure.time, level, EventKind.FAILURE, failure.task, "", failure.text))
        for event in sorted(texts, key=attrgetter("number")):
            if event.number > self._heard_texts:
                self._say(event)
        self._take_printed(history)
        self._add_figures(history)
        runs = zip(history.run_counts, history.run_seconds, history.run_squares, history.run_failures, strict=True)
        growths = zip(
            history.growth_peaks, history.growth_runs, history.growth_raised, history.growth_sizes, strict=True
        )
        self.run_figures.add(
            zip(history.run_functions, history.run_hosts, (RecentRuns(*each) for each in runs), strict=True),
            zip(
                history.growth_functions, history.growth_agents, history.growth_pids,
                (Growth(*each) for each in growths), strict=True,
            ),
        )  # fmt: skip

    def _take_printed(self, message: TaskEvents | MonitorHistory) -> None:
        for number, task, attempt, text in zip(
            message.printed_numbers, message.printed_tasks, message.printed_attempts, message.printed, strict=True
        ):
            if number > self._heard_printed:
                self._heard_printed = number
                self.printed.setdefault(task, []).append((attempt, text))
                self._printed_size += PRINTED_ENTRY + len(text)
        while self._printed_size > PRINTED_CHARACTERS:
            _, oldest = self.printed.popitem(last=False)
            self._printed_size -= sum(PRINTED_ENTRY + len(text) for _, text in oldest)

    def _add_figures(self, history: MonitorHistory) -> None:
        """Add figures of times of which this monitor has none."""
        known = [moment.at for moment in self.history]
        found = [
            Moment(at, ended, waiting, max(0, assigned - run), run, cpu, rss, 0, 0.0)
            for at, ended, waiting, assigned, run, cpu, rss in zip(
                history.figure_times, history.figure_ended, history.figure_waiting, history.figure_assigned,
                history.figure_running, history.figure_cpus, history.figure_rsses, strict=True,
            )
            if all(abs(at - each) > STALE_SECONDS / 2 for each in known)
        ]  # fmt: skip
        if found:
            self.history = deque(sorted([*self.history, *found], key=attrgetter("at")), HISTORY_SECONDS)

    def _leave(self, tasks: tuple[int, ...], time: float) -> None:
        for row in self.tasks.leave(tasks, time):
            function, session = self.tasks.function_name(row), self.tasks.value("session", row)
            self.workloads.ended(function, session, Status.CANCELLED, self.tasks.value("since", row), time)
            self._figures(function).has_ended(Status.CANCELLED)

    def _figures(self, function: str) -> FunctionFigures:
        """Those of a function; of many functions those that ended last are remembered."""
        figures = self.functions.get(function)
        if figures is None:
            figures = self.functions[function] = FunctionFigures()
            _forget_oldest(self.functions, NAMES)
        self.functions.move_to_end(function)
        return figures

    def _end(self, tasks: tuple[int, ...], agent: int, statuses: bytes, profiles: bytes, time: float) -> None:
        host = self.hosts.get(agent, "")
        for row, status, profile in self.tasks.end(tasks, agent, statuses, profiles, time):
            self._timed += 1
            since = self.tasks.value("since", row)
            self._latency += time - since
            name = self.tasks.function_name(row)
            figures = self._figures(name)
            figures.has_ended(status)
            session = self.tasks.value("session", row)
            self.ended[session, name] = self.ended.get((session, name), 0) + 1
            self.last_ends[session] = time
            workload = self.workloads.ended(name, session, status, since, time)
            if status in (Status.RAISED, Status.FAILED):
                self._failed_rows[self.tasks.value("id", row)] = row
            if status <= Status.RAISED and profile.pid:  # otherwise a task that it needs has raised, and it never ran
                self.last_functions[agent, profile.pid] = name
                figures.ran(profile)
                self.run_figures.ran(name, host, agent, profile, failed=status == Status.RAISED)
                took = profile.duration_us / 1e6
                moved = profile.transfer_us / 1e6
                workload.ran(time - since - took, took, profile.cpu_us / 1e6, profile.peak_memory, moved)
        _forget_oldest(self.ended, NAMES)
        _forget_oldest(self.last_ends, NAMES)
        _forget_oldest(self.last_functions, NAMES)
