"""Outcomes and output of runs, collected for the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scaler_protocol.coalescing import pressure, wait_seconds
from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import MESSAGE_IDS, MESSAGE_LIMIT, Done, Output, pieces_of
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import profile_at

FEW = 8
"""More outcomes at once are company enough."""
DoneRow = tuple[int, int, bytes, bytes, bool]
"""One run of a Done: run id, status, payload, profile, whether the payload is a reference to a stored object."""


class _Columns:
    """The columns of a Done message under construction."""

    __slots__ = ("payloads", "profiles", "runs", "size", "statuses", "stored", "tasks")

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.runs: list[int] = []
        self.statuses: list[int] = []
        self.payloads: list[bytes] = []
        self.profiles: list[bytes] = []
        self.stored: list[int] = []
        self.size = 0

    def done(self, agent: str) -> Done:
        return Done(
            self.tasks,
            self.statuses,
            Payloads(self.payloads),
            self.runs,
            self.stored,
            b"".join(self.profiles),
            (agent,),
        )


class ResultBuffer:
    """Collects outcomes and output per turn: messages per session of at most MESSAGE_LIMIT bytes and MESSAGE_IDS.

    While the scheduler is busy, values wait for company (`scaler_protocol.coalescing`).
    """

    __slots__ = ("_agent", "_full", "_open", "_output", "_pressure", "_shortest", "_since")

    def __init__(self, agent: str) -> None:
        """`agent` is the name that the messages give."""
        self._agent = agent
        self._open: dict[int, _Columns] = {}
        self._full: list[Done] = []
        self._output: list[tuple[int, int, bytes]] = []
        self._pressure = 0.0
        """How long outcomes wait: see `scaler_protocol.coalescing`."""
        self._shortest = 0.0
        """Duration in seconds of the shortest run whose outcome waits here; 0 if none does."""
        self._since: float | None = None

    def wait(self, busy: float) -> None:
        """The scheduler is busy for this share of its time."""
        self._pressure = pressure(busy)

    def due(self, now: float, will_join: Callable[[int], bool]) -> float:
        """When to `take` what is here; call it in each turn.

        `will_join` tells whether further outcomes of a session come, while runs are queued at this host.
        """
        if not self._shortest or self._output or self._full:
            return now
        if self._since is None:
            self._since = now
        return self._since + wait_seconds(self._pressure, self._shortest, has_queued=all(map(will_join, self._open)))

    def hurry(self) -> None:
        """What is here waits no longer."""
        self._shortest = 0.0

    def __bool__(self) -> bool:
        return bool(self._open or self._full or self._output)

    def extend(
        self,
        tasks: Sequence[int],
        runs: Sequence[int],
        statuses: Sequence[int],
        payloads: Sequence[bytes],
        profiles: Sequence[bytes],
        stored: Iterable[int],
        size: int,
    ) -> None:
        """Add outcomes of tasks of one session; `size` is the total of the payloads in bytes."""
        if self._pressure or self._shortest:
            shortest = self._shortest_of(statuses, profiles)
            self._shortest = min(self._shortest, shortest) if self else shortest
        columns = self._columns(tasks[0] >> SESSION_BITS, len(tasks), size)
        columns.stored += [len(columns.tasks) + position for position in stored]
        columns.tasks += tasks
        columns.runs += runs
        columns.statuses += statuses
        columns.payloads += payloads
        columns.profiles += profiles

    @staticmethod
    def _shortest_of(statuses: Sequence[int], profiles: Sequence[bytes]) -> float:
        """The duration in seconds of the shortest of these runs; 0 if their outcomes do not wait."""
        if any(statuses) or len(profiles) > FEW:
            return 0.0
        return min(profile_at(each, 0).duration_us for each in profiles) / 1e6

    def append(self, task: int, row: DoneRow) -> None:
        """Add one outcome."""
        run, status, payload, profile, stored = row
        self.extend((task,), (run,), (status,), (payload,), (profile,), (0,) if stored else (), len(payload))

    def unsent_runs(self) -> set[int]:
        """The runs in the messages that further outcomes may join: none may be in one message twice."""
        return {run for columns in self._open.values() for run in columns.runs}

    def write(self, task: int, stream: int, text: bytes) -> None:
        """Add output of a task; it is sent before outcomes that are added later."""
        self._output.append((task, stream, text))

    def _columns(self, session: int, count: int, size: int) -> _Columns:
        columns = self._open.get(session)
        if columns is not None and (columns.size + size > MESSAGE_LIMIT or len(columns.tasks) + count > MESSAGE_IDS):
            self._full.append(columns.done(self._agent))
            columns = None
        if columns is None:
            columns = self._open[session] = _Columns()
        columns.size += size
        return columns

    def take(self) -> Iterator[Output | Done]:
        """Remove and return the messages, in sending order."""
        by_session: dict[int, list[tuple[int, int, bytes]]] = {}
        for written in self._output:
            by_session.setdefault(written[0] >> SESSION_BITS, []).append(written)
        self._output = []
        for written_here in by_session.values():
            for some in pieces_of(written_here):
                tasks, streams, texts = zip(*some, strict=True)
                yield Output(tasks, streams, Payloads(texts))
        yield from self._full
        for columns in self._open.values():
            yield columns.done(self._agent)
        self._full, self._open, self._since, self._shortest = [], {}, None, 0.0
