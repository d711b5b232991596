"""What AgentCore hears beside messages and records, and what it wants done."""

from __future__ import annotations

from dataclasses import dataclass

from scaler_io.links.effects import Log
from scaler_protocol.messages import Message
from scaler_worker.agent.core.records import Entry
from scaler_worker.ipc.frames import Definition

SCHEDULER = -1
"""The scheduler (and the host) as a peer of the core; workers are numbered from 0."""


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """A worker's process is gone and everything it wrote was handled; `run` is the run it was in."""

    reason: str
    run: int
    peak_memory: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class WorkerNotStarted:
    """There is no process for a worker that was to be started."""

    reason: str


@dataclass(frozen=True, slots=True)
class TailRecalled:
    """The answer to RecallTail: how many task datagrams the worker had not read, and in which run it is now."""

    datagrams: int
    handles: tuple[int, ...]
    run: int


@dataclass(frozen=True, slots=True)
class RunRead:
    """The answer to ReadRun: the run that a worker was in, well after `sequence` was revoked."""

    sequence: int
    run: int


@dataclass(frozen=True, slots=True)
class CpuRead:
    """The answer to ReadCpu: nanoseconds of CPU that a worker has used."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """Whether the host's memory is nearly gone; told every few seconds."""

    nearly_gone: bool


# --- effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendToScheduler:
    """Send to the scheduler; `origin` is the worker inside of which a client wrote the message, if one did."""

    message: Message
    origin: int = -1


@dataclass(frozen=True, slots=True)
class Relay:
    """Pass on to the client inside a worker's task."""

    worker: int
    message: Message


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Fork a process."""

    worker: int
    name: str


@dataclass(frozen=True, slots=True)
class Define:
    """Tell a worker what a handle stands for."""

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
    """Read back what a worker has not read, having handled what it wrote; answered by TailRecalled at once."""

    worker: int


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Revoke the datagrams up to `sequence`, and answer RunRead after REVOCATION_SECONDS, having handled the pipe."""

    worker: int
    sequence: int


@dataclass(frozen=True, slots=True)
class ReadCpu:
    """Read the CPU time of a worker; answered by CpuRead at once."""

    worker: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a worker and all of its process group."""

    worker: int


@dataclass(frozen=True, slots=True)
class EndWorker:
    """Let a worker that has nothing to do go."""

    worker: int


@dataclass(frozen=True, slots=True)
class EndAgent:
    """End the agent."""

    code: int
    reasons: tuple[str, ...]


WorkerEffect = StartWorker | Define | SendTasks | RecallTail | ReadRun | ReadCpu | KillWorker | EndWorker
AgentEffect = SendToScheduler | Relay | WorkerEffect | Log | EndAgent


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """An event of the shell: this effect raised an exception, and nothing of it was done."""

    effect: AgentEffect
    reason: str
