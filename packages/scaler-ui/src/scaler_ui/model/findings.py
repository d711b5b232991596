"""Findings: what an operator must know first, as sentences with a severity: progress, and what is wrong. Pure."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import shortened
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, MonitorStatus
from scaler_protocol.plurals import counted
from scaler_protocol.ranges import Text
from scaler_protocol.run_figures import RECENT_RUNS, Growth, RecentRuns
from scaler_protocol.status_counts import blocked, busy_workers, off_hosts, queued, running, unlisted_workers, workers
from scaler_protocol.units import duration, percent, size
from scaler_protocol.waiting import WaitReasons
from scaler_ui.model.estimates import HUNG_SECONDS, is_hung, time_left
from scaler_ui.model.model import STALE_SECONDS, GroupInfo, MonitorModel, stale_report_seconds

RECENT_SECONDS: Final = 600.0
"""How long an event is worth a finding."""
LEAST_RUNS: Final = 5
"""Runs of a function on a host before it is compared with others."""
SLOW: Final = 2.0
"""A host is slow if a function takes so many times longer there than elsewhere, and SLOW_SECONDS longer."""
SLOW_SECONDS: Final = 0.01
"""What the first runs of a process cost, and others beside it, is more than this where runs are short."""
LAG_SECONDS: Final = 0.5
STORAGE_SECONDS: Final = 1.0
"""Object storage is slow if it takes longer to say how it is; the scheduler looks for its answer every 0.1 s or so."""
STARVING_SECONDS: Final = 60.0
FREE_BYTES: Final = 256 * 2**20
"""Free memory or disk of a host below which its workers are in danger."""
LEAK_BYTES: Final = 256 * 2**20
LEAK_RUNS: Final = 5
"""Runs that must have raised the memory of a worker: functions that need more at times do so more and more rarely."""
NAMED: Final = 3
"""Subjects that a sentence names."""
NAME: Final = Text(80)
"""The limit of a name that clients choose: a longer one would push out other findings."""
REASON: Final = Text(200)


class Severity(IntEnum):
    """How urgent a finding is."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence, and what it is about, with the place of its page: a host, a function, a client or a task."""

    severity: Severity
    text: str
    subject: str = ""
    place: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text before the subject, its name, and the text behind it; the first is all where there is no page."""
        name = shortened(self.subject, NAME)
        found = re.search(rf"(?<!\S){re.escape(name)}(?![^\s.,:])", self.text) if self.place else None
        if found is None:
            return self.text, "", ""
        return self.text[: found.start()], name, self.text[found.end() :]


def findings(model: MonitorModel, now: float) -> list[Finding]:
    """Progress first, then what is wrong, the most urgent first; `now` is the model's clock.

    Of a silent scheduler that comes before all, because the rest is old.
    """
    status = model.status
    if status is None:
        return [Finding(Severity.ERROR, "No scheduler has answered yet.")]
    silent = [_silence(model, status, now)] if model.is_stale(now) else []
    found = _troubles(model, status, now)
    return [*silent, _progress(model, status), *sorted(found, key=lambda each: -each.severity)]


def sentence(found: Iterable[Finding]) -> str:
    """All findings as one text."""
    return " ".join(finding.text for finding in found)


def _silence(model: MonitorModel, status: MonitorStatus, now: float) -> Finding:
    reason = f": {model.silence_reason}" if model.silence_reason else ""
    said = f"The scheduler {status.address} has been silent for {duration(now - model.heard)}{reason}; before that:"
    return Finding(Severity.ERROR, said)


def _progress(model: MonitorModel, status: MonitorStatus) -> Finding:
    """How much work is done, and when it will be."""
    parts = [f"{busy_workers(status):,} of {counted(workers(status), 'worker')} busy"]
    if parents := blocked(status):
        parts.append(f"{counted(parents, 'blocked parent')}")
    if on_hosts := queued(status):
        parts.append(f"{on_hosts:,} queued on hosts")
    parts += [f"{count:,} {word}" for word, count in (("waiting", status.waiting), ("held", status.held)) if count]
    if not (open_here := off_hosts(status)):
        parts.append("nothing waits")
    left = time_left(model)
    said = ", ".join([*parts, left] if left else parts)
    is_hung_below = not left and any(True for _ in _hung_tasks(model, status))
    if not left and not is_hung_below and (longest := _longest_run(model, status)):
        seconds, task, name = longest
        called = f"task {task} ({_called(name)})"
        return Finding(Severity.NOTE, f"{said}; {called} has run for {duration(seconds)}.", task, "task")
    if status.assigned or open_here or workers(status):
        return Finding(Severity.NOTE, f"{said}.")
    return Finding(Severity.WARNING, "No worker is connected, and nothing waits.")


def _longest_run(model: MonitorModel, status: MonitorStatus) -> tuple[float, str, str] | None:
    """Seconds so far, task and function of the run that has taken longest, if that is long."""
    rows = model.tasks.running()
    found = [rows[run] for run in status.worker_runs if run in rows]
    times = zip(model.tasks.values("duration", found), found, strict=True)
    micros, row = max(times, default=(0, 0))
    if micros / 1e6 < HUNG_SECONDS:
        return None
    return micros / 1e6, f"{model.tasks.value('id', row):x}", model.tasks.function_name(row)


def _own_troubles(model: MonitorModel, now: float) -> Iterator[Finding]:
    """What this monitor has not shown, or late."""
    if (delay := model.delays.longest) > STALE_SECONDS:
        text = f"This monitor is behind: what it showed in the last minute was up to {duration(delay)} old"
        yield Finding(Severity.WARNING, f"{text}, because it has more to read or to show than its core can.")
    if losses := sum(at > now - RECENT_SECONDS for at in model.delays.losses):
        how_often = "once" if losses == 1 else f"{losses:,} times"
        text = f"Messages of the scheduler to this monitor were lost {how_often} lately"
        yield Finding(Severity.WARNING, f"{text}: tasks that ended then are unknown.")


def _troubles(model: MonitorModel, status: MonitorStatus, now: float) -> Iterator[Finding]:
    if status.refusal:
        yield Finding(Severity.ERROR, f"The scheduler refuses new work: {status.refusal}.")
    began = model.began_again
    if began is not None and 0.0 <= (age := status.at - began) < RECENT_SECONDS:
        text = f"Another scheduler has begun here {duration(age)} ago: totals count since then"
        yield Finding(Severity.NOTE, f"{text}, older tasks and failures are of the one before.")
    if unlisted := unlisted_workers(status):
        who = f"{counted(unlisted, 'worker')} of {counted(len(status.unlisted_agents), 'agent')}"
        text = "are too many to be listed: they are counted, and tasks that they run are shown as queued"
        yield Finding(Severity.NOTE, f"{who} {text}.")
    yield from _own_troubles(model, now)
    yield from _unmet_needs(model, status)
    yield from _shortages(status)
    yield from _lone_tasks(status)
    yield from _storage(model, status, now)
    yield from _managers(model, status)
    yield from _deaths(model, status)
    yield from _sick_hosts(model, status)
    yield from _hung_tasks(model, status)
    yield from _failing_functions(model, status)
    yield from _starving_clients(model, status)


# --- work -----------------------------------------------------------------------------------------------------------


def _unmet_needs(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    if not sum(status.agent_workers):
        if waiting := status.waiting:
            yield Finding(Severity.ERROR, f"{counted(waiting, 'task')} {_verb(waiting, 'wait')} for a first worker.")
        return
    reasons, unmet = WaitReasons(status), Counter[str]()
    for number, count in model.tasks.waiting_groups():
        group = model.groups.get(number, GroupInfo())
        if lacking := reasons.lacking(group.needs, group.runtime):
            unmet[", ".join(lacking)] += count
    for needs, count in unmet.most_common(NAMED):
        who = f"{counted(count, 'task')} {_verb(count, 'need')} {needs}"
        yield Finding(Severity.ERROR, f"{who}, which nobody offers.", needs)


def _shortages(status: MonitorStatus) -> Iterator[Finding]:
    """Consumables that tasks wait for."""
    for needs, count, short in zip(
        status.waiting_capabilities, status.waiting_tasks, status.waiting_shortages, strict=True
    ):
        if short:
            yield Finding(Severity.NOTE, f"{counted(count, 'task')} {_verb(count, 'wait')} for {short}.", needs)


def _lone_tasks(status: MonitorStatus) -> Iterator[Finding]:
    """Tasks that used too much memory and need a host each, and the hosts that are kept free for them."""
    if count := status.exclusive:
        own = "its own" if count == 1 else "their own"
        text = f"{counted(count, 'task')} that used too much memory {_verb(count, 'wait')} for a host of {own}."
        yield Finding(Severity.WARNING, text)
    columns = zip(status.agents, status.agent_hosts, status.agent_assigned, strict=True)
    kept_free = [(host, runs) for number, host, runs in columns if number in status.reserved_agents]
    for host, runs in kept_free[:NAMED]:
        until = f"until its {counted(runs, 'task')} {'has' if runs == 1 else 'have'} ended" if runs else "now"
        text = f"Host {host} gets no other work {until}: a task that used too much memory needs it alone."
        yield Finding(Severity.NOTE, text, host, "host")


def _hung_tasks(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    """Tasks that run far longer than others of their function have run."""
    rows, usual = model.tasks.running(), dict[str, float]()
    for name, seconds in zip(status.function_names, status.function_seconds, strict=True):
        usual.setdefault(name, seconds)
    places = [
        (rows[run], agent)
        for run, agent in zip(status.worker_runs, status.worker_agents, strict=True)
        if run and run in rows
    ]
    hung: list[tuple[float, int, str, int]] = []
    for (row, agent), micros in zip(places, model.tasks.values("duration", [row for row, _ in places]), strict=True):
        if (seconds := micros / 1e6) <= HUNG_SECONDS:
            continue
        name = model.tasks.function_name(row)
        if name and is_hung(model, name, usual.get(name, 0.0), seconds):
            hung.append((seconds, model.tasks.value("id", row), name, agent))
    if hung:
        seconds, task, name, agent = max(hung)
        others = f", and {counted(len(hung) - 1, 'other')} as well" if len(hung) > 1 else ""
        called, host = _called(name), model.hosts.get(agent, "")
        text = f"Task {task:x} ({called}) has run for {duration(seconds)} on {host}"
        text = f"{text}, far longer than its function usually does{others}."
        yield Finding(Severity.WARNING, text, f"{task:x}", "task")


def _failing_functions(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    """Functions whose tasks have ended workers, or raised, lately; and those that leave memory behind."""
    recent = [each for each in model.failures.values() if each.time > status.at - RECENT_SECONDS]
    killing = Counter(each.function for each in recent if each.status == Status.FAILED)
    raising = Counter(each.function for each in recent if each.status == Status.RAISED)
    for name, count in killing.most_common(NAMED):
        last = next(each for each in reversed(recent) if each.function == name and each.status == Status.FAILED)
        reason = shortened(last.headline, REASON)
        text = f"{_tasks_of(model, status, name, count)} failed without a result: {reason}."
        yield Finding(Severity.ERROR, text, name, "function")
    for name, count in raising.most_common(NAMED):
        text = f"{_tasks_of(model, status, name, count)} raised lately."
        yield Finding(Severity.WARNING, text, name, "function")
    yield from _leaking_functions(model)


def _tasks_of(model: MonitorModel, status: MonitorStatus, name: str, count: int) -> str:
    """So many tasks of a function, or at least so many, where not all recent failures are known."""
    is_least = model.failures.displaced.get(name, 0.0) > status.at - RECENT_SECONDS
    return f"{'At least ' * is_least}{counted(count, 'task')} of {_called(name)}"


def _called(function: str) -> str:
    """What a function is called: a scheduler that was restarted learns names from clients, after agents."""
    return shortened(function, NAME) or "a function whose name is not known"


def _leaking_functions(model: MonitorModel) -> Iterator[Finding]:
    """Functions most runs of which leave memory behind in a worker: named by the worker where it is most."""
    worst: dict[str, Growth] = {}
    for (name, _, _), growth in model.run_figures.growths.items():
        leaks = (
            bool(name) and growth.size > LEAK_BYTES and growth.raised >= LEAK_RUNS and 2 * growth.raised > growth.runs
        )
        if leaks and (name not in worst or growth.size > worst[name].size):
            worst[name] = growth
    for name, growth in worst.items():
        runs = f"{counted(growth.raised, 'run')} of {shortened(name, NAME)}"
        text = f"{runs} have raised the memory of a worker by {size(growth.size)}, to {size(growth.peak)}."
        yield Finding(Severity.WARNING, text, name, "function")


def _starving_clients(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    """Clients whose tasks wait long, and none runs or has ended lately, while those of others do."""
    reasons = WaitReasons(status)
    waits: dict[int, float] = {}
    for number, _, unstarted, since in model.tasks.open_groups():
        group = model.groups.get(number, GroupInfo())
        if unstarted and not reasons.lacking(group.needs, group.runtime) and not reasons.short_of(group.needs):
            waits[group.session] = min(since, waits.get(group.session, math.inf))
    if len(status.client_sessions) < 2 or not running(status):
        return
    if status.unlisted_agents:  # nobody knows whose tasks they run
        return
    rows = model.tasks.running()
    served = {model.tasks.value("session", rows[run]) for run in status.worker_runs if run in rows}
    for session, since in waits.items():
        if session not in served and since < status.at - STARVING_SECONDS and session in status.client_sessions:
            last = model.last_ends.get(session, 0.0)
            if (seconds := status.at - max(since, last)) > STARVING_SECONDS:
                name = model.client_name(session)
                text = f"No task of client {shortened(name, NAME)} has run for {duration(seconds)}; others' do."
                yield Finding(Severity.WARNING, text, name, "client")


# --- services -------------------------------------------------------------------------------------------------------


def _storage(model: MonitorModel, status: MonitorStatus, now: float) -> Iterator[Finding]:
    if is_silent := model.is_storage_silent(now):
        silence = duration(now - model.storage_heard)
        yield Finding(Severity.ERROR, f"Object storage has been silent for {silence}.")
    if (storage := model.storage) is None:
        return
    if not is_silent and (slowest := model.storage_seconds) > STORAGE_SECONDS:
        yield Finding(Severity.WARNING, f"Object storage answers late: after {duration(slowest)}.")
    if refused := storage.refused_lately:
        text = f"Object storage has refused {counted(refused, 'object')} lately: memory and disk are full"
        yield Finding(Severity.ERROR, f"{text} ({size(storage.bytes)} and {size(storage.spilled_bytes)}).")
    if storage.waiting:
        text = f"{counted(storage.waiting, 'object')} {_verb(storage.waiting, 'wait')} for room in object storage."
        yield Finding(Severity.WARNING, text)


def _managers(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    for name, failure in zip(status.managers, status.manager_failures, strict=True):
        if failure:
            yield Finding(Severity.WARNING, f"Worker manager {name} starts no workers: {failure}.", name)
    last = {event.subject: event for event in model.events if event.kind == EventKind.MANAGER}
    for name, event in last.items():
        if name not in status.managers and event.level >= logging.WARNING:
            yield Finding(Severity.ERROR, f"{event.text[:1].upper()}{event.text[1:]}.", name)


# --- hosts ----------------------------------------------------------------------------------------------------------


def _deaths(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    """Workers and hosts that were lost lately."""
    recent = [event for event in model.events if event.time > status.at - RECENT_SECONDS]
    of_agents = [e for e in recent if e.kind == EventKind.AGENT and e.subject and e.level >= logging.WARNING]
    lost = Counter(event.subject for event in of_agents)
    for host in sorted(lost):
        if host not in status.agent_hosts:
            yield Finding(Severity.ERROR, f"Host {host} is gone.", host, "host")
    left = Counter({host: count for host, count in lost.items() if host in status.agent_hosts})
    for host, count in left.most_common(NAMED):
        text = f"{counted(count, 'agent')} of host {host} {'was' if count == 1 else 'were'} lost."
        yield Finding(Severity.WARNING, text, host, "host")
    dead = Counter(event.subject for event in recent if event.kind == EventKind.WORKER)
    for host, count in dead.most_common(NAMED):
        yield Finding(Severity.WARNING, f"{counted(count, 'worker')} died on host {host}.", host, "host")


def _sick_hosts(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    """Hosts that are worse than the others: slow, failing, late or short of memory or disk."""
    said: set[str] = set()
    for finding in (*_odd_runs(model, status), *_late_hosts(status), *_short_of_room(status)):
        if finding.subject not in said:
            said.add(finding.subject)
            yield finding


def _odd_runs(model: MonitorModel, status: MonitorStatus) -> Iterator[Finding]:
    """Hosts on which a function takes longer, or raises more often, than on the others."""
    by_function: dict[str, dict[str, RecentRuns]] = defaultdict(dict)
    connected = set(status.agent_hosts)
    for (name, host), runs in model.run_figures.runs.items():
        if name and runs.count >= LEAST_RUNS and host in connected:  # "" may be many functions
            by_function[name][host] = runs
    for name, hosts in by_function.items():
        if len(hosts) < 2:
            continue
        called, among = shortened(name, NAME), hosts.values()
        seconds, deviations, failures = (
            _medians_of_others(column)
            for column in zip(*((each.seconds, each.deviation, each.failures) for each in among), strict=True)
        )
        others = zip(seconds, deviations, failures, strict=True)
        for (host, runs), (usual, spread, failing) in zip(hosts.items(), others, strict=True):
            # One run that was held up makes no slow host.
            surely = runs.seconds - 2 * runs.deviation / math.sqrt(min(runs.count, RECENT_RUNS))
            if surely > max(SLOW * usual + 2 * spread, usual + SLOW_SECONDS):
                taken = f"{duration(runs.seconds)} there, {duration(usual)} elsewhere"
                text = f"Host {host} is slow: {called} takes {taken}."
                yield Finding(Severity.WARNING, text, host, "host")
            elif runs.failures > 0.2 and runs.failures > 4 * failing:
                here, there = percent(100 * runs.failures), percent(100 * failing)
                text = f"Host {host} fails: {here} of {called} raise there, {there} elsewhere."
                yield Finding(Severity.ERROR, text, host, "host")


def _late_hosts(status: MonitorStatus) -> Iterator[Finding]:
    for column, least, text in (
        (status.agent_status_ages, 2 * stale_report_seconds(status), "has been silent for"),
        (status.agent_round_trips, LAG_SECONDS, "answers late: after"),
    ):
        for host, worst, usual in _compared(status, column):
            if worst > least and worst > 10 * usual:
                yield Finding(Severity.WARNING, f"Host {host} {text} {duration(worst)}.", host, "host")


def _compared(status: MonitorStatus, column: Iterable[float]) -> Iterator[tuple[str, float, float]]:
    """Of each host its greatest value, and the median of the others, 0 without others."""
    worst: dict[str, float] = {}
    for host, value in zip(status.agent_hosts, column, strict=True):
        worst[host] = max(value, worst.get(host, 0.0))
    usual = _medians_of_others([*worst.values()])
    yield from zip(worst, worst.values(), usual, strict=True)


def _medians_of_others(values: Sequence[float]) -> list[float]:
    """Of each value the median of the others, 0 without others: values are sorted once for all."""
    if len(values) < 2:
        return [0.0] * len(values)
    ranked = sorted(values)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    # Of the others these are in the middle: those left of a value keep their places, those right of it move one up.
    both_left, around, both_right = (
        (ranked[one] + ranked[other]) / 2 for one, other in ((low, high), (low, high + 1), (low + 1, high + 1))
    )
    least, most = ranked[low], ranked[high]
    return [both_left if value > most else both_right if value <= least else around for value in values]


def _short_of_room(status: MonitorStatus) -> Iterator[Finding]:
    for column, what in (
        (status.agent_free, "memory"),
        (status.agent_disks_free, "disk for temporary files"),
        (status.agent_shared_free, "shared memory"),
    ):
        for host, free in dict(zip(status.agent_hosts, column, strict=True)).items():
            if 0 < free < FREE_BYTES:
                yield Finding(Severity.WARNING, f"Host {host} has only {size(free)} of free {what}.", host, "host")


def _verb(count: int, verb: str) -> str:
    """The verb for one or for several subjects."""
    return f"{verb}s" if count == 1 else verb
