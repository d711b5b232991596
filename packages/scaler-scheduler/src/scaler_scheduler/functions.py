"""The functions that tasks call, known by content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

BYTES_LIMIT = 256 * 1024 * 1024
SMOOTHING = 0.2
"""Weight of the newest duration in a function's running mean."""


@dataclass(slots=True, eq=False)
class FunctionRecord:
    """One function: its bytes if they are held, and how long a call takes, in seconds, once that was measured."""

    id: bytes
    name: str = ""
    body: bytes | None = None
    stored: bool = False
    """Whether the body is a reference into object storage."""
    seconds: float | None = None
    submitted: int = 0
    """Tasks that call it, since the start."""
    asking: set[bytes] = field(default_factory=set)
    """Agents that wait for the bytes."""

    def measured(self, seconds: float) -> None:
        """A call took so long."""
        if self.seconds is None:
            self.seconds = seconds
        else:
            self.seconds += SMOOTHING * (seconds - self.seconds)


class FunctionStore:
    """Functions by id; bytes of the least recently used are dropped beyond a limit and asked for again when needed."""

    def __init__(self, bytes_limit: int = BYTES_LIMIT) -> None:
        self._limit = bytes_limit
        self._held = 0
        self._functions: OrderedDict[bytes, FunctionRecord] = OrderedDict()

    def use(self, function: bytes) -> FunctionRecord:
        """The function of this id, as the most recently used one."""
        record = self._functions.get(function)
        if record is None:
            record = self._functions[function] = FunctionRecord(function)
        else:
            self._functions.move_to_end(function)
        return record

    def define(
        self, functions: Iterable[bytes], names: Sequence[str], bodies: Sequence[bytes], stored: Collection[int] = ()
    ) -> list[FunctionRecord]:
        """Take the bytes of functions; returns those that were missing."""
        fresh = []
        for position, (function, name, body) in enumerate(zip(functions, names, bodies, strict=True)):
            record = self.use(function)
            if record.body is None:
                record.name, record.body, record.stored = name, body, position in stored
                self._held += len(body)
                fresh.append(record)
        if self._held > self._limit:
            self._evict({record.id for record in fresh})
        return fresh

    def latest(self) -> Iterator[FunctionRecord]:
        """All functions, the one used last first."""
        return reversed(self._functions.values())

    def _evict(self, spared: set[bytes]) -> None:
        for record in self._functions.values():
            if self._held <= self._limit:
                return
            if record.body is not None and record.id not in spared:
                self._held -= len(record.body)
                record.body = None
