"""`Client.workers` and `Client.wait_for_workers` against a scheduler in a thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest

from scaler_client.api.client import Client
from scaler_client.api.connected_workers import ConnectedWorkers, WorkerHost
from scaler_protocol.capacity import ListProcesses, ListWorkers
from scaler_protocol.errors import ClientQuitError, SchedulerLostError
from support.waiting import wait_until

SECONDS = 20.0
TENTH: Any = Fraction(1, 10)  # a number that has no format `g` before Python 3.12


def test_workers_by_host(client: Client, cluster: Any) -> None:
    assert client.workers() == ConnectedWorkers(()) and client.workers().count == 0
    cluster.have_workers(3)
    workers = client.workers()
    assert workers.count == 3
    assert workers.hosts == (WorkerHost("here", 3, {"gpu": 1, "linux": -1}, "grid"),)


def test_several_threads_wait_each_for_its_number(client: Client, cluster: Any) -> None:
    with ThreadPoolExecutor(3) as pool:
        one, two, four = (pool.submit(client.wait_for_workers, n, SECONDS) for n in (1, 2, 4))
        cluster.wait_for(ListWorkers, 3)
        cluster.have_workers(2)
        assert (one.result(SECONDS).count, two.result(SECONDS).count) == (2, 2)
        assert client.wait_for_workers(0).count == 2 and not four.done()
        cluster.have_workers(4)
        assert four.result(SECONDS).count == 4


def test_the_time_limit_says_how_many_there_are_and_what_to_do(client: Client, cluster: Any) -> None:
    cluster.have_workers(2)
    expected = f"2 of 3 workers are connected after 0.1 s: start more of them with scaler_cluster {cluster.address}; w"
    with pytest.raises(TimeoutError, match=expected):
        client.wait_for_workers(3, timeout=TENTH)
    wait_until(lambda: not client._io._core._worker_requests, "the io thread forgets it")


def test_workers_that_are_not_named_in_time(client: Client, cluster: Any) -> None:
    with pytest.raises(TimeoutError, match=r"has not named the workers within 0\.1 s"):
        client.run(abs, -1, timeout=0.1)
    with pytest.raises(TimeoutError, match=r"has not named the workers within 0 s"):
        client.restart_workers(timeout=0)
    assert cluster.wait_for(ListProcesses, 2)
    wait_until(lambda: not client._io._core._worker_requests, "the io thread forgets them")


def test_a_new_scheduler_is_asked_again(client: Client, cluster: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_for_workers, 2, SECONDS)
        cluster.wait_for(ListWorkers)
        cluster.be_replaced()
        cluster.wait_for(ListWorkers, 2)
        cluster.have_workers(2)
        assert waiting.result(SECONDS).count == 2


def test_a_client_that_is_closed_ends_the_wait(client: Client, cluster: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait_for_workers, 2, SECONDS)
        cluster.wait_for(ListWorkers)
        client.disconnect()
        with pytest.raises(ClientQuitError):
            waiting.result(SECONDS)


def test_a_scheduler_that_is_lost_ends_the_wait(cluster: Any) -> None:
    with Client(cluster.address, timeout_seconds=0.3) as client:
        cluster.stays_silent = True
        cluster.be_replaced()
        with pytest.raises(SchedulerLostError):
            client.wait_for_workers(1)
        with pytest.raises(SchedulerLostError):
            client.workers()


def test_a_scheduler_that_says_nothing_ends_the_wait_with_the_time_limit(client: Client, cluster: Any) -> None:
    cluster.stays_silent = True
    with pytest.raises(SchedulerLostError, match=r"has not answered within 0\.05 s"):
        client.wait_for_workers(1, timeout=0.05)


@pytest.mark.parametrize(("n", "timeout", "name"), [(-1, None, "n"), (1.5, None, "n"), (1, -1, "timeout")])
def test_odd_parameters_are_refused(client: Client, n: Any, timeout: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        client.wait_for_workers(n, timeout)
