"""Events of AgentCore besides messages and replies, and its effects."""

from __future__ import annotations

from scaler_io.links.effects import Log
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Message
from scaler_worker.agent.core.records import Entry
from scaler_worker.ipc.frames import Definition

SCHEDULER = -1
"""The scheduler (and the host) as a peer of the core; workers are numbered from 0."""


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker's process has exited and all its replies were handled; `run` is the run id in its cells."""

    reason: str
    run: int
    peak_memory: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class WorkerNotStarted:
    """A worker could not be started."""

    reason: str


@dataclass(frozen=True, slots=True)
class TailRecalled:
    """The first answer to RecallTail: sequences of the task datagrams and handles of the definitions read back."""

    sequences: tuple[int, ...]
    handles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunSeen:
    """The second answer to RecallTail: the worker's current run, read before the replies handled since."""

    run: int


@dataclass(frozen=True, slots=True)
class RunRead:
    """The answer to ReadRun: the worker's current run, read REVOCATION_SECONDS after `sequence` was revoked."""

    sequence: int
    run: int


@dataclass(frozen=True, slots=True)
class CpuRead:
    """The answer to ReadCpu: CPU time that a worker has used, in nanoseconds."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """The answer to ReadMemory: bytes that a worker and its descendants use, and the worker's current run."""

    bytes: int
    run: int


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """Whether the host is nearly out of memory; sent with each heartbeat."""

    nearly_gone: bool


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The host is to finish its runs and leave."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResizeRequested:
    """The host is to have so many workers from now on, and to stay even without any; answered by ResizeDone."""

    workers: int


@dataclass(frozen=True, slots=True)
class SchedulerBusy:
    """For which share of its time the scheduler is at work."""

    share: float


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToScheduler:
    """Send to the scheduler; `origin` is the worker whose client wrote the message, -1 if the agent did."""

    message: Message
    origin: int = -1


@dataclass(frozen=True, slots=True)
class Relay:
    """Send to the client inside a worker's task."""

    worker: int
    message: Message


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a worker process that sees this GPU, if it is said which one: none if empty."""

    worker: int
    name: str
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Define:
    """Send a definition to a worker."""

    worker: int
    definition: Definition


@dataclass(frozen=True, slots=True)
class SendTasks:
    """Write a task datagram to a worker."""

    worker: int
    sequence: int
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class RecallTail:
    """Read back unread datagrams: answered by TailRecalled, the replies of the worker, and RunSeen, at once."""

    worker: int


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Revoke datagrams up to `sequence`; answered by RunRead after REVOCATION_SECONDS and handling the pipe."""

    worker: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ReadCpu:
    """Read a worker's CPU time; answered by CpuRead at once."""

    worker: int


@dataclass(frozen=True, slots=True)
class ReadMemory:
    """Read a worker's memory after handling its replies; answered by MemoryUsed at once."""

    worker: int


@dataclass(frozen=True, slots=True)
class TakeSamples:
    """Have a worker sample what it runs until then, in monotonic nanoseconds; it answers with SamplesTaken."""

    worker: int
    until: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker and its process group."""

    worker: int


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Close the channel of an idle worker, which then exits."""

    worker: int


@dataclass(frozen=True, slots=True)
class ResizeDone:
    """The host has as many workers as the last ResizeRequested wanted: all are ready, and drained ones have ended."""


@dataclass(frozen=True, slots=True)
class EndAgent:
    """End the agent with an exit code; the reasons are logged."""

    code: int
    reasons: tuple[str, ...]


ProbeAnswer = TailRecalled | RunSeen | RunRead | CpuRead | MemoryUsed
WorkerProbe = RecallTail | ReadRun | ReadCpu | ReadMemory | TakeSamples
WorkerEffect = StartWorker | Define | SendTasks | WorkerProbe | KillWorker | EndWorker
AgentEffect = SendToScheduler | Relay | WorkerEffect | Log | ResizeDone | EndAgent


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """An event: performing this effect raised an exception and had no effect."""

    effect: AgentEffect
    reason: str
