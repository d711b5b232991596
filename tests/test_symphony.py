"""Clients, a scheduler, a proxy agent and a model of Symphony (never the product)."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from scaler import Client
from support.processes import PROGRAMS, Terminal, free_ports
from support.symphony import SERVICE_NAME, SymphonyModel
from support.symphony_tasks import fibonacci, first_then_second, wait_for_file


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler whose only workers are those of Symphony, one unnested task at a time."""
    address = f"tcp://127.0.0.1:{free_ports(3)}"
    words = (address, SERVICE_NAME, "--base-concurrency", "1")
    with (
        SymphonyModel(tmp_path_factory.mktemp("symphony"), instances=3) as symphony,
        Terminal(PROGRAMS / "scaler_scheduler", address) as scheduler,
        symphony.terminal(PROGRAMS / "scaler_symphony_cluster", *words) as proxy,
    ):
        scheduler.read_until("monitor address")
        proxy.read_until("connected to the scheduler")
        yield address
        assert proxy.end(signal.SIGINT) == 0
        assert scheduler.end(signal.SIGINT) == 0


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def test_nested_tasks_exceed_the_base_concurrency(client: Client) -> None:
    assert client.submit(fibonacci, client, 3).result(timeout=60) == 2


def test_waiting_tasks_of_others_do_not_keep_nested_ones_from_their_parent(
    address: str, client: Client, tmp_path: Path
) -> None:
    began = tmp_path / "began"
    with Client(address) as other:
        future = client.submit(first_then_second, client, str(began))
        wait_for_file(str(began))
        urgent = [other.submit_verbose(abs, args=(-n,), kwargs={}, priority=9) for n in range(5)]
        assert future.result(timeout=60) == [1, 2]
        assert [each.result(timeout=60) for each in urgent] == list(range(5))


def test_big_arguments_and_results_travel_through_object_storage(client: Client) -> None:
    data = np.arange(300_000)
    sent = client.send_object(data)
    doubled = client.submit(np.multiply, sent, 2)
    total = client.submit(np.sum, doubled)
    assert (doubled.result(timeout=60) == data * 2).all()
    assert total.result(timeout=60) == data.sum() * 2


def test_a_graph(client: Client) -> None:
    graph = {"a": 2, "b": (abs, -3), "c": (pow, "a", "b"), "d": (pow, "a", "c")}
    assert client.get(graph, keys=["d"]) == {"d": 256}


class Point:
    """A class of this module, which hosts of Symphony cannot import."""

    def __init__(self, x: int) -> None:
        self.x = x


def test_classes_and_exceptions_come_back_as_what_they_are(client: Client) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        result = client.submit(lambda point: Point(point.x + 1), Point(3)).result(timeout=60)
        assert type(result) is Point and result.x == 4
        error = client.submit({1: 2}.__getitem__, "no such key").exception(timeout=60)
        assert type(error) is KeyError and error.args == ("no such key",)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
