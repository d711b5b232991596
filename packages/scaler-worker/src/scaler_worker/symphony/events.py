"""Events and effects of the proxy agent's core."""

from __future__ import annotations

from scaler_io.links.effects import Log
from scaler_protocol.lazy_dataclass import dataclass
from scaler_worker.agent.core.events import EndAgent, SendToScheduler
from scaler_worker.agent.core.records import Entry
from scaler_worker.ipc.frames import Definition

# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Symphony takes tasks."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """There is no session: it could not be opened, or it has failed. Its tasks are lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A run has ended, with the outcome that Done reports; `stored`: the payload is a reference."""

    entry: Entry
    status: int
    payload: bytes
    profile: bytes
    stored: bool = False


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """Symphony has given up the task of a run."""

    run: int
    reason: str


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Connect to Symphony; answered by SessionOpened or SessionLost."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """Decode a call and submit it; answered by CallEnded or TaskFailed, unless it is stopped before."""

    entry: Entry
    definition: Definition


@dataclass(frozen=True, slots=True)
class StopRun:
    """Kill the Symphony task of a run; not answered."""

    run: int


ProxyEffect = SendToScheduler | Log | EndAgent | OpenSession | StartRun | StopRun
