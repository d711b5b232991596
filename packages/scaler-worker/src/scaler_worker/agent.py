"""The agent: the shell around AgentCore. It owns the link, the channels to the workers, the template, and the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any, Final

from scaler_io.effects import Log
from scaler_io.inner import AnyDialer
from scaler_io.links import LinkDown, LinkState, LinkUp, UplinkEvent
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Goodbye
from scaler_protocol.messages import Blocked, Submit
from scaler_worker import events, host
from scaler_worker.agent_core import AgentCore
from scaler_worker.channel import WorkerReady, pack_definition, pack_tasks
from scaler_worker.events import SCHEDULER
from scaler_worker.flights import SWEEP_SECONDS
from scaler_worker.template import FORKED, NOT_FORKED
from scaler_worker.template_link import Forking, TemplateLink
from scaler_worker.worker_channel import WorkerChannel
from scaler_worker.worker_core import REVOKED, RUN

LOGGER: Final = logging.getLogger("scaler")
REVOCATION_SECONDS: Final = 0.002
"""After which a worker that still is in a run has seen, or will see, that its datagram is revoked."""
REAP_SECONDS: Final = 0.01
"""From the end of a worker's pipe to the end of its process."""
UNSENT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes on the way to the scheduler beyond which results are left in their pipes."""


class Agent:
    """One host's workers, at work for one scheduler. To be made inside the running loop."""

    def __init__(
        self, core: AgentCore, dialer: AnyDialer, forking: Forking, heartbeat: float, is_foreign: Callable[[int], bool]
    ) -> None:
        self._core, self._dialer, self._forking = core, dialer, forking
        self._heartbeat, self._is_foreign = heartbeat, is_foreign
        self._template = forking.template
        self._channels: dict[int, WorkerChannel] = {}
        self._swept: set[int] = set()
        self._figures, self._epoch = host.HostFigures(), (0, True)
        self._filenos: tuple[int, ...] = ()
        self.connected = asyncio.Event()
        self._settling = self._sweeping = self._was_up = self._answered = False
        self._due_at, self._files = math.inf, 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._folder = tempfile.TemporaryDirectory(prefix="scaler-")
        self._perform: dict[type, Callable[[Any], None]] = {
            events.SendToScheduler: lambda effect: dialer.uplink.send(effect.message),
            events.Relay: self._relay,
            events.StartWorker: self._start_worker,
            events.Define: lambda effect: self._give(effect.worker, pack_definition(effect.definition)),
            events.GiveTasks: self._give_tasks,
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
        self._loop.add_reader(self._template.fileno(), self._hear_template)
        try:
            self._beat()
            self._turn()
            return await self._ended
        finally:
            self._end()

    def stop(self, code: int, *reasons: str) -> None:
        """End the agent."""
        if not self._ended.done():
            for reason in reasons:
                LOGGER.log(logging.ERROR if code else logging.INFO, "%s", reason)
            self._ended.set_result(code)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End rather than go on with half of a decision: the scheduler repeats what we had."""
        LOGGER.error("%s", context.get("message"), exc_info=context.get("exception"))
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
                perform[type(effect)](effect)
        if self._ended.done():
            return
        self._hear(dialer.flush(now), now)
        if dialer.readable():
            self._loop.call_soon(self._turn)
        if self._epoch != (dialer.uplink.epoch, dialer.uplink.state is LinkState.DOWN):
            self._watch_link()
        self._set_timer(now)

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
        self._reap()
        now = self._loop.time()
        free, total = host.available_memory()
        self._core.handle(SCHEDULER, events.MemoryRead(host.is_nearly_gone(free, total)), now)
        if self._dialer.uplink.state is LinkState.UP:
            waiting = len(self._core.flights.waiting)
            self._dialer.uplink.send(self._figures.status(self._core.fleet, waiting, free, now))
            self._settle_soon()
        self._loop.call_later(self._heartbeat, self._beat)

    # --- what workers write -----------------------------------------------------------------------------------------

    def _read_results(self, number: int) -> None:
        """A pipe has something."""
        if self._dialer.uplink.kept_bytes > UNSENT_LIMIT:
            self._sweep_from_now_on(number)
            return
        self._take_results(number)
        # Others that run may be about to end, too.
        (self._settle_soon if self._core.fleet.running else self._settle)()

    def _take_results(self, number: int) -> bool:
        """Hand what is in a pipe to the core; False at its end."""
        channel = self._channels.get(number)
        if channel is None:
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
            if isinstance(event, WorkerReady):  # which may be heard before the template's report
                channel.pid = event.pid
            self._core.handle(number, event, now)
        return bool(found)

    def _sweep_from_now_on(self, number: int) -> None:
        if number not in self._swept:
            self._swept.add(number)
            self._loop.remove_reader(self._channels[number].results)
        if not self._sweeping:
            self._sweeping = True
            self._loop.call_later(self._core.flights.sweep_seconds(self._swept), self._sweep)

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
            workers = self._core.fleet.workers
            for number in list(self._swept):
                if not any(datagram.is_swept for datagram in workers[number].flight):
                    self._swept.discard(number)
                    self._loop.add_reader(self._channels[number].results, self._read_results, number)
        if self._swept and not self._sweeping:
            self._sweeping = True
            self._loop.call_later(self._core.flights.sweep_seconds(self._swept), self._sweep)

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
            self._core.handle(number, message, self._loop.time())
        self._settle_soon()

    # --- effects ----------------------------------------------------------------------------------------------------

    def _relay(self, effect: events.Relay) -> None:
        channel = self._channels.get(effect.worker)
        if channel is not None and not channel.send_message(effect.message):
            self._loop.add_writer(channel.messages_fileno, self._rest, channel.messages_fileno, channel.send_rest)

    def _give_tasks(self, effect: events.GiveTasks) -> None:
        runs, tasks, lanes, calls, attempts, flags = zip(*effect.entries, strict=True)
        handles = [lane.kind.handle for lane in lanes]
        self._give(effect.worker, pack_tasks(effect.sequence, runs, tasks, handles, calls, attempts, flags))
        if any(datagram.is_swept for datagram in self._core.fleet.workers[effect.worker].flight):
            self._sweep_from_now_on(effect.worker)

    def _give(self, number: int, datagram: bytes) -> None:
        channel = self._channels[number]
        if not channel.give(datagram):
            self._loop.add_writer(channel.tasks_fileno, self._rest, channel.tasks_fileno, channel.give_rest)

    def _rest(self, descriptor: int, write: Callable[[], bool]) -> None:
        if write():
            self._loop.remove_writer(descriptor)

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
        if pid := self._channels[number].pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it may not lead its group yet

    # --- processes --------------------------------------------------------------------------------------------------

    def _start_worker(self, effect: events.StartWorker) -> None:
        number = effect.worker
        self._files += 1
        channel = self._channels[number] = WorkerChannel(os.path.join(self._folder.name, str(self._files)))
        word = self._forking.words.of(number)
        word[RUN] = word[REVOKED] = 0
        asked = self._template.request(number, effect.name, channel.worker_ends())
        channel.handed_over()
        if asked:  # otherwise the end of the template is about to be heard
            self._loop.add_reader(channel.results, self._read_results, number)
            self._loop.add_reader(channel.messages_fileno, self._read_messages, number)

    def _hear_template(self) -> None:
        reports, alive = self._template.reports()
        for report in reports:
            if report.kind == FORKED:
                self._channels[report.number].pid = report.pid
            elif report.kind == NOT_FORKED:
                self._died(report.number, f"could not be forked: {os.strerror(report.status)}", 0)
            else:
                self._died(report.number, host.ending_of(report.status), report.peak_memory)
        if not alive:
            self._replace_template()
        self._settle_soon()

    def _replace_template(self) -> None:
        """The template is gone. Its workers go on, as children of ours."""
        self._loop.remove_reader(self._template.fileno())
        self._template.close()
        if self._ended.done():
            return
        LOGGER.warning("the template (process %d) is gone; starting another one", self._template.pid)
        forking = self._forking
        self._template = TemplateLink.spawn(forking.lifeline, forking.words, forking.config)
        self._loop.add_reader(self._template.fileno(), self._hear_template)
        self._reap()
        for number, channel in list(self._channels.items()):
            if not channel.pid or not os.path.exists(f"/proc/{channel.pid}"):
                self._died(number, "ended together with the template", 0)

    def _reap(self) -> None:
        """Wait for children: the template, workers of a template that is gone, orphans that tasks left behind."""
        if self._ended.done():
            return
        numbers = {channel.pid: number for number, channel in self._channels.items() if channel.pid}
        for pid, status, peak_memory in host.ended_children():
            if (number := numbers.get(pid)) is not None:
                self._died(number, host.ending_of(status), peak_memory)
        self._settle_soon()

    def _died(self, number: int, reason: str, peak_memory: int) -> None:
        """Hear what a worker wrote to the last byte, then tell the core that it is gone."""
        channel = self._channels.get(number)
        if channel is None:
            return
        while self._take_results(number):
            pass
        run = self._forking.words.of(number)[RUN]
        died = events.WorkerDied(reason, run, peak_memory, channel.last_words())
        for descriptor in (channel.results, channel.messages_fileno):
            self._loop.remove_reader(descriptor)
        for descriptor in (channel.tasks_fileno, channel.messages_fileno):
            if descriptor >= 0:
                self._loop.remove_writer(descriptor)
        self._swept.discard(number)
        del self._channels[number]
        channel.close()
        self._core.handle(number, died, self._loop.time())

    def _end(self) -> None:
        """Say goodbye, and take all processes along."""
        self._dialer.uplink.send(Goodbye("the agent stops"))
        self._dialer.flush(time.monotonic())
        self._dialer.close()
        self._loop.remove_reader(self._template.fileno())
        for number, channel in self._channels.items():
            self._loop.remove_reader(channel.results)
            self._loop.remove_reader(channel.messages_fileno)
            self._kill(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._template.pid, signal.SIGKILL)
        host.end_children(self._is_foreign)
        self._folder.cleanup()
