"""Task options: priorities, retries, timeouts, capabilities."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture
from scaler_protocol import errors
from scaler_protocol.addresses import Address
from scaler_ui.listening import Listening
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.own_keys import MONITOR, own
from support.tasks import add, note, square, worker_pid


def fail_until(attempts: int) -> Any:
    """A function that raises until it is tried for the nth time."""

    def flaky() -> int:
        from scaler import current_task

        task = current_task()
        assert task is not None
        if task.attempt < attempts:
            raise ValueError(f"attempt {task.attempt}")
        return task.attempt

    return flaky


def listening_to_tasks(cluster: LocalCluster) -> AbstractContextManager[Listening]:
    """What its scheduler tells of tasks."""
    return closing(Listening(Address.parse(cluster.address).beside(2), credentials=own(MONITOR)))


def wait_arrived(cluster: LocalCluster, future: ScalerFuture[Any]) -> None:
    """Returns when the scheduler knows a task, and with it all that its client submitted before."""
    with listening_to_tasks(cluster) as listening:
        listening.wait_for(lambda model: model.tasks.find(future.task_id) is not None, SECONDS)


def test_higher_priority_runs_first_and_equal_ones_in_order(
    single: LocalCluster, single_client: Client, gate: Gate, tmp_path: Path
) -> None:
    path = str(tmp_path / "order")
    first = single_client.submit(wait_at, gate.port, 0)
    arrival = gate.arrive()
    futures = [
        single_client.submit_verbose(note, (path, f"{priority}{letter}"), {}, priority=priority)
        for letter in "ab"
        for priority in (-5, 0, 3, 10)
    ]
    wait_arrived(single, futures[-1])
    arrival.let_go()
    for future in (first, *futures):
        future.result(SECONDS)
    order = Path(path).read_text("utf-8").split()
    expected = ["10a", "10b", "3a", "3b", "0a", "0b", "-5a", "-5b"]
    # One task, the first that was submitted, may have been sent ahead to the worker.
    assert order in (expected, [order[0], *(word for word in expected if word != order[0])])


def test_map_takes_a_priority(single: LocalCluster, single_client: Client, gate: Gate, tmp_path: Path) -> None:
    path = str(tmp_path / "order")
    first = single_client.submit(wait_at, gate.port, 0)
    arrival = gate.arrive()
    low = [single_client.submit_verbose(note, (path, "low"), {}, priority=-1) for _ in range(60)]
    with ThreadPoolExecutor(1) as threads, listening_to_tasks(single) as listening:
        high = threads.submit(lambda: single_client.map(note, [path] * 3, ["high"] * 3, priority=5))
        listening.wait_for(lambda model: model.tasks.live == 64, SECONDS)
        arrival.let_go()
        assert high.result(SECONDS) == ["high"] * 3
    for future in (first, *low):
        future.result(SECONDS)
    order = Path(path).read_text("utf-8").split()
    # One task, the first that was submitted, may have been sent ahead to the worker.
    assert order[order[0] == "low" :][:3] == ["high"] * 3 and order.count("low") == 60


def test_user_exceptions_are_retried_only_when_asked(client: Client) -> None:
    with pytest.raises(ValueError, match="attempt 1"):
        client.submit(fail_until(2)).result(SECONDS)
    third = client.submit_verbose(fail_until(3), (), {}, retries=2)
    assert third.result(SECONDS) == 3 and third.profiling_info().attempt == 3
    with pytest.raises(ValueError, match="attempt 2"):
        client.submit_verbose(fail_until(3), (), {}, retries=1).result(SECONDS)
    flaky = fail_until(2)
    assert client.map(lambda _: flaky(), range(3), retries=1) == [2, 2, 2]
    assert client.starmap(lambda _: flaky(), [(1,)], retries=1) == [2]


def test_a_task_timeout_stops_the_task(client: Client, gate: Gate) -> None:
    future = client.submit_verbose(wait_at, (gate.port, 1), {}, task_timeout_seconds=0.2)
    arrival = gate.arrive()
    error = future.exception(SECONDS)
    assert isinstance(error, errors.TaskTimeoutError) and isinstance(error, TimeoutError)
    arrival.wait_gone()
    assert client.submit(square, 3).result(SECONDS) == 9
    with pytest.raises(errors.TaskTimeoutError):
        client.map(lambda seconds: time.sleep(seconds), [0, SECONDS], task_timeout_seconds=0.2)


def test_a_task_timeout_counts_from_the_start_of_the_run(single_client: Client) -> None:
    long = single_client.submit(time.sleep, 2.0)
    behind = single_client.submit_verbose(square, (3,), {}, task_timeout_seconds=1.5)
    assert behind.result(SECONDS) == 9 and long.result(SECONDS) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"task_timeout_seconds": -1},
        {"task_timeout_seconds": 0},
        {"retries": -1},
        {"capabilities": {"": 1}},
        {"capabilities": {"gpu": -2}},
        {"capabilities": {"gpu": 1.5}},
    ],
)
def test_invalid_options_are_refused_at_submit(client: Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        client.submit_verbose(square, (3,), {}, **wrong)
    with pytest.raises(ValueError):
        client.map(square, [3], **wrong)


def test_capabilities_that_are_offered(single_client: Client) -> None:
    assert single_client.submit_verbose(round, args=(3.15,), kwargs={}, capabilities={"gpu": -1}).result(SECONDS) == 3
    for capabilities in ({"gpu": 1}, {"gpu": 2}, {"gpu": 2, "linux": -1}, {"linux": 5}, {}, None):
        assert single_client.submit_verbose(square, (3,), {}, capabilities).result(SECONDS) == 9
    assert single_client.map(square, [1, 2], capabilities={"gpu": 1}) == [1, 4]
    assert single_client.starmap(add, [(1, 2)], {"linux": -1}) == [3]
    graph = {"a": 2, "b": (square, "a")}
    assert single_client.get(graph, keys=["b"], capabilities={"gpu": -1}) == {"b": 4}


@pytest.mark.parametrize("capabilities", [{"gpu": 3}, {"tpu": -1}, {"gpu": 1, "windows": -1}])
def test_capabilities_that_nobody_offers_wait_and_are_told_once(
    single: LocalCluster, single_client: Client, capabilities: dict[str, int]
) -> None:
    waiting = [single_client.submit_verbose(worker_pid, (), {}, capabilities) for _ in range(3)]
    assert single_client.submit(square, 3).result(SECONDS) == 9
    assert not any(future.done() for future in waiting)
    lacking = "gpu=3" if capabilities == {"gpu": 3} else next(name for name in capabilities if name != "gpu")
    log = single.log.read_text("utf-8").splitlines()
    assert len([line for line in log if lacking in line]) == 1, log
    assert all(future.cancel() for future in waiting)


def test_a_quantity_is_compared_and_not_used_up(single_client: Client, gate: Gate) -> None:
    futures = [single_client.submit_verbose(wait_at, (gate.port, 1), {}, {"gpu": 2}) for _ in range(3)]
    for future in futures:
        gate.arrive().let_go()
        assert future.result(SECONDS) == 1
