"""The agent: the shell around AgentCore. It owns the link, the channels to the workers, the template, and the clock."""

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
"""After which a worker that still is in a run has seen, or will see, that its datagram is revoked."""
REAP_SECONDS: Final = 0.01
"""From the end of a worker's pipe to the end of its process."""
RENEW_SECONDS: Final = 1.0
"""Between two tries to start a template."""
UNSENT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes on the way to the scheduler beyond which results are left in their pipes."""


class Agent:
    """One host's workers, at work for one scheduler. To be made inside the running loop."""

    def __init__(
        self, core: AgentCore, dialer: AnyDialer, forking: Forking, heartbeat: float, is_foreign: Callable[[int], bool]
    ) -> None:
        self._core, self._dialer, self._forking = core, dialer, forking
        self._heartbeat, self._is_foreign = heartbeat, is_foreign
        self._processes = WorkerProcesses(forking)
        self._channels = self._processes.channels
        self._log_once = LogOnce(LOGGER)
        self.started = StartReport()
        self._swept: set[int] = set()
        self._figures, self._epoch, self.connected = host.HostFigures(), (0, True), asyncio.Event()
        self._filenos: tuple[int, ...] = ()
        self._settling = self._sweeping = self._was_up = self._answered = self._has_failed = False
        self._due_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._writer = WorkerWriter(self._loop, self._channels, self._log_once)
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._perform: dict[type, Callable[[Any], None]] = {
            events.SendToScheduler: lambda effect: dialer.uplink.send(effect.message),
            events.Relay: lambda effect: self._writer.relay(effect.worker, effect.message),
            events.StartWorker: self._start_worker,
            events.Define: lambda effect: self._writer.give(effect.worker, pack_definition(effect.definition)),
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
        """Work until told to stop; returns the exit code. Leaves no process behind."""
        self._loop.set_exception_handler(self._failed)
        self._loop.add_reader(self._processes.template.fileno(), self._hear_template)
        try:
            self._beat()
            self._turn()
            return await self._ended
        finally:
            self._end()

    def stop(self, code: int, *reasons: str) -> None:
        """End the agent."""
        if not self._ended.done():
            self.started.failed("\n".join(reasons))
            for reason in reasons:
                LOGGER.log(logging.ERROR if code else logging.INFO, "%s", reason)
            self._ended.set_result(code)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End rather than go on with half of a decision: the scheduler repeats what we had."""
        LOGGER.error("%s", context.get("message"), exc_info=context.get("exception"))
        self._has_failed = True
        self.stop(1, "the agent failed")

    # --- turns ------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Take in what the scheduler sent."""
        if self._ended.done():
            return
        now = self._loop.time()
        self._hear(self._dialer.turn(now), now)
        self._settle()

    def _hear(self, heard: list[UplinkEvent], now: float) -> None:
        for event in heard:
            if isinstance(event, LinkUp):
                self._was_up = True
                self._forking.words.follow(event.welcome.incarnation, event.welcome.storage_address)
                self.connected.set()
                LOGGER.info("connected to the scheduler")
            elif isinstance(event, LinkDown) and self._was_up:
                self._was_up = False
                LOGGER.warning("the connection to the scheduler is gone (%s); trying again", event.reason)
            self._core.handle(SCHEDULER, event, now)

    def _settle_soon(self) -> None:
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        """Have the core decide, do what it says, and see when it is to be asked again."""
        self._settling = False
        if self._ended.done():
            return
        now = self._loop.time()
        core, perform, dialer = self._core, self._perform, self._dialer
        self._answered = True
        while self._answered:  # performing some effects tells the core something
            self._answered = False
            for effect in core.settle(now):
                try:
                    perform[type(effect)](effect)
                except Exception as error:
                    self._not_performed(effect, error)
        if self._ended.done():
            return
        self._hear(dialer.flush(now), now)
        if dialer.readable():
            self._loop.call_soon(self._turn)
        if self._epoch != (dialer.uplink.epoch, dialer.uplink.state is LinkState.DOWN):
            self._watch_link()
        self._set_timer(now)

    def _not_performed(self, effect: AgentEffect, error: Exception) -> None:
        """Nothing but what this effect was for is to suffer: the core says what becomes of that."""
        if not isinstance(effect, events.StartWorker):  # of which the core tells, once
            self._log_once.say(f"{type(effect).__name__} failed", error)
        now, reason = self._loop.time(), f"{type(error).__name__}: {error}"
        self._core.handle(SCHEDULER, events.EffectFailed(effect, reason), now)
        self._answered = True

    def _watch_link(self) -> None:
        """The link has another connection, or none."""
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

    def _beat(self) -> None:
        """Tell the scheduler, and the core, how the host is."""
        if self._ended.done():
            return
        self._loop.call_later(self._heartbeat, self._beat)
        self._reap()
        try:
            self._tell_figures(self._loop.time())
        except Exception as error:  # no descriptor is left to read them, for example: the next time, then
            self._log_once.say("the figures of the host can not be told", error)

    def _tell_figures(self, now: float) -> None:
        free, total = host.available_memory()
        self._core.handle(SCHEDULER, events.MemoryRead(host.is_nearly_gone(free, total)), now)
        if self._dialer.uplink.state is LinkState.UP:
            self._dialer.uplink.send(
                self._figures.status(self._core.workers, len(self._core.in_flight.waiting), free, now)
            )
            self._settle_soon()

    # --- what workers write -----------------------------------------------------------------------------------------

    def _read_results(self, number: int) -> None:
        """A pipe has something."""
        if self._dialer.uplink.kept_bytes > UNSENT_LIMIT:
            self._sweep_from_now_on(number)
            return
        self._take_results(number)
        # Others that run may be about to end, too.
        (self._settle_soon if self._core.workers.running else self._settle)()

    def _take_results(self, number: int) -> bool:
        """Hand what is in a pipe to the core; False at its end."""
        if (channel := self._channels.get(number)) is None:
            return False
        try:
            found = channel.read()
        except EOFError:
            self._loop.remove_reader(channel.results)
            self._loop.call_later(REAP_SECONDS, self._reap)
            return False
        except ProtocolError as error:
            LOGGER.error("Worker[%d] wrote what is no record (%s); it is killed", number, error)
            self._loop.remove_reader(channel.results)
            self._kill(number)
            return False
        now = self._loop.time()
        for event in found:
            if isinstance(event, WorkerReady):
                self.started.ready()
                channel.pid = channel.pid or event.pid  # the template's report may come later
            self._tell_core(number, event, now)
        return bool(found)

    def _tell_core(self, number: int, event: Any, now: float) -> None:
        """Hand on what a worker said; one that says what nobody understands is killed, and the others go on."""
        try:
            self._core.handle(number, event, now)
        except Exception as error:
            self._log_once.say(f"Worker[{number}] is killed: its {type(event).__name__} makes no sense", error)
            self._kill(number)

    def _sweep_from_now_on(self, number: int) -> None:
        if number not in self._swept:
            self._swept.add(number)
            self._loop.remove_reader(self._channels[number].results)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(self._core.in_flight.sweep_seconds(self._swept), self._sweep)

    def _sweep(self) -> None:
        """Read the pipes of all workers that have chunks; those that have none any more are waited for again."""
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
        """The client inside a task said something."""
        channel = self._channels[number]
        try:
            messages = channel.read_messages()
        except (EOFError, ProtocolError) as error:
            self._loop.remove_reader(channel.messages_fileno)
            if isinstance(error, ProtocolError):
                LOGGER.error("the client inside Worker[%d] wrote what is no message: %s", number, error)
            return
        for message in messages:
            if isinstance(message, Blocked | Submit):  # results before its run may be in the pipe
                self._take_results(number)
            self._tell_core(number, message, self._loop.time())
        self._settle_soon()

    # --- effects ----------------------------------------------------------------------------------------------------

    def _send_tasks(self, effect: events.SendTasks) -> None:
        runs, tasks, lanes, calls, attempts, flags = zip(*effect.entries, strict=True)
        handles = [lane.kind.handle for lane in lanes]
        self._writer.give(effect.worker, pack_tasks(effect.sequence, runs, tasks, handles, calls, attempts, flags))
        if any(datagram.is_swept for datagram in self._core.workers.by_number[effect.worker].datagrams):
            self._sweep_from_now_on(effect.worker)

    def _recall_tail(self, effect: events.RecallTail) -> None:
        number = effect.worker
        datagrams, handles = self._channels[number].recall()
        # First the word, then the pipe: a run that ended since is settled when the core hears of it.
        run = self._forking.words.of(number)[RUN]
        self._take_results(number)
        self._core.handle(number, events.TailRecalled(datagrams, handles, run), self._loop.time())
        self._answered = True

    def _revoke(self, effect: events.ReadRun) -> None:
        channel = self._channels[effect.worker]
        self._forking.words.of(effect.worker)[REVOKED] = effect.sequence
        self._loop.call_later(REVOCATION_SECONDS, self._read_run, effect, channel)

    def _read_run(self, effect: events.ReadRun, channel: WorkerChannel) -> None:
        number = effect.worker
        if self._channels.get(number) is channel:
            run = self._forking.words.of(number)[RUN]
            self._take_results(number)
            self._core.handle(number, events.RunRead(effect.sequence, run), self._loop.time())
            self._settle_soon()

    def _read_cpu(self, effect: events.ReadCpu) -> None:
        used = host.cpu_nanoseconds(self._channels[effect.worker].pid)
        self._core.handle(effect.worker, events.CpuRead(used), self._loop.time())
        self._answered = True

    def _kill(self, number: int) -> None:
        try:
            self._processes.kill(number)
        except PermissionError:  # its channel is closed: it ends when its task does
            self._died(WorkerExit(number, "runs as another user and could not be killed"))

    # --- processes --------------------------------------------------------------------------------------------------

    def _start_worker(self, effect: events.StartWorker) -> None:
        channel = self._processes.start(effect.worker, effect.name)
        self._loop.add_reader(channel.results, self._read_results, effect.worker)
        self._loop.add_reader(channel.messages_fileno, self._read_messages, effect.worker)

    def _hear_template(self) -> None:
        endings, alive = self._processes.reports()
        for ending in endings:
            self._died(ending)
        if not alive:
            template = self._processes.template
            self._loop.remove_reader(template.fileno())
            template.close()
            LOGGER.warning("the template (process %d) is gone; starting another one", template.pid)
            self._renew_template()
        self._settle_soon()

    def _renew_template(self) -> None:
        if self._ended.done():
            return
        try:
            self._processes.renew_template()
        except OSError as error:
            self._log_once.say("no template can be started", error)
            self._loop.call_later(RENEW_SECONDS, self._renew_template)
            return
        self._loop.add_reader(self._processes.template.fileno(), self._hear_template)
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
        """Hear what a worker wrote to the last byte, then tell the core that it is gone."""
        number = ending.number
        if (channel := self._channels.get(number)) is None:
            return
        while self._take_results(number):
            pass
        if self._channels.get(number) is not channel:
            return
        run = self._forking.words.of(number)[RUN]
        for descriptor in (channel.results, channel.messages_fileno):
            self._loop.remove_reader(descriptor)
        for descriptor in (channel.tasks_fileno, channel.messages_fileno):
            if descriptor >= 0:
                self._loop.remove_writer(descriptor)
        self._swept.discard(number)
        last_words = self._processes.forget(number)
        event: Any = events.WorkerNotStarted(ending.reason)
        if ending.forked:
            event = events.WorkerDied(ending.reason, run, ending.peak_memory, last_words)
        self._core.handle(number, event, self._loop.time())

    def _end(self) -> None:
        """Take all processes along; say goodbye, unless one of the runs may be why the agent failed."""
        if not self._has_failed:
            self._dialer.uplink.send(Goodbye("the agent stops"))
            self._dialer.flush(time.monotonic())
        self._dialer.close()
        self._loop.remove_reader(self._processes.template.fileno())
        for channel in self._channels.values():
            for descriptor in (channel.results, channel.messages_fileno):
                self._loop.remove_reader(descriptor)
        self._processes.end(self._is_foreign)
