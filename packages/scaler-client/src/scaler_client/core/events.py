"""Events of the client's core besides messages and the link's: what the threads of its process tell it."""

from __future__ import annotations

from collections.abc import Sequence

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import CallBlock, Outcome, SingleCall
from scaler_io.links.events import UplinkEvent
from scaler_protocol.errors import ScalerError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Message
from scaler_protocol.sessions import ConfirmTasks, EndSession, ListTasks


@dataclass(frozen=True, slots=True)
class CallsSubmitted:
    """Single tasks were submitted. A CallBlock and a GraphPiece are events themselves."""

    calls: Sequence[SingleCall]


@dataclass(frozen=True, slots=True)
class TasksCancelled:
    """These tasks are not wanted any more; no outcome is delivered for them."""

    tasks: Sequence[int]


@dataclass(frozen=True, slots=True)
class BlockingChanged:
    """A run in this process has started or stopped waiting for other tasks."""

    run: int
    blocked: bool


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The scheduler is to shut down; it replies with AnswerShutdown."""


@dataclass(frozen=True, slots=True)
class WorkersRequested:
    """List the workers once at least so many are connected; answered by WorkersListed with this number.

    A later request with the same number replaces the earlier one.
    """

    number: int
    at_least: int


@dataclass(frozen=True, slots=True)
class ProcessesRequested:
    """List the processes of all workers when those `gone` have ended; answered by WorkersListed with this number."""

    number: int
    gone: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkersUnwanted:
    """Nobody waits any more for the answer to the request for workers, or their processes, with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class SessionRequested:
    """Ask about the named session; answered by SessionAnswered with the request's number."""

    message: ListTasks | EndSession | ConfirmTasks


@dataclass(frozen=True, slots=True)
class TaskLabelled:
    """A future of the named session is published under this name."""

    task: int
    label: str


@dataclass(frozen=True, slots=True)
class FuturesAdopted:
    """Futures of tasks that an earlier process of the session has submitted; their calls are unknown here."""

    futures: Sequence[SingleCall]


@dataclass(frozen=True, slots=True)
class ClearRequested:
    """Cancel all tasks and forget which functions were sent; then reply with Cleared and this number."""

    number: int


@dataclass(frozen=True, slots=True)
class ClientClosed:
    """The client closes: all tasks end, as failed with this error, or as cancelled."""

    failure: ScalerError | None = None


@dataclass(frozen=True, slots=True)
class MessageRejected:
    """The transport cannot write this message: its calls fail with this error."""

    message: Message
    error: ScalerError


@dataclass(frozen=True, slots=True)
class InputDumped:
    """An answer to DumpInputs: the outcome of this task."""

    task: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ObjectsRestored:
    """An answer to RestoreObjects: the objects are stored again at this server, so these tasks can run again."""

    tasks: Sequence[int]
    server: int


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """An answer to RestoreObjects: the objects cannot be stored again, so these tasks stay failed."""

    tasks: Sequence[int]


@dataclass(frozen=True, slots=True)
class UnknownObjectsListed:
    """An answer to ListUnknownObjects: storage holds such objects. Those still unknown later are garbage."""


ClientRequest = (
    CallBlock
    | GraphPiece
    | TasksCancelled
    | BlockingChanged
    | ShutdownRequested
    | WorkersRequested
    | ProcessesRequested
    | WorkersUnwanted
    | SessionRequested
    | TaskLabelled
    | FuturesAdopted
    | ClearRequested
    | InputDumped
    | ObjectsRestored
    | RestoreFailed
    | UnknownObjectsListed
)
"""Entries of the io thread's mailbox, besides futures."""
ClientEvent = UplinkEvent | ClientRequest | CallsSubmitted | MessageRejected | ClientClosed
