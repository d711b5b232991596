"""WorkerProbes: effects that ask for the state of a worker; an event with the answer follows each."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from scaler_io.service.turn_loop import TurnLoop
from scaler_worker.agent import host
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.processes import WorkerProcesses
from scaler_worker.agent.worker_channel import WorkerChannel
from scaler_worker.agent.worker_reader import WorkerReader

REVOCATION_SECONDS: Final = 0.002
"""After this, a worker that is still in the same run sees the revocation before its next one."""


class WorkerProbes:
    """Answers RecallTail, ReadRun, ReadCpu and ReadMemory, and asks for samples.

    The current run is read first, then the pipe: if the run has ended since, the core gets its result first. What was
    recalled comes even before: the replies may already be those of a datagram behind it.
    """

    def __init__(self, core: AgentCore, processes: WorkerProcesses, reader: WorkerReader, turns: TurnLoop) -> None:
        self._core, self._processes, self._reader, self._turns = core, processes, reader, turns
        self._loop = asyncio.get_running_loop()

    def recall_tail(self, effect: events.RecallTail) -> None:
        """Read back the datagrams that a worker has not read."""
        number = effect.worker
        self._answer(number, self._processes.channels[number].recall())
        run = self._processes.current_run(number)
        self._reader.take_results(number)
        self._answer(number, events.RunSeen(run))

    def read_run(self, effect: events.ReadRun) -> None:
        """Revoke datagrams; the answer comes when the revocation is effective."""
        channel = self._processes.channels[effect.worker]
        self._processes.revoke(effect.worker, effect.sequence)
        self._loop.call_later(REVOCATION_SECONDS, self._read_run, effect, channel)

    def _read_run(self, effect: events.ReadRun, channel: WorkerChannel) -> None:
        number = effect.worker
        if self._turns.closed or self._processes.channels.get(number) is not channel:
            return
        run = self._processes.current_run(number)
        self._reader.take_results(number)
        self._answer(number, events.RunRead(effect.sequence, run))

    def read_cpu(self, effect: events.ReadCpu) -> None:
        """Read the CPU time that a worker has used."""
        used = host.cpu_nanoseconds(self._processes.channels[effect.worker].pid)
        self._answer(effect.worker, events.CpuRead(used))

    def read_memory(self, effect: events.ReadMemory) -> None:
        """Read the memory that a worker and its descendants use."""
        number = effect.worker
        run = self._processes.current_run(number)
        self._reader.take_results(number)
        self._answer(number, events.MemoryUsed(host.used_bytes(self._processes.channels[number].pid), run))

    def take_samples(self, effect: events.TakeSamples) -> None:
        """Have a worker sample what it runs; its replies are the answer."""
        self._processes.sample(effect.worker, effect.until)

    def _answer(self, number: int, event: events.ProbeAnswer) -> None:
        self._core.handle(number, event, time.monotonic())
        self._turns.soon()
