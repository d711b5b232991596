"""A scheduler and its workers in one thread of the test, and a client of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler_client.api.client import Client
from support.fake_cluster import FakeCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A running FakeCluster, which uses no keys."""
    monkeypatch.setenv("SCALER_INSECURE", "1")
    cluster = FakeCluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[Client]:
    """A connected client."""
    with Client(cluster.address, timeout_seconds=10) as client:
        yield client
