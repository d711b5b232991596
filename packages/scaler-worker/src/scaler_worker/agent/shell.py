"""The agent: the shell around AgentCore. It owns the link, the worker channels, the template and the clock."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkDown, LinkUp, UplinkEvent
from scaler_io.links.uplink import LinkState
from scaler_io.transport.in_process import AnyDialer
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Goodbye
from scaler_protocol.messages import Blocked, Submit
from scaler_worker.agent import host
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER, AgentEffect
from scaler_worker.agent.core.in_flight import SWEEP_SECONDS
from scaler_worker.agent.log_once import LogOnce
from scaler_worker.agent.processes import WorkerExit, WorkerProcesses
from scaler_worker.agent.start_report import StartReport
from scaler_worker.agent.worker_channel import WorkerChannel
from scaler_worker.agent.worker_writer import WorkerWriter
from scaler_worker.forking.template_link import Forking
from scaler_worker.ipc.frames import WorkerReady, pack_definition, pack_tasks
from scaler_worker.worker.runner import REVOKED, RUN

LOGGER: Final = logging.getLogger("scaler")
REVOCATION_SECONDS: Final = 0.002
"""After this, a worker that is still in the same run sees the revocation before its next one."""
REAP_SECONDS: Final = 0.01
"""Between the end of a worker's pipe and the attempt to reap its process."""
RENEW_SECONDS: Final = 1.0
"""Between two attempts to start a template."""
UNSENT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes queued for the scheduler beyond which results stay in the pipes (back-pressure)."""


class Agent:
    """Runs the workers of one host for one scheduler. Construct it inside the running loop."""

    def __init__(
        self, core: AgentCore, dialer: AnyDialer, forking: Forking, heartbeat: float, is_foreign: Callable[[int], bool]
    ) -> None:
        self._core, self._dialer, self._forking = core, dialer, forking
        self._heartbeat, self._is_foreign = heartbeat, is_foreign
        self._processes = WorkerProcesses(forking)
        self._channels = self._processes.channels
        self._errors = LogOnce(LOGGER)
        self.started = StartReport()
        self._swept: set[int] = set()
        self._figures, self._epoch, self.connected = host.HostFigures(), (0, True), asyncio.Event()
        self._filenos: tuple[int, ...] = ()
        self._settling = self._sweeping = self._was_up = self._more_events = self._has_failed = False
        self._due_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._writer = WorkerWriter(self._loop, self._channels, self._errors)
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._perform: dict[type, Callable[[Any], None]] = {
            events.SendToScheduler: lambda effect: dialer.uplink.send(effect.message),
            events.Relay: lambda effect: self._writer.relay(effect.worker, effect.message),
            events.StartWorker: self._start_worker,
            events.Define: lambda effect: self._writer.send(effect.worker, pack_definition(effect.definition)),
            events.SendTasks: self._send_tasks,
            events.RecallTail: self._recall_tail,
            events.ReadRun: self._revoke,
            events.ReadCpu: self._read_cpu,
            events.KillWorker: lambda effect: self._kill(effect.worker),
            events.EndWorker: lambda effect: self._channels[effect.worker].end(),
            Log: lambda effect: LOGGER.log(effect.level, effect.text),
            events.EndAgent: lambda effect: self.stop(effect.code, *effect.reasons),
        }

    async def run(self) -> int:
        """Run until `stop`; returns the exit code. All worker processes have ended then."""
        self._loop.set_exception_handler(self._failed)
        self._loop.add_reader(self._processes.template.fileno(), self._read_reports)
        try:
            self._heartbeat_due()
            self._turn()
            return await self._ended
        finally:
            self._end()

    def stop(self, code: int, *reasons: str) -> None:
        """End the agent with an exit code; the reasons are logged."""
        if not self._ended.done():
            self.started.failed("\n".join(reasons))
            for reason in reasons:
                LOGGER.log(logging.ERROR if code else logging.INFO, "%s", reason)
            self._ended.set_result(code)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle an unexpected exception: exit instead of continuing half-done; the scheduler reruns our tasks."""
        LOGGER.error("%s", context.get("message"), exc_info=context.get("exception"))
        self._has_failed = True
        self.stop(1, "the agent failed")

    # --- turns ------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Handle what the scheduler sent, then settle."""
        if self._ended.done():
            return
        now = self._loop.time()
        self._handle_link(self._dialer.turn(now), now)
        self._settle()

    def _handle_link(self, link_events: list[UplinkEvent], now: float) -> None:
        for event in link_events:
            if isinstance(event, LinkUp):
                self._was_up = True
                self._forking.shared.follow(event.welcome.incarnation, event.welcome.storage_address)
                self.connected.set()
                LOGGER.info("connected to the scheduler")
            elif isinstance(event, LinkDown) and self._was_up:
                self._was_up = False
                LOGGER.warning("the connection to the scheduler is lost (%s); reconnecting", event.reason)
            self._core.handle(SCHEDULER, event, now)

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Let the core decide, perform its effects, and schedule the next turn."""
        self._settling = False
        if self._ended.done():
            return
        now = self._loop.time()
        core, perform, dialer = self._core, self._perform, self._dialer
        self._more_events = True
        while self._more_events:  # performing some effects makes events for the core
            self._more_events = False
            for effect in core.settle(now):
                try:
                    perform[type(effect)](effect)
                except Exception as error:
                    self._effect_failed(effect, error)
        if self._ended.done():
            return
        self._handle_link(dialer.flush(now), now)
        if dialer.readable():
            self._loop.call_soon(self._turn)
        if self._epoch != (dialer.uplink.epoch, dialer.uplink.state is LinkState.DOWN):
            self._watch_link()
        self._set_timer(now)

    def _effect_failed(self, effect: AgentEffect, error: Exception) -> None:
        """Report a failed effect to the core, which contains the failure to the run concerned."""
        if not isinstance(effect, events.StartWorker):  # which the core logs once
            self._errors.log(f"{type(effect).__name__} failed", error)
        now, reason = self._loop.time(), f"{type(error).__name__}: {error}"
        self._core.handle(SCHEDULER, events.EffectFailed(effect, reason), now)
        self._more_events = True

    def _watch_link(self) -> None:
        """Watch the descriptors of the link after its connection has changed."""
        uplink, filenos = self._dialer.uplink, self._dialer.filenos()
        self._epoch = uplink.epoch, uplink.state is LinkState.DOWN
        for descriptor in self._filenos:
            self._loop.remove_reader(descriptor)
        for descriptor in filenos:
            self._loop.add_reader(descriptor, self._turn)
        self._filenos = filenos

    def _set_timer(self, now: float) -> None:
        due = max(min(self._core.due(), self._dialer.uplink.due()), now + SWEEP_SECONDS)
        if due < self._due_at:
            if self._timer is not None:
                self._timer.cancel()
            self._due_at, self._timer = due, self._loop.call_at(due, self._due)

    def _due(self) -> None:
        self._due_at = math.inf
        self._turn()

    def _heartbeat_due(self) -> None:
        """Report the state of the host to the scheduler and the core."""
        if self._ended.done():
            return
        self._loop.call_later(self._heartbeat, self._heartbeat_due)
        self._reap()
        try:
            self._send_status(self._loop.time())
        except Exception as error:  # no descriptor left, for example: retried with the next heartbeat
            self._errors.log("the status of the host cannot be reported", error)

    def _send_status(self, now: float) -> None:
        free, total = host.available_memory()
        self._core.handle(SCHEDULER, events.MemoryRead(host.is_nearly_gone(free, total)), now)
        if self._dialer.uplink.state is LinkState.UP:
            self._dialer.uplink.send(
                self._figures.status(self._core.workers, len(self._core.in_flight.waiting), free, now)
            )
            self._settle_soon()

    # --- replies and messages of workers ----------------------------------------------------------------------------

    def _read_results(self, number: int) -> None:
        """A result pipe is readable."""
        if self._dialer.uplink.kept_bytes > UNSENT_LIMIT:
            self._start_sweeping(number)
            return
        self._take_results(number)
        # Other workers may finish at the same time: settle once for all of them.
        (self._settle_soon if self._core.workers.running else self._settle)()

    def _take_results(self, number: int) -> bool:
        """Read a pipe and pass its replies to the core; returns whether there were any."""
        if (channel := self._channels.get(number)) is None:
            return False
        try:
            found = channel.read()
        except EOFError:
            self._loop.remove_reader(channel.results)
            self._loop.call_later(REAP_SECONDS, self._reap)
            return False
        except ProtocolError as error:
            LOGGER.error("Worker[%d] wrote an invalid reply (%s); it is killed", number, error)
            self._loop.remove_reader(channel.results)
            self._kill(number)
            return False
        now = self._loop.time()
        for event in found:
            if isinstance(event, WorkerReady):
                self.started.ready()
                channel.pid = channel.pid or event.pid  # the template's report may come later
            self._handle_worker(number, event, now)
        return bool(found)

    def _handle_worker(self, number: int, event: Any, now: float) -> None:
        """Pass an event of a worker to the core; if the core fails on it, only that worker is killed."""
        try:
            self._core.handle(number, event, now)
        except Exception as error:
            self._errors.log(f"Worker[{number}] is killed: its {type(event).__name__} could not be handled", error)
            self._kill(number)

    def _start_sweeping(self, number: int) -> None:
        if number not in self._swept:
            self._swept.add(number)
            self._loop.remove_reader(self._channels[number].results)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(self._core.in_flight.sweep_seconds(self._swept), self._sweep)

    def _sweep(self) -> None:
        """Read the pipes of all swept workers; those without batches are watched by the event loop again."""
        self._sweeping = False
        if self._ended.done():
            return
        if self._dialer.uplink.kept_bytes <= UNSENT_LIMIT:
            for number in list(self._swept):
                self._take_results(number)
        self._settle()
        if self._dialer.uplink.kept_bytes <= UNSENT_LIMIT:
            workers = self._core.workers.by_number
            for number in list(self._swept):
                if not any(datagram.is_swept for datagram in workers[number].datagrams):
                    self._swept.discard(number)
                    self._loop.add_reader(self._channels[number].results, self._read_results, number)
        if self._swept and not self._sweeping:
            self._sweeping = True
            self._loop.call_later(self._core.in_flight.sweep_seconds(self._swept), self._sweep)

    def _read_messages(self, number: int) -> None:
        """The message stream of a client inside a task is readable."""
        channel = self._channels[number]
        try:
            messages = channel.read_messages()
        except (EOFError, ProtocolError) as error:
            self._loop.remove_reader(channel.messages_fileno)
            if isinstance(error, ProtocolError):
                LOGGER.error("the client inside Worker[%d] wrote an invalid message: %s", number, error)
            return
        for message in messages:
            if isinstance(message, Blocked | Submit):  # the pipe may hold results of earlier runs
                self._take_results(number)
            self._handle_worker(number, message, self._loop.time())
        self._settle_soon()

    # --- effects ----------------------------------------------------------------------------------------------------

    def _send_tasks(self, effect: events.SendTasks) -> None:
        runs, tasks, groups, calls, attempts, flags = zip(*effect.entries, strict=True)
        handles = [group.kind.handle for group in groups]
        self._writer.send(effect.worker, pack_tasks(effect.sequence, runs, tasks, handles, calls, attempts, flags))
        if any(datagram.is_swept for datagram in self._core.workers.by_number[effect.worker].datagrams):
            self._start_sweeping(effect.worker)

    def _recall_tail(self, effect: events.RecallTail) -> None:
        number = effect.worker
        datagrams, handles = self._channels[number].recall()
        # Read the run first, then the pipe: if the run has ended since, the core gets its result before this event.
        run = self._forking.shared.cells(number)[RUN]
        self._take_results(number)
        self._core.handle(number, events.TailRecalled(datagrams, handles, run), self._loop.time())
        self._more_events = True

    def _revoke(self, effect: events.ReadRun) -> None:
        channel = self._channels[effect.worker]
        self._forking.shared.cells(effect.worker)[REVOKED] = effect.sequence
        self._loop.call_later(REVOCATION_SECONDS, self._read_run, effect, channel)

    def _read_run(self, effect: events.ReadRun, channel: WorkerChannel) -> None:
        number = effect.worker
        if self._channels.get(number) is channel:
            run = self._forking.shared.cells(number)[RUN]
            self._take_results(number)
            self._core.handle(number, events.RunRead(effect.sequence, run), self._loop.time())
            self._settle_soon()

    def _read_cpu(self, effect: events.ReadCpu) -> None:
        used = host.cpu_nanoseconds(self._channels[effect.worker].pid)
        self._core.handle(effect.worker, events.CpuRead(used), self._loop.time())
        self._more_events = True

    def _kill(self, number: int) -> None:
        try:
            self._processes.kill(number)
        except PermissionError:  # its channel is closed, so it exits when its task ends
            self._died(WorkerExit(number, "runs as another user and could not be killed"))

    # --- processes --------------------------------------------------------------------------------------------------

    def _start_worker(self, effect: events.StartWorker) -> None:
        channel = self._processes.start(effect.worker, effect.name)
        self._loop.add_reader(channel.results, self._read_results, effect.worker)
        self._loop.add_reader(channel.messages_fileno, self._read_messages, effect.worker)

    def _read_reports(self) -> None:
        endings, alive = self._processes.reports()
        for ending in endings:
            self._died(ending)
        if not alive:
            template = self._processes.template
            self._loop.remove_reader(template.fileno())
            template.close()
            LOGGER.warning("the template (process %d) has exited; starting another one", template.pid)
            self._renew_template()
        self._settle_soon()

    def _renew_template(self) -> None:
        if self._ended.done():
            return
        try:
            self._processes.renew_template()
        except OSError as error:
            self._errors.log("the template cannot be started", error)
            self._loop.call_later(RENEW_SECONDS, self._renew_template)
            return
        self._loop.add_reader(self._processes.template.fileno(), self._read_reports)
        self._reap()
        for ending in self._processes.lost_with_template():
            self._died(ending)

    def _reap(self) -> None:
        if self._ended.done():
            return
        for ending in self._processes.reap():
            self._died(ending)
        self._settle_soon()

    def _died(self, ending: WorkerExit) -> None:
        """Read a dead worker's pipe to the end, then report its death to the core."""
        number = ending.number
        if (channel := self._channels.get(number)) is None:
            return
        while self._take_results(number):
            pass
        if self._channels.get(number) is not channel:
            return
        run = self._forking.shared.cells(number)[RUN]
        for descriptor in (channel.results, channel.messages_fileno):
            self._loop.remove_reader(descriptor)
        for descriptor in (channel.tasks_fileno, channel.messages_fileno):
            if descriptor >= 0:
                self._loop.remove_writer(descriptor)
        self._swept.discard(number)
        crash_report = self._processes.forget(number)
        event: Any = events.WorkerNotStarted(ending.reason)
        if ending.forked:
            event = events.WorkerDied(ending.reason, run, ending.peak_memory, crash_report)
        self._core.handle(number, event, self._loop.time())

    def _end(self) -> None:
        """Close the link and kill all processes; no Goodbye after a failure, which a run may have caused."""
        if not self._has_failed:
            self._dialer.uplink.send(Goodbye("the agent stops"))
            self._dialer.flush(time.monotonic())
        self._dialer.close()
        self._loop.remove_reader(self._processes.template.fileno())
        for channel in self._channels.values():
            for descriptor in (channel.results, channel.messages_fileno):
                self._loop.remove_reader(descriptor)
        self._processes.end(self._is_foreign)
