"""What a relay makes of messages: Submits of a Run; profiles and status of many agents as one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scaler_protocol.ids import session_of
from scaler_protocol.limits import CORES, WORKER_NAME, shortened
from scaler_protocol.messages import AgentStatus, Group, Inputs, Run, Status, Submit
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_protocol.payloads import Payloads
from scaler_protocol.ranges import Text
from scaler_protocol.stack_counts import most_frequent
from scaler_scheduler.core.records import AgentRecord

STATUS_ROWS = 256
"""Most workers in the status of a relay; those of its first hosts."""
_MOST_32: Final = 2**32 - 1
_MOST_64: Final = 2**64 - 1
"""What fields can hold."""


def submits_of(run: Run) -> Iterator[tuple[int, Submit, Inputs | None]]:
    """The tasks of a Run, as their clients would submit them: session, Submit, and what the tasks need of others.

    The scheduler above has chosen a relay whose hosts meet the requirements, and it repeats runs that raise.
    """
    groups = [replace(group, retries=0, capability_names=(), capability_values=()) for group in run.groups]
    places: dict[int, list[int]] = {}
    for at, task in enumerate(run.tasks):
        places.setdefault(session_of(task), []).append(at)
    for session, positions in places.items():
        first = session == next(iter(places))
        yield session, _submit(run, groups, positions, with_functions=first), _inputs(run, set(positions))


def _submit(run: Run, groups: Sequence[Group], positions: Sequence[int], *, with_functions: bool) -> Submit:
    used = dict.fromkeys(run.task_groups[at] for at in positions) if run.task_groups else {0: None}
    numbers = {group: number for number, group in enumerate(used)}
    stored, place = set(run.stored), {at: number for number, at in enumerate(positions)}
    needs = [(place[at], need) for at, need in zip(run.dependents, run.needs, strict=True) if at in place]
    return Submit(
        [groups[group] for group in used],
        [run.tasks[at] for at in positions],
        Payloads([run.calls[at] for at in positions]),
        [numbers[run.task_groups[at]] for at in positions] if len(used) > 1 else (),
        stored=[place[at] for at in positions if at in stored] if stored else (),
        dependents=[at for at, _ in needs],
        needs=[need for _, need in needs],
        functions=run.functions if with_functions else (),
        names=run.names if with_functions else (),
        bodies=run.bodies if with_functions else Payloads([]),
        bodies_stored=run.bodies_stored if with_functions else (),
    )


def _inputs(run: Run, positions: set[int]) -> Inputs | None:
    rows = [number for number, at in enumerate(run.dependents) if at in positions]
    if not rows:
        return None
    stored = set(run.inputs_stored)
    return Inputs(
        [run.tasks[run.dependents[row]] for row in rows],
        [run.needs[row] for row in rows],
        [Status.VALUE] * len(rows),
        Payloads([run.inputs[row] for row in rows]),
        [number for number, row in enumerate(rows) if row in stored],
    )


class JoinedProfile:
    """A profile that all agents take."""

    def __init__(self, asked: TakeProfile) -> None:
        self._asked = asked
        self._counts: Counter[str] = Counter()
        self._workers = 0

    def add(self, part: ProfilePart) -> ProfilePart | None:
        """Add the answer of an agent; returns that of the relay if it was the last one."""
        self._counts.update(dict(zip(part.stacks, part.counts, strict=True)))
        self._workers += part.workers
        if part.left:
            return None
        found = most_frequent(self._counts, self._asked.limit)
        counts = [min(count, _MOST_64) for count in found.values()]
        workers = min(self._workers, _MOST_32)
        return ProfilePart(self._asked.request, list(found), counts, workers, 0, part.problem)


def joined_status(agents: Iterable[AgentRecord], queued: int, runs: Mapping[int, int]) -> AgentStatus:
    """One status for all agents: sums, the scarcest memory, and the workers of the first; `runs` are those by task.

    It fits into a message whatever the agents report.
    """
    cpu, rss, free, load = 0.0, 0, 0, 0.0
    columns: dict[str, Any] = {name: [] for name in AgentStatus.COLUMNS[0]}
    for agent in agents:
        status = agent.status
        if status is None:
            continue
        cpu, rss, queued, load = cpu + status.cpu, rss + status.rss, queued + status.queued, max(load, status.load)
        free = min(free, status.free) if free else status.free
        if len(columns["names"]) + len(status.names) <= STATUS_ROWS:
            tasks = [task.id if (task := agent.runs.get(run)) is not None else 0 for run in status.runs]
            own = [_name_above(agent, name) for name in status.names]
            above = [runs.get(task, 0) for task in tasks]
            rows = (own, status.pids, status.states, above, status.cpus, status.rsses, status.queues)
            for column, values in zip(columns.values(), rows, strict=True):
                column += values
    return AgentStatus(min(cpu, CORES.most), min(rss, _MOST_64), free, min(queued, _MOST_32), **columns, load=load)


def _name_above(agent: AgentRecord, name: str) -> str:
    """The name of a worker with that of its host, which is cut off where both are too long together."""
    room = max(0, WORKER_NAME.most - len(name.encode()) - 1)
    return shortened(f"{shortened(agent.name or agent.host, Text(room))} {name}", WORKER_NAME)
