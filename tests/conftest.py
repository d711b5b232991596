"""Clusters for all tests of the whole engine: two workers, and a single one with a short queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler import Client
from scaler_client.runtime import connection
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two workers that offer nothing special."""
    started = LocalCluster(tmp_path_factory.mktemp("cluster") / "log", n_workers=2)
    yield started
    started.end()


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One worker, which holds at most two tasks and offers capabilities."""
    started = LocalCluster(
        tmp_path_factory.mktemp("single") / "log",
        n_workers=1,
        per_worker_task_queue_size=2,
        per_worker_capabilities={"gpu": 2, "linux": -1},
    )
    yield started
    started.end()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """A client of the cluster with two workers."""
    with Client(address=cluster.address, timeout_seconds=SECONDS) as connected:
        yield connected


@pytest.fixture
def single_client(single: LocalCluster) -> Iterator[Client]:
    """A client of the cluster with one worker."""
    with Client(address=single.address, timeout_seconds=SECONDS) as connected:
        yield connected


@pytest.fixture
def no_result_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of this process's clients go through object storage from 16 KiB on, as those beyond a credit do."""
    monkeypatch.setattr(connection, "RESULT_CREDIT", 0)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Where tasks wait until the test lets them go."""
    with Gate() as opened:
        yield opened
