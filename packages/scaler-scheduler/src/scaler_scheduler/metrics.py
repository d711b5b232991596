"""The scheduler's page for Prometheus: imported where it is wanted, since its library takes long to load."""

from __future__ import annotations

import asyncio
import logging

from scaler_io.metrics import MetricsPage
from scaler_protocol.addresses import Address
from scaler_scheduler.publication import STATUS_SECONDS, FigureTaker

LOGGER = logging.getLogger("scaler")


class Metrics:
    """A page for Prometheus, from a status that is taken every second; raises AddressError where it cannot listen."""

    def __init__(self, figures: FigureTaker, address: Address) -> None:
        self._figures = figures
        self._loop = asyncio.get_running_loop()
        self._newest = figures.status()
        self._page = MetricsPage(address, lambda: self._newest)
        self._timer = self._loop.call_later(STATUS_SECONDS, self._refresh)
        LOGGER.info("Scheduler: serve metrics at http://%s/metrics", str(address).removeprefix("tcp://"))

    def _refresh(self) -> None:
        self._newest = self._figures.status()
        self._timer = self._loop.call_later(STATUS_SECONDS, self._refresh)

    def close(self) -> None:
        """Free the address."""
        self._timer.cancel()
        self._page.close()
