"""The agent: the shell around AgentCore. Its parts own the link, the worker channels and the processes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from scaler_io.links.effects import Log, perform_each
from scaler_io.service.logs import write
from scaler_io.service.turn_loop import TurnLoop
from scaler_io.transport.in_process import AnyDialer
from scaler_protocol.handshake import Goodbye
from scaler_worker.agent import host
from scaler_worker.agent.agent_link import AgentLink
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER, AgentEffect
from scaler_worker.agent.core.in_flight import SWEEP_SECONDS
from scaler_worker.agent.host_replicas import LeftBehind
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.processes import WorkerProcesses
from scaler_worker.agent.start_report import StartReport
from scaler_worker.agent.supervisor import WorkerSupervisor
from scaler_worker.agent.worker_events import WorkerEvents
from scaler_worker.agent.worker_probes import WorkerProbes
from scaler_worker.agent.worker_reader import WorkerReader
from scaler_worker.agent.worker_writer import WorkerWriter
from scaler_worker.forking.template_link import Forking

LOGGER: Final = logging.getLogger("scaler")
STAY_SECONDS: Final = 0.5
"""How often an agent that hands over looks after its connection."""
REAP_SECONDS: Final = 0.01
"""Between the end of a worker's pipe and the attempt to reap its process."""


