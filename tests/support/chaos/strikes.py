"""What goes wrong in a trial, one thing at a time, at random."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable

from scaler_protocol.handshake import Role, ServiceKind
from support.chaos.cluster import Cluster, Flooder
from support.chaos.kinds import Allowance
from support.faults import Service
from support.intruders import flood, raw_noise, wrong_frames, wrong_messages
from support.processes import command_line, descendants

GARBAGE = 500
"""Messages of one strike."""


class Strikes:
    """Draws faults and applies them; those that pass are over when `close` returns."""

    def __init__(self, cluster: Cluster, draw: random.Random, longest: float, *, nested: bool) -> None:
        self.log: list[str] = []
        """A line for each strike: seconds since the start, and what was done."""
        self._cluster, self._draw, self._longest, self._nested = cluster, draw, longest, nested
        self._start = time.monotonic()
        self._passing: list[threading.Thread] = []
        self._deaths = self._storage_losses = self._scheduler_losses = self._sessions = 0
        self._stopped: set[int] = set()
        self._short: set[int] = set()
        """Processes that may open no more files."""
        self._ways: list[tuple[int, Callable[[], str]]] = [
            (4, self._kill_worker),
            (2, self._stop_worker),
            (1, self._kill_template),
            (1, self._kill_agent),
            (2, self._stop_agent),
            (2, self._kill_scheduler),
            (1, self._stop_scheduler),
            (2, self._kill_storage),
            (1, self._stop_storage),
            (4, self._break_links),
            (2, self._stall_links),
            (1, self._fill_disk),
            (1, self._take_descriptors),
            (2, self._send_garbage),
            (4, self._kill_flooder),
            (2, self._stop_flooder),
            (3, self._reset_flooder),
        ]

    def strike(self) -> None:
        """Do one thing."""
        ways = [way for weight, way in self._ways for _ in range(weight)]
        at = time.monotonic() - self._start
        self.log.append(f"{at:7.3f} s: {self._draw.choice(ways)()}")

    def allowance(self) -> Allowance:
        """What the strikes so far explain."""
        return Allowance(self._deaths, self._storage_losses, self._scheduler_losses)

    def close(self) -> None:
        """Wait until all that passes is over."""
        for thread in self._passing:
            thread.join()

    def _pass(self, seconds: float, undo: Callable[[], object]) -> None:
        """Undo something later, whatever else is done meanwhile."""
        self._passing.append(threading.Timer(seconds, undo))
        self._passing[-1].start()

    def _moment(self) -> float:
        return self._draw.random() * self._longest

    # --- processes --------------------------------------------------------------------------------------------------

    def _agent(self) -> Service:
        return self._draw.choice(self._cluster.agents)

    def _worker(self) -> int | None:
        workers = [pid for pid in descendants(self._agent().pid) if descendants(pid) == []]
        return self._draw.choice(sorted(workers)) if workers else None

    def _stop(self, service: Service, what: str) -> str:
        seconds = self._moment()
        service.process.send_signal(signal.SIGSTOP)
        self._pass(seconds, lambda: service.process.send_signal(signal.SIGCONT))
        return f"stop {what} {service.pid} for {seconds:.3f} s"

    def _kill_worker(self) -> str:
        self._deaths += 1
        pid = self._worker()
        _send(pid, signal.SIGKILL)
        return f"kill worker {pid}"

    def _stop_worker(self) -> str:
        pid, seconds = self._worker(), self._moment()
        _send(pid, signal.SIGSTOP)
        self._pass(seconds, lambda: _send(pid, signal.SIGCONT))
        return f"stop worker {pid} for {seconds:.3f} s"

    def _kill_template(self) -> str:
        self._deaths += 1
        found = [pid for pid in descendants(self._agent().pid) if descendants(pid) or "template" in command_line(pid)]
        for pid in found:
            _send(pid, signal.SIGKILL)
        return f"kill template {found}"

    def _kill_agent(self) -> str:
        self._deaths += 1
        agent = self._agent()
        self._cluster.kill_agent(agent)
        self._cluster.add_agent()
        return f"kill agent {agent.pid}, start {self._cluster.agents[-1].pid}"

    def _stop_agent(self) -> str:
        self._deaths += 1
        return self._stop(self._agent(), "agent")

    def _kill_scheduler(self) -> str:
        self._scheduler_losses += 1
        scheduler = self._cluster.services.scheduler
        scheduler.kill()
        time.sleep(self._moment() / 4)  # the outage itself
        self._cluster.services.start_scheduler()
        return f"kill scheduler {scheduler.pid}, start {self._cluster.services.scheduler.pid}"

    def _stop_scheduler(self) -> str:
        self._deaths += 1
        return self._stop(self._cluster.services.scheduler, "scheduler")

    def _kill_storage(self) -> str:
        self._storage_losses += 1
        storage = self._cluster.storage
        self._cluster.restart_storage()
        return f"kill storage {storage.pid}, start {self._cluster.storage.pid}"

    def _stop_storage(self) -> str:
        return self._stop(self._cluster.storage, "storage")

    # --- links, disks, peers ----------------------------------------------------------------------------------------

    def _break_links(self) -> str:
        name, relay = self._draw.choice(list(self._cluster.relays.items()))
        if self._draw.random() < 0.5:
            relay.cut()
            return f"cut {name}"
        relay.half_open()
        return f"cut {name} at one end"

    def _stall_links(self) -> str:
        name, relay = self._draw.choice(list(self._cluster.relays.items()))
        seconds = self._moment()
        relay.hold()
        self._pass(seconds, relay.release)
        return f"stall {name} for {seconds:.3f} s"

    def _fill_disk(self) -> str:
        filler = self._cluster.disk / "filler"
        if not self._cluster.disk_is_small or filler.exists():
            return "the disk can not be filled"
        seconds = self._moment()
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        self._pass(seconds, filler.unlink)
        return f"fill the journal's disk for {seconds:.3f} s"

    def _take_descriptors(self) -> str:
        services = [self._cluster.services.scheduler, self._cluster.storage, *self._cluster.agents]
        service, seconds = self._draw.choice(services), self._moment()
        if "connections open" not in service.said():
            return f"{service.log.stem} {service.pid} is starting: without descriptors it could only end"
        if service.pid in self._short:
            return f"{service.log.stem} {service.pid} has no more descriptors already"
        with contextlib.suppress(OSError):
            limits = resource.prlimit(service.pid, resource.RLIMIT_NOFILE)
            self._short.add(service.pid)
            used = max(int(name) for name in os.listdir(f"/proc/{service.pid}/fd")) + 1
            resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (used, limits[1]))
            self._pass(seconds, lambda: self._give_descriptors(service, limits))
        return f"no more descriptors for {service.log.stem} {service.pid} for {seconds:.3f} s"

    def _give_descriptors(self, service: Service, limits: tuple[int, int]) -> None:
        self._short.discard(service.pid)
        if service.process.poll() is None:
            resource.prlimit(service.pid, resource.RLIMIT_NOFILE, limits)

    def _send_garbage(self) -> str:
        port, service = self._draw.choice(
            (
                (self._cluster.services.port, ServiceKind.SCHEDULER),
                (self._cluster.storage_port, ServiceKind.STORAGE),
            )
        )
        draw = random.Random(self._draw.random())
        ways: list[Callable[[], None]] = [lambda: raw_noise(port, draw)]
        if self._cluster.keys is None:  # otherwise nobody can say anything
            ways += [
                lambda: wrong_frames(port, draw),
                lambda: wrong_messages(port, draw.choice((Role.CLIENT, Role.AGENT)), service),
                lambda: flood(port, draw, GARBAGE),
            ]
        chosen = self._draw.randrange(len(ways))

        def send() -> None:
            # A service that was killed or stopped meanwhile does not listen to the end.
            with contextlib.suppress(OSError, RuntimeError):
                ways[chosen]()

        self._pass(0.0, send)
        return f"garbage {chosen} to port {port}"

    # --- clients ----------------------------------------------------------------------------------------------------

    def add_flooder(self) -> str:
        """Start another one, sometimes in a named session."""
        self._sessions += 1
        session = f"flood-{self._sessions}" if self._draw.random() < 0.4 else ""
        flooder = self._cluster.add_flooder(self._draw.randrange(1 << 30), session, nested=self._nested)
        return f"start flooder {flooder.process.pid} {session}".rstrip()

    def _flooder(self) -> Flooder:
        """One that lives: the last one is killed only when another one is started."""
        living = [each for each in self._cluster.flooders if each.process.poll() is None]
        assert living, f"the last flooder has ended: {self._cluster.flooders[-1].said()}"
        return self._draw.choice(living)

    def _kill_flooder(self) -> str:
        flooder = self._flooder()
        flooder.process.kill()
        if self._draw.random() < 0.5:
            flooder.relay.cut()
        return f"kill flooder {flooder.process.pid}, {self.add_flooder()}"

    def _stop_flooder(self) -> str:
        flooder, seconds = self._flooder(), self._moment()
        flooder.send(signal.SIGSTOP)
        self._pass(seconds, lambda: flooder.send(signal.SIGCONT))
        return f"stop flooder {flooder.process.pid} for {seconds:.3f} s"

    def _reset_flooder(self) -> str:
        flooder = self._flooder()
        flooder.relay.cut()
        return f"reset flooder {flooder.process.pid}"


def _send(pid: int | None, number: signal.Signals) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
