"""The limit of waiting tasks makes clients wait: nothing fails, nothing is stuck, and memory stays flat."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scaler import Client
from support.clusters import LocalCluster
from support.faults import resident
from support.gates import SECONDS
from support.processes import children
from support.tasks import fibonacci, square

LIMIT = 100
MEBI = 1024 * 1024


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose clients may have LIMIT waiting tasks."""
    cluster = LocalCluster(tmp_path / "log", n_workers=2, max_number_of_tasks_waiting=LIMIT)
    yield cluster
    cluster.end()


@pytest.mark.parametrize("limit", [0, 1])
def test_nested_tasks_are_exempt(tmp_path: Path, limit: int) -> None:
    cluster = LocalCluster(tmp_path / "log", n_workers=1, max_number_of_tasks_waiting=limit)
    try:
        with Client(cluster.address, timeout_seconds=SECONDS) as client:
            futures = [client.submit(fibonacci, client, 6) for _ in range(5)]
            assert [future.result(SECONDS) for future in futures] == [8] * 5
    finally:
        cluster.end()


def test_clients_share_the_limit_and_all_of_their_calls_run(limited: LocalCluster) -> None:
    def work(number: int) -> int:
        with Client(limited.address, timeout_seconds=SECONDS) as client:
            mapped = client.map(square, range(1000))
            futures = [client.submit(square, value) for value in range(1000)]
            assert mapped == [future.result(SECONDS) for future in futures]
            return len(mapped)

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, range(3))) == [1000] * 3


@pytest.mark.parametrize(
    "count",
    [
        20_000,
        pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)]),
        pytest.param(10_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(36_000)]),
    ],
)
def test_calls_of_a_generator_need_constant_memory(limited: LocalCluster, count: int) -> None:
    with Client(limited.address, timeout_seconds=SECONDS) as client:
        for value in range(10_000):
            client.submit(square, value)
        processes = [os.getpid(), *children(os.getpid())]  # workers may be replaced
        before = sum(resident(process)[0] for process in processes)
        for value in range(count):
            client.submit(square, value)
        grown = sum(resident(process)[0] for process in processes) - before
        assert client.submit(square, 3).result(SECONDS) == 9
    assert grown < 20 * MEBI
