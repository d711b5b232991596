"""Simulated hosts: a real AgentCore each, with simulated workers."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from scaler_io.links.effects import Log
from scaler_io.links.events import UplinkEvent
from scaler_io.links.uplink import LinkState, Uplink, longest_absence
from scaler_io.simulation.network import MemoryDialer, MemoryNetwork
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.messages import Blocked, Submit
from scaler_worker.agent.agent_link import UNSENT_LIMIT
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER
from scaler_worker.agent.core.in_flight import SWEEP_SECONDS
from scaler_worker.agent.core.records import AgentConfig
from scaler_worker.agent.core.snapshot import HostStats
from scaler_worker.agent.worker_probes import REVOCATION_SECONDS
from world.plans import Execution, Values
from world.workers import PIPE_SECONDS, SimulatedWorker

HEARTBEAT_SECONDS = 1.0


class SimulatedHost:
    """An agent and its workers."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: Address,
        name: str,
        history: list[Execution],
        values: Values,
        *,
        workers: int = 1,
        queue_size: int = 1000,
        capabilities: Sequence[str] = (),
        consumables: Mapping[str, int] | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.name, self.network, self.history, self.values = name, network, history, values
        self.address, self.capabilities = address, tuple(capabilities)
        self.consumables = dict(consumables or {})
        self.core = AgentCore(AgentConfig(workers, name, name, consumables=tuple(self.consumables.items())))
        self.workers: dict[int, SimulatedWorker] = {}
        self.ended: tuple[str, ...] | None = None
        """Why the agent ended by itself."""
        self.logs: list[str] = []
        self.messages_sent = 0
        self.kills = 0
        """Workers that the agent killed."""
        self.slowness = 1.0
        """How many times longer its workers take than plans say."""
        random = network.random
        hello = Hello(
            Role.AGENT,
            random.randbytes(16),
            random.randrange(1, 2**24),
            name=name,
            host=name,
            python=platform.python_version(),
            cloudpickle=cloudpickle.__version__,
            workers=workers,
            queue_size=queue_size,
            capability_names=(*capabilities, *self.consumables),
            capability_values=(*(-1 for _ in capabilities), *self.consumables.values()),
            consumable_names=tuple(self.consumables),
            consumable_totals=tuple(self.consumables.values()),
            lives_on_seconds=longest_absence(timeout_seconds),
        )
        self.identity = hello.identity
        self.dialer = MemoryDialer(network, address, Uplink(hello, network.now, timeout_seconds=timeout_seconds))
        self._beat_at = network.now
        self._perform: dict[type[Any], Callable[[Any], object]] = {
            events.SendToScheduler: self._send,
            events.Relay: self._relay,
            events.StartWorker: self._start_worker,
            events.Define: lambda effect: self.workers[effect.worker].give(effect),
            events.SendTasks: lambda effect: self.workers[effect.worker].give(effect),
            events.RecallTail: self._recall_tail,
            events.ReadRun: self._revoke,
            events.ReadCpu: self._read_cpu,
            events.KillWorker: self._kill_worker,
            events.EndWorker: lambda effect: self.workers[effect.worker].end(),
            Log: lambda effect: self.logs.append(effect.text),
            events.EndAgent: lambda effect: self._end(effect.reasons),
        }
        self.shell = network.attach(self.turn, self.dialer)

    @property
    def alive(self) -> bool:
        """Whether the agent lives."""
        return self.shell.alive

    @property
    def busy(self) -> list[SimulatedWorker]:
        """Workers that are in a run."""
        return [worker for worker in self.workers.values() if worker.now is not None]

    def wake(self) -> None:
        """Something of a worker is there to be read."""
        self.shell.wake()

    def kill(self) -> None:
        """SIGKILL to the agent; its workers end with it."""
        self.shell.kill()
        self._end_workers()

    def vanish(self) -> None:
        """The host loses its power: its connections are not closed."""
        self.shell.vanish()
        self._end_workers()

    def report(self) -> None:
        """The agent reports its state now, before it has heard what is on its way to it."""
        self._beat(self.network.now)
        self._hear(self.dialer.flush(self.network.now), self.network.now)

    def leave(self) -> None:
        """SIGTERM to the agent."""
        self._end(("stopping",))

    # --- the agent's shell ------------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Report, take in what has arrived, from the scheduler and from workers; decide; write."""
        if now >= self._beat_at:
            self._beat(now)
        self._hear(self.dialer.turn(now), now)
        self.core.handle(SCHEDULER, events.SchedulerBusy(self.dialer.uplink.busy), now)
        blocked_up = self.dialer.uplink.kept_bytes > UNSENT_LIMIT
        if not blocked_up:
            self._hear_workers(now)
        while self.alive and (effects := self.core.settle(now)):
            for effect in effects:
                self._perform[type(effect)](effect)
        if not self.alive:
            return math.inf
        self._hear(self.dialer.flush(now), now)
        self.core.check()
        soon = now + SWEEP_SECONDS
        due = max(min(self.core.due(), self.dialer.uplink.due()), soon)
        return soon if blocked_up else min(due, self._beat_at)

    def _hear(self, heard: Sequence[UplinkEvent], now: float) -> None:
        for event in heard:
            self.core.handle(SCHEDULER, event, now)

    def _hear_workers(self, now: float) -> None:
        for number, worker in list(self.workers.items()):
            if self.network.random.random() < 0.5:  # either may be ready first
                self._take_results(number, worker, now)
            while worker.said:
                message = worker.said.popleft()
                if isinstance(message, Blocked | Submit):  # results before its run may be in the pipe
                    self._take_results(number, worker, now)
                self.core.handle(number, message, now)
            self._take_results(number, worker, now)
            if not worker.alive:
                del self.workers[number]
                self.core.handle(number, events.WorkerDied(worker.reason, worker.word), now)

    def _take_results(self, number: int, worker: SimulatedWorker, now: float) -> None:
        for event in worker.read():
            self.core.handle(number, event, now)

    def _beat(self, now: float) -> None:
        self._beat_at = now + HEARTBEAT_SECONDS
        self.core.handle(SCHEDULER, events.MemoryRead(False), now)
        if self.dialer.uplink.state is not LinkState.UP:
            return
        self.dialer.uplink.send(self.core.take_status(HostStats(0.0, 0, 0, {}, {})))

    # --- effects ----------------------------------------------------------------------------------------------------

    def _send(self, effect: events.SendToScheduler) -> None:
        self.messages_sent += 1
        self.dialer.uplink.send(effect.message)

    def _relay(self, effect: events.Relay) -> None:
        worker = self.workers.get(effect.worker)
        if worker is not None:
            self.network.at(self.network.now + PIPE_SECONDS, lambda: worker.hear(effect.message))

    def _start_worker(self, effect: events.StartWorker) -> None:
        assert effect.worker not in self.workers
        self.workers[effect.worker] = SimulatedWorker(self, effect.worker)

    def _recall_tail(self, effect: events.RecallTail) -> None:
        worker = self.workers[effect.worker]
        now = self.network.now
        self.core.handle(effect.worker, worker.recall(), now)
        run = worker.word
        self._take_results(effect.worker, worker, now)
        self.core.handle(effect.worker, events.RunSeen(run), now)

    def _revoke(self, effect: events.ReadRun) -> None:
        worker = self.workers[effect.worker]
        worker.revoked = effect.sequence

        def read() -> None:
            if self.alive and self.workers.get(effect.worker) is worker:
                run, now = worker.word, self.network.now
                self._take_results(effect.worker, worker, now)
                self.core.handle(effect.worker, events.RunRead(effect.sequence, run), now)
                self.shell.wake()

        self.network.at(self.network.now + REVOCATION_SECONDS, read)

    def _read_cpu(self, effect: events.ReadCpu) -> None:
        used = self.workers[effect.worker].cpu_nanoseconds()
        self.core.handle(effect.worker, events.CpuRead(used), self.network.now)

    def _kill_worker(self, effect: events.KillWorker) -> None:
        self.kills += 1
        self.workers[effect.worker].die("was killed by SIGKILL")

    def _end(self, reasons: tuple[str, ...]) -> None:
        self.ended = reasons
        self.dialer.uplink.send(Goodbye("the agent stops"))
        self.dialer.flush(self.network.now)
        self.dialer.close()
        self.shell.alive = False
        self._end_workers()

    def _end_workers(self) -> None:
        for worker in self.workers.values():
            worker.die("its agent is gone")

    def check_nothing_is_held(self) -> None:
        """No run, no outcome, no session of a task that is over."""
        core = self.core
        left = list(core.in_flight.waiting), list(core.in_flight.kept), core.functions.parked_entries()
        assert not any(left), (self.name, left)
        for worker in core.workers:
            assert not worker.datagrams and not worker.children and not worker.blocked and not worker.withdrawn
        assert not core.workers.blocked and not core.workers.running
        for simulated in self.workers.values():
            if simulated.nested is not None:
                simulated.nested.check_nothing_is_held()
