"""Messages about named sessions, which outlive their clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.payloads import NONE, Payloads

T = TypeVar("T")
FUTURE_NAMES: Final = 10_000
"""Names of futures of one session; the oldest beyond are forgotten."""


def give_name(names: dict[str, T], name: str, future: T) -> None:
    """Name a future of a session, as the newest of its names."""
    names.pop(name, None)
    names[name] = future
    if len(names) > FUTURE_NAMES:
        del names[next(iter(names))]


@dataclass(frozen=True, slots=True)
class ListTasks:
    """Requests the tasks of a session: of the sender's own, or of the one with this name and key.

    `results`: with their payloads. Answered by TaskLists.
    """

    request: int = 0
    session: str = ""
    key: bytes = b""
    results: bool = False


@dataclass(frozen=True, slots=True)
class TaskList:
    """A piece of the list, in the order of submission; `left` rows follow in further pieces.

    A task that has several names has a row for each.

    `states` are those of TaskState, `statuses` and `ages` (in seconds) count for ended tasks. Also answers EndSession
    and ConfirmTasks, without tasks. `error` says why there is no answer.
    """

    COLUMNS: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("tasks", "labels", "functions", "states", "statuses", "encodings", "ages", "claimed", "results"),
    )
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"results"})

    request: int
    left: int = 0
    error: str = ""
    tasks: Sequence[int] = ()
    labels: Sequence[str] = ()
    functions: Sequence[str] = ()
    states: Sequence[int] = ()
    statuses: Sequence[int] = ()
    encodings: Sequence[int] = ()
    ages: Sequence[float] = ()
    claimed: Sequence[bool] = ()
    """Whether the client that is attached has a future of it."""
    results: Payloads = NONE
    stored: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class LabelTask:
    """Gives a task of the sender's session a name, in place of the one that had it."""

    task: int
    label: str


@dataclass(frozen=True, slots=True)
class EndSession:
    """Ends the sender's own session, or the one with this name and key, with all tasks and results.

    Answered by a TaskList without tasks.
    """

    request: int = 0
    session: str = ""
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfirmTasks:
    """Asks whether the scheduler has all tasks that the client has submitted before.

    Answered by a TaskList without tasks when it has them, or has sent NeedTasks for those that it lacks.
    """

    request: int = 0


@dataclass(frozen=True, slots=True)
class KeepSession:
    """To object storage: the scheduler owns a session from now on, or, without `keep`, all of its objects are freed."""

    session: int
    key: bytes = b""
    keep: bool = True


SessionMessage = ListTasks | TaskList | LabelTask | EndSession | ConfirmTasks | KeepSession
