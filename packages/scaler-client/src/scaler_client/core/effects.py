"""Effects of the client's core: what its shell performs. Pure, no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scaler_client.core.records import Deliver, Dependency, Discard, Dump
from scaler_protocol.capacity import ProcessList, WorkerList
from scaler_protocol.errors import ScalerError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Message
from scaler_protocol.sessions import TaskList


@dataclass(frozen=True, slots=True)
class Transmit:
    """Send this message, in order."""

    message: Message


@dataclass(frozen=True, slots=True)
class Connected:
    """The link is up (address of object storage and token for it, incarnation of the scheduler), or will not be.

    An earlier client of the session has used all task ids but those with counts in `unused_ids`.
    """

    error: ScalerError | None
    storage: str = ""
    scheduler: int = 0
    token: bytes = b""
    session: int = 0
    unused_ids: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Print:
    """Output of tasks, in order: stream (1 stdout, 2 stderr) and UTF-8 text."""

    texts: Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class AnswerShutdown:
    """The scheduler's answer to Shutdown."""

    accepted: bool
    reason: str


@dataclass(frozen=True, slots=True)
class WorkersListed:
    """The answer to the request for workers, or their processes, with this number, or why there is none."""

    number: int
    answer: WorkerList | ProcessList | ScalerError


@dataclass(frozen=True, slots=True)
class SessionAnswered:
    """The answer to the SessionRequested with this number, or why there is none."""

    number: int
    answer: Sequence[TaskList] | ScalerError


@dataclass(frozen=True, slots=True)
class RestoreObjects:
    """Store lost objects again, and make again lost results that were not read or are among `needs`.

    Then report ObjectsRestored or RestoreFailed.
    """

    tasks: Sequence[int]
    needs: Sequence[Dependency] = ()
    """The dependencies of these tasks, and of nodes that are rerun for them."""


@dataclass(frozen=True, slots=True)
class DumpInputs:
    """Serialize these outcomes, by task, in a thread that may block; report each with InputDumped."""

    dumps: Mapping[int, Dump]


@dataclass(frozen=True, slots=True)
class ListUnknownObjects:
    """List the objects of this session in storage that this process does not know.

    If there are any, report UnknownObjectsListed.
    """


@dataclass(frozen=True, slots=True)
class DeleteUnknownObjects:
    """Delete the listed objects that are still unknown."""


@dataclass(frozen=True, slots=True)
class KeepObjects:
    """Delete none of the objects that there are: calls that need them go on without this client."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """All earlier effects are performed: the ClearRequested with this number is done."""

    number: int


ClientEffect = (
    Cleared
    | Transmit
    | Deliver
    | Connected
    | Print
    | AnswerShutdown
    | WorkersListed
    | SessionAnswered
    | Discard
    | DumpInputs
    | RestoreObjects
    | ListUnknownObjects
    | DeleteUnknownObjects
    | KeepObjects
)
