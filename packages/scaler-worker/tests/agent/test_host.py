"""What an agent reports of its process, its host and its workers."""

from __future__ import annotations

import os

from scaler_io.service.process import cpu_seconds, resident_bytes
from scaler_protocol.codec import encode
from scaler_worker.agent.core.workers import Workers
from scaler_worker.agent.host import HostFigures


def test_cpu_and_rss_are_those_of_the_agents_own_process() -> None:
    figures, workers = HostFigures(), Workers(0, ())
    figures.status(workers, queued=0, free=5, now=1.0)
    before = cpu_seconds(os.getpid())
    while (spent := cpu_seconds(os.getpid()) - before) < 0.1:
        sum(range(100_000))
    status = figures.status(workers, queued=3, free=5, now=3.0)
    assert spent / 2 <= status.cpu <= (cpu_seconds(os.getpid()) - before + 0.1) / 2
    assert 0.5 < status.rss / resident_bytes(os.getpid()) < 2
    assert (status.free, status.queued, status.names) == (5, 3, []) and encode(status)
