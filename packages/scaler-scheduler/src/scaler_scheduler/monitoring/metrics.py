"""The scheduler's page for Prometheus: imported where it is wanted, since its library takes long to load."""

from __future__ import annotations

import asyncio
import logging

from scaler_io.service.metrics import MetricsPage
from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import StorageStatus
from scaler_scheduler.monitoring.publisher import STATUS_SECONDS, StatusSampler
from scaler_scheduler.monitoring.storage_watch import StorageWatch

LOGGER = logging.getLogger("scaler")
LOOK_SECONDS = 0.1
"""How often what storage says is taken in, and its link kept up."""


class Metrics:
    """A page for Prometheus, from figures that are taken every second; raises AddressError where it cannot listen."""

    def __init__(self, figures: StatusSampler, storage: Address, address: Address) -> None:
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._status = figures.status()
        self._storage: StorageStatus | None = None
        self._page = MetricsPage(address, lambda: (self._status, self._storage))
        self._watch = StorageWatch(storage)
        self._timers = [
            self._loop.call_later(STATUS_SECONDS, self._refresh, 0),
            self._loop.call_later(LOOK_SECONDS, self._look, 1),
        ]
        LOGGER.info("Scheduler: serve metrics at http://%s/metrics", str(address).removeprefix("tcp://"))

    def _refresh(self, timer: int) -> None:
        self._timers[timer] = self._loop.call_later(STATUS_SECONDS, self._refresh, timer)
        self._status = self._figures.status()
        self._watch.ask()

    def _look(self, timer: int) -> None:
        self._timers[timer] = self._loop.call_later(LOOK_SECONDS, self._look, timer)
        self._storage = self._watch.turn() or self._storage

    def close(self) -> None:
        """Free the address."""
        for timer in self._timers:
            timer.cancel()
        self._watch.close()
        self._page.close()