class Agent:
    """Runs the workers of one host for one scheduler. Construct it inside the running loop."""

    def __init__(
        self,
        core: AgentCore,
        dialer: AnyDialer,
        forking: Forking,
        heartbeat: float,
        is_foreign: Callable[[int], bool],
        hand_over: Callable[[float], LeftBehind],
    ) -> None:
        """`hand_over` is called in a thread with the drain deadline when a host that drains has ended its workers."""
        self.started = StartReport()
        self.failure = ""
        """Why it has ended with an exit code other than 0, in one line."""
        self._core, self._heartbeat, self._is_foreign, self._hand_over = core, heartbeat, is_foreign, hand_over
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._has_failed, self._busy = False, 0.0
        self._resized: Callable[[], object] = lambda: None
        self._errors = errors = LogOnce(LOGGER)
        self._figures = host.HostFigures()
        self._turns = turns = TurnLoop(self)
        self._link = link = AgentLink(dialer, forking.shared, turns)
        self._processes = processes = WorkerProcesses(forking)
        worker_events = WorkerEvents(core, processes, self.started, errors)
        self._reader = reader = WorkerReader(core, processes, worker_events, link, turns, self._reap_later)
        self._writer = writer = WorkerWriter(processes.channels, errors)
        self._supervisor = supervisor = WorkerSupervisor(core, processes, reader, writer, turns, errors)
        probes = WorkerProbes(core, processes, reader, turns)
        self._perform: dict[type, Callable[[Any], object]] = {
            events.SendToScheduler: self._send,
            events.Relay: writer.relay,
            events.StartWorker: supervisor.start,
            events.Define: writer.define,
            events.SendTasks: self._send_tasks,
            events.RecallTail: probes.recall_tail,
            events.ReadRun: probes.read_run,
            events.ReadCpu: probes.read_cpu,
            events.ReadMemory: probes.read_memory,
            events.TakeSamples: probes.take_samples,
            events.KillWorker: supervisor.kill,
            events.EndWorker: supervisor.end_worker,
            Log: write,
            events.ResizeDone: lambda effect: self._resized(),
            events.EndAgent: self._end_agent,
        }

    @property
    def connected(self) -> asyncio.Event:
        """Set with each connection to a scheduler."""
        return self._link.connected

    async def run(self) -> int:
        """Run until `stop`; returns the exit code. All worker processes have ended then."""
        self._loop.set_exception_handler(self._failed)
        self._supervisor.begin()
        try:
            self._heartbeat_due()
            self._turns.now()
            return await self._ended
        finally:
            await self._end()

    def stop(self, code: int, *reasons: str) -> None:
        """End the agent with an exit code; the reasons are logged."""
        if not self._ended.done():
            self.started.failed("\n".join(reasons))
            for reason in reasons:
                LOGGER.log(logging.ERROR if code else logging.INFO, "%s", reason)
            self.failure = "; ".join(reason.partition("\n")[0] for reason in reasons) if code else ""
            self._ended.set_result(code)
            self._turns.close()

    def drain(self, reason: str) -> None:
        """Finish the runs that have begun, hand over what is kept, and end."""
        self._core.handle(SCHEDULER, events.DrainRequested(reason), time.monotonic())
        self._turns.soon()

    def resize(self, workers: int, done: Callable[[], object]) -> None:
        """Have so many workers from now on; `done` is called when it is so, unless another resize has come before."""
        self._resized = done
        self._core.handle(SCHEDULER, events.ResizeRequested(workers), time.monotonic())
        self._turns.soon()

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an unexpected exception: exit instead of continuing half-done; the scheduler reruns our tasks."""
        LOGGER.error("%s", context.get("message"), exc_info=context.get("exception"))
        self._has_failed = True
        self.stop(1, "the agent failed")

    async def _end(self) -> None:
        """Kill all processes, hand over, and close the link; no Goodbye after a failure, which a run may have caused.

        The Goodbye comes last: it says that nothing of this host is needed any more.
        """
        goodbye = Goodbye("the agent stops")
        try:
            self._supervisor.end(self._is_foreign)
            if self._core.is_draining:
                left = await self._stay_while(asyncio.to_thread(self._hand_over, self._core.drain_deadline))
                if left.objects:
                    goodbye = Goodbye(left.reason, left.objects)
        finally:
            self._link.close(time.monotonic(), None if self._has_failed else goodbye)

    async def _stay_while(self, handing_over: Coroutine[Any, Any, LeftBehind]) -> LeftBehind:
        """Keep the connection to the scheduler; what it still sends is not handled, and runs elsewhere later."""
        done = asyncio.ensure_future(handing_over)
        while not done.done():
            now = time.monotonic()
            self._link.receive(now)
            self._link.flush(now)
            await asyncio.wait({done}, timeout=STAY_SECONDS)
        return await done

    # --- turns ------------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Handle what the scheduler sent, let the core decide, perform its effects, write."""
        core, link = self._core, self._link
        for event in link.receive(now):
            core.handle(SCHEDULER, event, now)
        if link.busy != self._busy:
            self._busy = link.busy
            core.handle(SCHEDULER, events.SchedulerBusy(self._busy), now)
        perform_each(core.settle(now), self._perform, self._effect_failed)
        if self._turns.closed:
            return math.inf
        for event in link.flush(now):
            core.handle(SCHEDULER, event, now)
        return max(min(core.due(), link.due()), now + SWEEP_SECONDS)

    def readable(self) -> bool:
        """Whether the scheduler has sent more than was handled."""
        return self._link.readable()

    def _heartbeat_due(self) -> None:
        """Report the state of the host to the scheduler and the core."""
        if self._turns.closed:
            return
        self._loop.call_later(max(self._heartbeat, self._link.heartbeat_seconds), self._heartbeat_due)
        self._supervisor.reap()
        try:
            self._send_status(time.monotonic())
        except Exception as error:  # no descriptor left, for example: retried with the next heartbeat
            self._errors.log("the status of the host cannot be reported", error)

    def _send_status(self, now: float) -> None:
        free, total = host.available_memory()
        self._core.handle(SCHEDULER, events.MemoryRead(host.is_nearly_gone(free, total)), now)
        if self._link.is_up:
            stats = self._figures.measure(self._processes.pids(), free, now)
            self._link.send(self._core.take_status(stats))
            self._turns.soon()

    def _reap_later(self) -> None:
        self._loop.call_later(REAP_SECONDS, self._supervisor.reap)

    # --- effects ----------------------------------------------------------------------------------------------------

    def _effect_failed(self, effect: AgentEffect, error: Exception) -> None:
        """Report a failed effect to the core, which contains the failure to the run concerned."""
        if not isinstance(effect, events.StartWorker):  # which the core logs once
            self._errors.log(f"{type(effect).__name__} failed", error)
        reason = f"{type(error).__name__}: {error}"
        self._core.handle(SCHEDULER, events.EffectFailed(effect, reason), time.monotonic())
        self._turns.soon()

    def _send(self, effect: events.SendToScheduler) -> None:
        self._link.send(effect.message)

    def _send_tasks(self, effect: events.SendTasks) -> None:
        self._writer.send_tasks(effect)
        self._reader.tasks_sent(effect.worker)

    def _end_agent(self, effect: events.EndAgent) -> None:
        self.stop(effect.code, *effect.reasons)
