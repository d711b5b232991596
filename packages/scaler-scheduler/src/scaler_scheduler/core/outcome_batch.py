"""OutcomeBatch: outcomes for one receiver, collected in a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from scaler_protocol.messages import MESSAGE_IDS, MESSAGE_LIMIT, Done, agent_columns
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE, PROFILE
from scaler_scheduler.core.task_states import Outcome

JOINED_TASKS = 64
"""Reports on so many tasks, or of JOINED_BYTES, are forwarded as they are: joining them costs more than a message."""
JOINED_BYTES = 16 * 1024


class OutcomeBatch:
    """Outcomes for one receiver, of any number of agents. A single report leaves it as it is."""

    __slots__ = ("_agents", "_profiles", "_reports", "_results", "_runs", "_statuses", "_stored", "_tasks")

    def __init__(self) -> None:
        self._reports: list[Done] = []
        """Those that the columns below do not have yet."""
        self._tasks: list[int] = []
        self._runs: list[int] = []
        self._statuses: list[int] = []
        self._results: list[bytes] = []
        self._stored: set[int] = set()
        self._profiles: list[bytes] = []
        self._agents: list[str] = []
        """One name for each task."""

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

    def add_report(self, report: Done) -> None:
        """Add all outcomes of a report; their runs get lost unless it stays the only one."""
        self._reports.append(report)

    def add_runs(self, report: Done, runs: Mapping[int, int]) -> None:
        """Add the outcomes of those tasks that have one of these runs, with them."""
        tasks = report.tasks
        known = [at for at, task in enumerate(tasks) if task in runs]
        self._runs += [runs[tasks[at]] for at in known]
        self._take(report, known)

    def _take(self, report: Done, positions: Sequence[int]) -> None:
        """Add what columns have at these positions of a report."""
        start, tasks, statuses, results = len(self._tasks), report.tasks, report.statuses, report.results.parts
        if report.stored:
            stored = set(report.stored)
            self._stored.update(start + number for number, at in enumerate(positions) if at in stored)
        self._tasks += [tasks[at] for at in positions]
        self._statuses += [statuses[at] for at in positions]
        self._results += [results[at] for at in positions]
        size, packed = PROFILE.size, report.profiles or NO_PROFILE * len(tasks)
        self._profiles += [packed[at * size : (at + 1) * size] for at in positions]
        if report.agent_ends:
            self._agents += [report.agent_of(at) for at in positions]
        else:
            self._agents += [report.agent_of(0)] * len(positions)

    def messages(self) -> Iterator[Done]:
        """The outcomes in messages of bounded size."""
        if len(self._reports) == 1 and not self._tasks:
            yield self._reports[0]
            return
        for report in self._reports:
            self._take(report, range(len(report.tasks)))
        self._reports = []
        for begin, end in self._cuts():
            yield self._message(begin, end)

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Where each message begins and ends."""
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
