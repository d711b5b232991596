"""Records of calls, kept until their outcomes arrive, and the delivery of outcomes. Pure, no IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, Final, Protocol

from scaler_client.core.held_results import LongResult
from scaler_client.objects.handles import ResultOrigin, object_bytes, stored_positions, true_size
from scaler_protocol.errors import ObjectNotFoundError, ScalerError, describe, is_loss, restore
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Done, Group, Status, agent_at
from scaler_protocol.objects import REFERENCE_BYTES
from scaler_protocol.profiles import NO_PROFILE, Profile, profile_at

Outcome = tuple[int, bytes]
"""Status and payload."""
Fetching = Callable[[int], AbstractContextManager[None]]
Dump = Callable[[], Outcome]
"""Serializes an outcome. May run code of users, which may block, so never called by the core or the io thread."""


@dataclass(frozen=True, eq=False)
class FunctionBody:
    """The bytes of a function (or of a serializer class), known everywhere by their id.

    A body in object storage is identified by its reference: it lives as long as its client, so clients do not share it.
    """

    id: bytes
    name: str
    body: bytes


@dataclass(frozen=True, slots=True, eq=False)
class CallGroup:
    """What calls share: their Group, the bodies it names, how to load and dump results, the run that submits them.

    `fetching` surrounds the loading of the result of a task.
    """

    wire: Group
    bodies: tuple[FunctionBody, ...]
    load: Callable[[Any], Any]
    dump: Callable[[Any], bytes]
    parent: int = 0
    fetching: Fetching | None = None


class Dependency(Protocol):
    """An argument that is the result of a task, or an object in storage (with a task id of 0)."""

    @property
    def task_id(self) -> int: ...

    def outcome(self) -> Outcome | Dump | None:
        """The outcome, how to serialize it if its bytes are not kept, or None while there is none. Never blocks."""


class OutstandingCall(Protocol):
    """One or more tasks without an outcome. `_weight`: bytes that one of them counts against the credit.

    A future, which users hold, is such a call: what is not for users begins with an underscore.
    """

    @property
    def _group(self) -> CallGroup: ...
    @property
    def _weight(self) -> int: ...

    def _call_of(self, task: int) -> bytes:
        """The payload of one of its tasks."""

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        """What one of its tasks depends on."""


def is_call_known(call: OutstandingCall) -> bool:
    """Whether its tasks can be submitted again: those of an earlier process of a named session cannot."""
    return bool(call._group.wire.function)


class SingleCall(OutstandingCall, Protocol):
    """One task."""

    @property
    def task_id(self) -> int: ...
    @property
    def _call(self) -> bytes: ...
    @property
    def _needs(self) -> Sequence[Dependency]: ...


@dataclass(slots=True, eq=False)
class ResentCall:
    """A task that was sent before and is sent again."""

    task_id: int
    _group: CallGroup
    _weight: int
    _call: bytes
    _needs: Sequence[Dependency]

    @classmethod
    def of(cls, call: OutstandingCall, task: int) -> ResentCall:
        """One task of a call."""
        return cls(task, call._group, call._weight, call._call_of(task), call._needs_of(task))

    def _call_of(self, task: int) -> bytes:
        """The payload."""
        return self._call

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        """The futures among the arguments."""
        return self._needs


class _Missing(bytes):
    """Placeholder for a result that has not arrived."""


_MISSING: Final[bytes] = _Missing()


@dataclass(slots=True, eq=False)
class CallBlock:
    """Consecutive tasks of one map: `results` fill up in any order, `failures` come as they happen.

    `changed` is called by the delivering thread at each failure and when the last result arrives.
    """

    first: int
    _group: CallGroup
    calls: list[bytes]
    changed: Callable[[], None]
    needs: dict[int, Sequence[Dependency]] = field(default_factory=dict)
    _weight: int = field(init=False)
    argument_bytes: int = field(init=False)
    """Bytes of the arguments of one task, here or in object storage (average)."""
    stored: bool = field(init=False)
    missing: int = field(init=False)
    is_long: bool = field(init=False, default=False)
    """Whether results are long."""
    results: list[bytes] = field(init=False)
    failures: list[tuple[int, int, bytes]] = field(init=False, default_factory=list)
    """Position, status, payload."""

    def __post_init__(self) -> None:
        size = len(self.calls)
        self._weight = self.argument_bytes = -(-sum(map(len, self.calls)) // size)
        self.stored = bool(stored_positions(self.calls))
        if self.stored or self.needs:
            self.argument_bytes = (sum(map(true_size, self.calls)) + object_bytes(self.needs.values())) // size
        self.missing = size
        self.results = [_MISSING] * size

    @property
    def task_id(self) -> int:
        """The id of its first task."""
        return self.first

    @property
    def tasks(self) -> range:
        """The ids of its tasks."""
        return range(self.first, self.first + len(self.calls))

    def _call_of(self, task: int) -> bytes:
        """The payload of one of its tasks."""
        return self.calls[task - self.first]

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        """What one of its tasks depends on."""
        return self.needs.get(task - self.first, ())

    def has(self, task: int) -> bool:
        """Whether one of its tasks has an outcome."""
        return not self.missing or self.results[task - self.first] is not _MISSING

    def take(self, task: int, status: int, payload: bytes) -> bool:
        """Note an outcome; True if `changed` is to be called."""
        position = task - self.first
        self.results[position] = payload
        if type(payload) is LongResult:
            payload.let_go()
            self.is_long = True
        if self.stored:
            self.calls[position] = b""  # lets go of its object
        if self.needs:
            self.needs.pop(position, None)
        if status != Status.VALUE:
            self.failures.append((position, status, payload))
        self.missing -= 1  # last: a thread that sees 0 looks at the failures
        return status != Status.VALUE or not self.missing


class RunReports:
    """The profiles of one outcome batch, kept by its futures and decoded on demand."""

    __slots__ = ("_agent_ends", "_agents", "_profiles", "_tasks")

    def __init__(
        self, tasks: Sequence[int], profiles: bytes, agents: Sequence[str] = (), agent_ends: Sequence[int] = ()
    ) -> None:
        """The columns of a Done."""
        self._tasks, self._profiles, self._agents, self._agent_ends = tasks, profiles, agents, agent_ends

    def profile(self, task: int) -> tuple[Profile, str]:
        """The profile of one of the tasks and the name of its agent; zeros and no name if there is none."""
        if not self._profiles:
            return profile_at(NO_PROFILE, 0), ""
        position = self._tasks.index(task)
        return profile_at(self._profiles, position), agent_at(self._agents, self._agent_ends, position)


class LocalFailure(bytes):
    """The payload of a FAILED outcome that originates in this client, with its cause, which no message can hold.

    The cause has no traceback, which would keep the locals of its frames alive; the log has it.
    """

    cause: BaseException | None

    @classmethod
    def of(cls, error: ScalerError) -> LocalFailure:
        """The payload that `describe` makes of this error."""
        payload = cls(describe(error))
        payload.cause = error.__cause__
        return payload

    @classmethod
    def undelivered(cls, cause: Exception) -> LocalFailure:
        """An outcome arrived and could not be delivered."""
        error = ScalerError(f"the outcome of this call could not be delivered: {cause!r}")
        error.__cause__ = cause.with_traceback(None)
        return cls.of(error)


@dataclass(frozen=True, slots=True)
class Deliver:
    """An outcome batch, as columns; the call is None for a task that is no longer outstanding."""

    calls: Sequence[OutstandingCall | None]
    tasks: Sequence[int]
    statuses: Sequence[int]
    results: Sequence[bytes]
    reports: RunReports
    stored: Sequence[int] = ()
    """Positions of results that are references."""
    origins: Mapping[int, ResultOrigin] = field(default_factory=dict)
    """By position, how to make these results again."""

    @classmethod
    def of(cls, done: Done, calls: Sequence[OutstandingCall | None]) -> Deliver:
        """The outcomes of a Done message."""
        reports = RunReports(done.tasks, done.profiles, done.agents, done.agent_ends)
        if done.stored or max(done.statuses, default=0) > Status.CANCELLED:
            return cls(calls, done.tasks, *_replace_unreadable(done), reports, done.stored)
        return cls(calls, done.tasks, done.statuses, done.results.parts, reports)

    @classmethod
    def alike(
        cls, calls: Sequence[OutstandingCall | None], tasks: Sequence[int], status: int, payload: bytes
    ) -> Deliver:
        """The same outcome for all of these tasks."""
        size = len(tasks)
        return cls(calls, tasks, [status] * size, [payload] * size, RunReports((), b""))

    def has_losses(self) -> bool:
        """Whether a task has failed because an object was lost."""
        if Status.FAILED not in self.statuses:
            return False
        failed = (result for status, result in zip(self.statuses, self.results, strict=True) if status == Status.FAILED)
        return any(is_loss(restore(result)) for result in failed)


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete these objects of this session: outcomes of superseded runs, which only this client knows."""

    objects: Sequence[bytes]


WaitingCall = SingleCall | CallBlock


def _replace_unreadable(done: Done) -> tuple[list[int], list[bytes]]:
    """Statuses and results, with an error in place of each outcome that this client cannot read."""
    statuses, results = list(done.statuses), list(done.results)
    stored = set(done.stored)
    for position, status in enumerate(statuses):
        if position in stored and len(results[position]) != REFERENCE_BYTES:
            problem = f"a reference has {REFERENCE_BYTES} bytes, not {len(results[position])}"
        elif status > Status.CANCELLED:
            problem = f"status {status} is unknown"
        else:
            continue
        statuses[position] = Status.FAILED
        results[position] = describe(ObjectNotFoundError(f"this client cannot read the outcome: {problem}"))
    return statuses, results
