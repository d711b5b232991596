"""MonitorPublisher: the shell that tells monitors what the scheduler knows.

Nothing is computed while nobody listens: no timer runs. A listener that comes is sent a MonitorStatus that begins a
snapshot, then TaskEvents with all that has not ended; from then on events every EVENT_SECONDS, a status every second,
and the figures of the object storage server as they come. Messages are numbered, so that a listener notices what was
dropped because it was too slow.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from itertools import count

from scaler_io.links.hub import Hub
from scaler_io.links.streams import HEADER
from scaler_io.service.process import cpu_seconds, resident_bytes
from scaler_io.service.socket_lock import SocketLock
from scaler_io.transport.zeromq import Publisher
from scaler_protocol.addresses import Address
from scaler_protocol.codec import encode
from scaler_protocol.errors import AddressError
from scaler_protocol.messages import Message
from scaler_protocol.monitoring import MonitorStatus
from scaler_scheduler.core.snapshot import ProcessStats, census
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.monitoring.storage_watch import StorageWatch

LOGGER = logging.getLogger("scaler")
STATUS_SECONDS = 1.0
EVENT_SECONDS = 0.1


def local_monitor(scheduler: Address) -> Address | None:
    """The path beside the TCP address where monitors of this host find the scheduler's publications."""
    return None if scheduler.path else Address(path=f"/tmp/{scheduler.host}_{scheduler.port}_monitor")


class StatusSampler:
    """Takes a census with what only the process itself knows."""

    def __init__(self, state: SchedulerState, hub: Hub, address: Address) -> None:
        self._state = state
        self._hub = hub
        self._address = str(address)
        self._started = self._at = time.monotonic()
        self._spent = cpu_seconds(os.getpid())
        self._cpu = 0.0

    def status(self, *, snapshot: bool = False) -> MonitorStatus:
        """The figures of now; CPU is the mean since the last time."""
        now = time.monotonic()
        if now >= self._at + STATUS_SECONDS / 2:  # of a shorter time the mean says nothing
            spent = cpu_seconds(os.getpid())
            self._cpu = (spent - self._spent) / (now - self._at)
            self._at, self._spent = now, spent
        figures = ProcessStats(
            self._address,
            time.time(),
            now - self._started,
            self._cpu,
            resident_bytes(os.getpid()),
            self._hub.sent,
            self._hub.received,
            self._hub.round_trip,
        )
        return census(self._state, figures, now, snapshot=snapshot)


class MonitorPublisher:
    """Publishes on the running loop, until it is closed. An address that cannot be had is one line in the log."""

    def __init__(
        self, state: SchedulerState, figures: StatusSampler, storage: Address, monitor: Address, local: Address | None
    ) -> None:
        self._state = state
        self._storage = storage
        self._watch: StorageWatch | None = None
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._publisher = Publisher()
        self._claims: list[SocketLock] = []
        self._numbers = count(1)
        self._timers: list[asyncio.TimerHandle] = []
        self._bind(monitor)
        if local is not None:
            self._bind(local)
        self._loop.add_reader(self._publisher.fileno(), self._hear)
        self._loop.add_reader(self._publisher.accept_monitor.fileno(), self._publisher.accept_monitor.look)
        self._publisher.accept_monitor.look()
        self._hear()

    def _bind(self, address: Address) -> None:
        try:
            if address.path:
                self._claims.append(SocketLock(address.path))
            self._publisher.bind(address)
        except (OSError, AddressError) as error:
            LOGGER.warning("Scheduler: no monitor can subscribe at %s: %s", address, error)
        else:
            LOGGER.info("Scheduler: listen to scheduler monitor address %s", address)

    def _hear(self) -> None:
        """Somebody came or went."""
        while self._publisher.joined():
            self._begin()
        if not self._publisher.has_listeners and self._state.event_log.listening:
            self._state.event_log.stop()
            self._stop()

    def _begin(self) -> None:
        state = self._state
        self._publish_events()  # those who listen already are owed what has happened so far
        self._publish(self._figures.status(snapshot=True))
        tasks = (task for session in state.sessions.values() for task in session.tasks.values())
        state.event_log.now = time.monotonic()
        state.event_log.start(state.agents.values(), tasks)
        self._publish_events()
        self._stop()
        self._watch = StorageWatch(self._storage, self._publisher.context)
        self._timers = [
            self._loop.call_later(EVENT_SECONDS, self._on_events, 0),
            self._loop.call_later(STATUS_SECONDS, self._on_status, 1),
        ]

    def _on_events(self, timer: int) -> None:
        self._timers[timer] = self._loop.call_later(EVENT_SECONDS, self._on_events, timer)
        self._publish_events()
        if self._watch is not None and (storage := self._watch.turn()) is not None:
            self._publish(storage)
        self._hear()

    def _on_status(self, timer: int) -> None:
        self._timers[timer] = self._loop.call_later(STATUS_SECONDS, self._on_status, timer)
        self._publish(self._figures.status())
        if self._watch is not None:
            self._watch.ask()
        self._hear()

    def _publish_events(self) -> None:
        events = self._state.event_log.take(time.time() - time.monotonic())
        if events is not None:
            self._publish(events)

    def _publish(self, message: Message) -> None:
        number = next(self._numbers)
        try:
            self._publisher.send([HEADER.pack(number, 0), *encode(message)])
        except Exception:  # listeners notice the gap, and ask for everything again
            LOGGER.exception("Scheduler: %s could not be published", type(message).__name__)

    def _stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def close(self) -> None:
        """Free the addresses."""
        self._stop()
        self._loop.remove_reader(self._publisher.fileno())
        self._loop.remove_reader(self._publisher.accept_monitor.fileno())
        self._publisher.close()
        for claim in self._claims:
            claim.release()
