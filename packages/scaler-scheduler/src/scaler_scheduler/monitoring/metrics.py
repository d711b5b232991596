"""The scheduler's page for Prometheus; imported only if enabled, since its library loads slowly."""

from __future__ import annotations

import asyncio
import logging
import time

from scaler_io.security.keyring import Credentials
from scaler_io.service.metrics_page import MetricsPage
from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import MonitorStatus, StorageStatus
from scaler_scheduler.monitoring.publisher import STATUS_SECONDS, StatusSampler
from scaler_scheduler.monitoring.storage_watch import StorageWatch

LOGGER = logging.getLogger("scaler")
LOOK_SECONDS = 0.1
"""Interval at which the link to the object storage server is served."""
SILENCE_SECONDS = 10.0
"""How old figures of object storage, which is asked every second, may become."""


class Metrics:
    """A page for Prometheus, updated every second; raises AddressError if the address cannot be bound."""

    def __init__(
        self, sampler: StatusSampler, storage: Address, address: Address, credentials: Credentials | None = None
    ) -> None:
        self._sampler = sampler
        self._loop = asyncio.get_running_loop()
        self._status = sampler.status()
        self._storage: StorageStatus | None = None
        self._storage_heard = 0.0
        self._page = MetricsPage(address, self._figures)
        self._watch = StorageWatch(storage, credentials=credentials)
        self._timers = [
            self._loop.call_later(STATUS_SECONDS, self._refresh, 0),
            self._loop.call_later(LOOK_SECONDS, self._look, 1),
        ]
        LOGGER.info("Scheduler: serve metrics at http://%s/metrics", str(address).removeprefix("tcp://"))

    def _refresh(self, timer: int) -> None:
        self._timers[timer] = self._loop.call_later(STATUS_SECONDS, self._refresh, timer)
        self._status = self._sampler.status()
        self._watch.ask()

    def _look(self, timer: int) -> None:
        self._timers[timer] = self._loop.call_later(LOOK_SECONDS, self._look, timer)
        if (storage := self._watch.turn()) is not None:
            self._storage, self._storage_heard = storage, time.monotonic()

    def _figures(self) -> tuple[MonitorStatus, StorageStatus | None]:
        is_old = time.monotonic() > self._storage_heard + SILENCE_SECONDS
        return self._status, None if is_old else self._storage

    def close(self) -> None:
        """Stop serving and free the address."""
        for timer in self._timers:
            timer.cancel()
        self._watch.close()
        self._page.close()
