"""OutcomeBatch: outcomes for one receiver, collected in a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from scaler_protocol.messages import MESSAGE_IDS, MESSAGE_LIMIT, Done, agent_columns
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE, PROFILE
from scaler_scheduler.core.task_states import Outcome

JOINED_TASKS = 64
"""Reports on so many tasks, or of JOINED_BYTES, are forwarded as they are: joining them costs more than a message."""
JOINED_BYTES = 16 * 1024


class OutcomeBatch:
    """Outcomes for one receiver, of any number of agents."""

    __slots__ = ("_agents", "_profiles", "_reports", "_results", "_runs", "_statuses", "_stored", "_tasks")

    def __init__(self) -> None:
        self._reports: list[Done] = []
        self._tasks: list[int] = []
        """This column and the others have the outcomes that were added apart from their reports."""
        self._runs: list[int] = []
        self._statuses: list[int] = []
        self._results: list[bytes] = []
        self._stored: set[int] = set()
        self._profiles: list[bytes] = []
        self._agents: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._reports or self._tasks)

    def add(self, task: int, outcome: Outcome, profile: bytes, agent: str) -> None:
        """Add the outcome of one task, without its run."""
        status, payload, stored = outcome
        if stored:
            self._stored.add(len(self._tasks))
        self._tasks.append(task)
        self._statuses.append(status)
        self._results.append(payload)
        self._profiles.append(profile)
        self._agents.append(agent)

    def add_runs(self, report: Done, runs: Mapping[int, int]) -> None:
        """Add the outcomes of those tasks that have one of these runs, with them."""
        start, tasks, statuses, results = len(self._tasks), report.tasks, report.statuses, report.results.parts
        known = [at for at, task in enumerate(tasks) if task in runs]
        if report.stored:
            stored = set(report.stored)
            self._stored.update(start + number for number, at in enumerate(known) if at in stored)
        self._tasks += [tasks[at] for at in known]
        self._runs += [runs[tasks[at]] for at in known]
        self._statuses += [statuses[at] for at in known]
        self._results += [results[at] for at in known]
        size, packed = PROFILE.size, _profiles_of(report)
        self._profiles += [packed[at * size : (at + 1) * size] for at in known]
        self._agents += [report.agent_of(at) for at in known]

    def runs(self) -> set[int]:
        """The runs that were added with their outcomes: none may be in a message twice."""
        return set(self._runs)

    def add_report(self, report: Done) -> None:
        """Add all outcomes of a report. It stays as it is if it is the only one, and loses its runs otherwise."""
        self._reports.append(report)

    def messages(self) -> Iterator[Done]:
        """The outcomes in messages of bounded size."""
        yield from _joined(self._reports)
        for begin, end in self._cuts():
            yield self._message(begin, end)

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Where each message of columns begins and ends."""
        begin = size = 0
        for at, (result, agent) in enumerate(zip(self._results, self._agents, strict=True)):
            more = len(result) + len(agent)
            if at > begin and (size + more > MESSAGE_LIMIT or at - begin == MESSAGE_IDS):
                yield begin, at
                begin, size = at, 0
            size += more
        if self._tasks:
            yield begin, len(self._tasks)

    def _message(self, begin: int, end: int) -> Done:
        agents, agent_ends = agent_columns(self._agents[begin:end])
        return Done(
            self._tasks[begin:end],
            self._statuses[begin:end],
            Payloads(self._results[begin:end]),
            self._runs[begin:end],
            stored=[at - begin for at in range(begin, end) if at in self._stored] if self._stored else (),
            profiles=b"".join(self._profiles[begin:end]),
            agents=agents,
            agent_ends=agent_ends,
        )


def _profiles_of(report: Done) -> bytes:
    return report.profiles or NO_PROFILE * len(report.tasks)


def _joined(reports: Iterable[Done]) -> Iterator[Done]:
    """The reports in as few messages as their sizes allow."""
    together: list[Done] = []
    size = count = 0
    for report in reports:
        more, tasks = sum(report.results.lengths) + sum(map(len, report.agents)), len(report.tasks)
        if together and (size + more > MESSAGE_LIMIT or count + tasks > MESSAGE_IDS):
            yield _as_one(together)
            together, size, count = [], 0, 0
        together.append(report)
        size += more
        count += tasks
    if together:
        yield _as_one(together)


def _as_one(reports: Sequence[Done]) -> Done:
    """A single report unchanged; several without their runs, whose columns are joined as a whole."""
    if len(reports) == 1:
        return reports[0]
    stored, agents, agent_ends = list[int](), list[str](), list[int]()
    start = 0
    for report in reports:
        stored += [start + at for at in report.stored]
        agents += report.agents or ("",)
        agent_ends += [start + end for end in report.agent_ends or (len(report.tasks),)]
        start += len(report.tasks)
    return Done(
        list(chain.from_iterable([report.tasks for report in reports])),
        list(chain.from_iterable([report.statuses for report in reports])),
        Payloads.cut(
            b"".join([report.results.frame for report in reports]),
            list(chain.from_iterable([report.results.lengths for report in reports])),
        ),
        stored=stored,
        profiles=b"".join(map(_profiles_of, reports)),
        agents=agents,
        agent_ends=agent_ends,
    )
