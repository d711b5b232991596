"""The scheduler's page for Prometheus: whose figures it has."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from scaler_io.service.metrics import Newest
from scaler_protocol.addresses import Address
from scaler_protocol.monitoring import MonitorStatus, StorageStatus
from scaler_scheduler.monitoring import metrics
from scaler_scheduler.monitoring.metrics import SILENCE_SECONDS, Metrics

STATUS = MonitorStatus(0, 0.0)
STORAGE = StorageStatus(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_figures_of_object_storage_end_where_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, answers = [100.0], [STORAGE]
    watch = SimpleNamespace(turn=lambda: answers.pop() if answers else None, close=lambda: None)
    served: list[Newest] = []

    def page(address: Address, figures: Newest) -> SimpleNamespace:
        served.append(figures)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(metrics, "StorageWatch", lambda *_, **__: watch)
    monkeypatch.setattr(metrics, "MetricsPage", page)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    sampler: Any = SimpleNamespace(status=lambda: STATUS)

    async def scrape() -> None:
        made = Metrics(sampler, Address("127.0.0.1", 1), Address("127.0.0.1", 2))
        assert served[0]() == (STATUS, None)
        made._look(1)
        assert served[0]() == (STATUS, STORAGE)
        clock[0] += SILENCE_SECONDS + 1
        assert served[0]() == (STATUS, None)
        made.close()

    asyncio.run(scrape())
