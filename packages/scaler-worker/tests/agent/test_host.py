"""What an agent measures of its process and its workers."""

from __future__ import annotations

import os
import shutil
import tempfile

from scaler_io.service.process import cpu_seconds, resident_bytes
from scaler_worker.agent.host import SHARED_MEMORY, HostFigures, free_bytes

NO_PROCESS = 2**22 + 1
"""Above the largest process id of Linux."""


def test_cpu_and_rss_are_those_of_the_agents_own_process() -> None:
    figures = HostFigures()
    figures.measure([], free=5, now=1.0)
    before = cpu_seconds(os.getpid())
    while (spent := cpu_seconds(os.getpid()) - before) < 0.1:
        sum(range(100_000))
    stats = figures.measure([], free=5, now=3.0)
    assert spent / 2 <= stats.cpu <= (cpu_seconds(os.getpid()) - before + 0.1) / 2
    assert 0.5 < stats.rss / resident_bytes(os.getpid()) < 2
    assert stats.free == 5


def test_workers_are_measured_by_process_id_and_one_that_has_ended_takes_nothing() -> None:
    stats = HostFigures().measure([os.getppid(), NO_PROCESS], free=5, now=1.0)
    assert stats.worker_rsses[os.getppid()] > 0
    assert (stats.worker_cpus[NO_PROCESS], stats.worker_rsses[NO_PROCESS]) == (0.0, 0)


def test_load_and_free_room_are_those_of_the_host() -> None:
    stats = HostFigures().measure([], free=5, now=1.0)
    assert 0 <= stats.load < 10_000
    assert 0 < stats.disk_free < shutil.disk_usage(tempfile.gettempdir()).total
    assert 0 < stats.shared_free <= shutil.disk_usage(SHARED_MEMORY).total
    assert free_bytes("/no/such/directory") == 0
