"""Tasks that use too much memory are stopped, tried once alone, and named; others do not notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait

import pytest

from scaler import Client
from scaler_protocol.errors import MemoryLimitError
from support.clusters import LocalCluster
from support.gates import SECONDS
from support.memory_tasks import attempt_with, attempt_with_child, oom_score

LIMIT = 200 << 20
WORKERS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    started = LocalCluster(tmp_path_factory.mktemp("memory") / "log", n_workers=WORKERS, memory_limit_per_worker=LIMIT)
    yield started
    started.end()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster.address) as connected:
        yield connected


def test_a_task_that_fits_alone_ends_at_its_second_attempt(client: Client) -> None:
    large = client.submit(attempt_with, LIMIT + (100 << 20), 1.0)
    others = [client.submit(attempt_with, 1 << 20, 0.05) for _ in range(200)]
    assert large.result(SECONDS) == 2
    wait(others, SECONDS)
    assert {other.result() for other in others} == {1}


@pytest.mark.parametrize("task", [attempt_with, attempt_with_child])
def test_a_task_that_fits_nowhere_says_how_much_of_what_limit(
    client: Client, task: Callable[[int, float], int]
) -> None:
    other = client.submit(attempt_with, 1 << 20, 1.0)
    failed = client.submit(task, WORKERS * LIMIT + (200 << 20), 60.0)
    with pytest.raises(MemoryLimitError, match=r"the limit per worker is 200 MiB, and 600 MiB for a task alone"):
        failed.result(SECONDS)
    with pytest.raises(MemoryError):
        failed.result(SECONDS)
    assert other.result(SECONDS) == 1
    assert client.submit(attempt_with, 1 << 20, 0.0).result(SECONDS) == 1


def test_the_kernel_kills_workers_before_services(client: Client) -> None:
    assert client.submit(oom_score).result(SECONDS) > oom_score()
