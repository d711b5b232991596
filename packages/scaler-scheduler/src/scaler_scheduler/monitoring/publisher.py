"""The publisher: the shell that sends monitors the scheduler's status and events.

Without subscribers nothing is computed and no timer runs. A new subscriber causes a MonitorStatus that begins a
snapshot, a MonitorHistory, and TaskEvents with all tasks that have not ended; then events every EVENT_SECONDS, every
second what of the status has changed, and the status of the object storage server as it arrives. Messages are numbered,
so that a subscriber that is too slow notices which were dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from itertools import count

from scaler_io.links.hub import Hub
from scaler_io.links.streams import HEADER
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.service.process import cpu_seconds, resident_bytes
from scaler_io.service.server_loop import is_logged
from scaler_io.service.socket_lock import SocketLock, remove_dead
from scaler_io.service.sweep import Sweep
from scaler_io.transport.publishing import Publisher
from scaler_protocol.addresses import Address
from scaler_protocol.codec import encode
from scaler_protocol.messages import Message
from scaler_protocol.monitoring import MonitorStatus, changes
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.dump import Row
from scaler_scheduler.core.snapshot import ProcessStats
from scaler_scheduler.monitoring.storage_watch import StorageWatch

LOGGER = logging.getLogger("scaler")
STATUS_SECONDS = 1.0
EVENT_SECONDS = 0.1
TOGETHER_SECONDS = 0.1
"""Who joins so soon after another one waits, so that everything is published for many at once."""
LOCAL_MONITORS = "/tmp/*_[0-9]*_monitor"
"""The paths that `local_monitor` makes."""


def local_monitor(scheduler: Address) -> Address | None:
    """The Unix socket at which monitors of this host can subscribe; None if the scheduler has no TCP address."""
    return None if scheduler.path else Address(path=f"/tmp/{scheduler.host}_{scheduler.port}_monitor")


class StatusSampler:
    """Combines the core's snapshot with measurements of the process."""

    def __init__(self, core: SchedulerCore, hub: Hub, address: Address) -> None:
        self._core = core
        self._hub = hub
        self._address = str(address)
        self._started = self._at = time.monotonic()
        self._spent = cpu_seconds(os.getpid())
        self._cpu = 0.0

    def status(self, *, first: bool = False) -> MonitorStatus:
        """The status now; CPU is the mean since the last call."""
        now = time.monotonic()
        return self._core.snapshot(self._stats(now), now, first=first)

    def dump(self) -> dict[str, Row]:
        """Who waits for what, and why, now."""
        now = time.monotonic()
        return self._core.dump(self._stats(now), self._hub.links(now), now)

    def _stats(self, now: float) -> ProcessStats:
        if now >= self._at + STATUS_SECONDS / 2:  # over a shorter time the mean is too coarse
            spent = cpu_seconds(os.getpid())
            self._cpu = (spent - self._spent) / (now - self._at)
            self._at, self._spent = now, spent
        return ProcessStats(
            self._address,
            time.time(),
            now - self._started,
            self._cpu,
            resident_bytes(os.getpid()),
            self._hub.sent,
            self._hub.received,
            self._hub.round_trip,
            self._hub.heartbeat_seconds,
            cpu_seconds(os.getpid()),
        )


class MonitorPublisher:
    """Publishes on the running loop until it is closed. An address that cannot be bound is logged as a warning."""

    def __init__(
        self,
        core: SchedulerCore,
        sampler: StatusSampler,
        storage: Address,
        monitor: Address,
        local: Address | None,
        keys: AuthorizedKeys | None = None,
    ) -> None:
        self._core = core
        self._storage = storage
        self._watch: StorageWatch | None = None
        self._sampler = sampler
        self._status = MonitorStatus(0, 0.0)
        """The last one that was published."""
        self._loop = asyncio.get_running_loop()
        self._publisher = Publisher(keys)
        self._credentials = keys.own if keys is not None else None
        self._claims: list[SocketLock] = []
        self._begun = -math.inf
        """When everything was published."""
        self._beginning: asyncio.TimerHandle | None = None
        """While subscribers wait for that."""
        self._again: asyncio.Handle | None = None
        """While subscriptions have changed that were not looked at."""
        self._failures = 0
        self._numbers = count(1)
        self._timers: list[asyncio.TimerHandle] = []
        self._bind(monitor)
        if local is not None:
            remove_dead(LOCAL_MONITORS)
            self._bind(local)
        self._loop.add_reader(self._publisher.fileno(), self._hear)
        for watched in self._publisher.watched:
            self._loop.add_reader(watched.fileno(), watched.process_events)
            watched.process_events()
        self._sweep = Sweep(self._close_greedy, self._publisher.arrivals)
        self._hear()

    def _bind(self, address: Address) -> None:
        try:
            if address.path:
                self._claims.append(SocketLock(address.path))
            self._publisher.bind(address)
        except OSError as error:
            LOGGER.warning("Scheduler: no monitor can subscribe at %s: %s", address, error)
        else:
            LOGGER.info("Scheduler: listen to scheduler monitor address %s", address)

    def _hear(self) -> None:
        """Handle new subscriptions, and the end of the last one; then others may have a turn."""
        self._again = None
        if self._publisher.joined() and self._beginning is None:
            wait = self._begun + TOGETHER_SECONDS - time.monotonic()
            if wait <= 0:
                self._begin()
            else:
                self._beginning = self._loop.call_later(wait, self._begin_late)
        if not self._publisher.has_subscribers and self._timers:
            self._core.stop_events()
            self._stop()
        if self._publisher.is_readable() and self._again is None:
            self._again = self._loop.call_soon(self._hear)

    def _close_greedy(self, seconds: float) -> float:
        pause = self._publisher.close_greedy(seconds)
        self._hear()
        return pause

    def _begin_late(self) -> None:
        self._beginning = None
        if self._publisher.has_subscribers:
            self._begin()
        self._hear()

    def _begin(self) -> None:
        """Publish everything, for all who have joined."""
        self._begun = time.monotonic()
        self._publish_events()  # earlier subscribers get what has happened so far
        self._status = self._sampler.status(first=True)
        self._publish(self._status)
        self._publish(self._core.history(time.time() - time.monotonic()))
        self._core.start_events(time.monotonic())
        self._publish_events()
        self._cancel_timers()
        if self._watch is None:
            self._watch = StorageWatch(self._storage, self._publisher.context, self._credentials)
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
        self._publisher.close_revoked()
        before, self._status = self._status, self._sampler.status()
        self._publish(changes(self._status, before))
        if self._watch is not None:
            self._watch.ask()
        self._hear()

    def _publish_events(self) -> None:
        while (events := self._core.take_events(time.time() - time.monotonic())) is not None:
            self._publish(events)

    def _publish(self, message: Message) -> None:
        number = next(self._numbers)
        try:
            self._publisher.send([HEADER.pack(number, 0), *encode(message)])
        except Exception:  # subscribers notice the gap and subscribe again
            self._failures += 1
            if is_logged(self._failures):
                LOGGER.exception("Scheduler: %s could not be published", type(message).__name__)

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def _stop(self) -> None:
        self._cancel_timers()
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def close(self) -> None:
        """Stop publishing and free the addresses."""
        self._stop()
        for handle in (self._beginning, self._again):
            if handle is not None:
                handle.cancel()
        self._sweep.close()
        for descriptor in (self._publisher.fileno(), *(watched.fileno() for watched in self._publisher.watched)):
            self._loop.remove_reader(descriptor)
        self._publisher.close()
        for claim in self._claims:
            claim.release()
