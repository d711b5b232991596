"""Tasks that submit tasks and wait for them, mostly on a cluster with a single worker."""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, as_completed, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler_protocol.errors import ClientQuitError, NestingLimitError, TaskTimeoutError, WorkerDiedError
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.tasks import (
    TaggedSerializer,
    add,
    add_later,
    await_children,
    explode,
    fibonacci,
    in_fork,
    square,
    worker_pid,
)

MINUTE = 60.0


def test_fibonacci_8_deep_on_one_worker(single_client: Client) -> None:
    assert single_client.submit(fibonacci, single_client, 8).result(MINUTE) == 21


def test_fan_outs_of_30_two_levels_deep_with_a_queue_of_2(single_client: Client) -> None:
    def fan(client: Client, width: int, depth: int) -> int:
        if depth == 0:
            return 1
        futures = [client.submit(fan, client, width, depth - 1) for _ in range(width)]
        return sum(future.result(SECONDS) for future in futures)

    assert single_client.submit(fan, single_client, 30, 2).result(MINUTE) == 900


def test_50_deep_on_one_worker(single_client: Client) -> None:
    def down(client: Client, depth: int) -> int:
        return 1 + client.submit(down, client, depth - 1).result(SECONDS) if depth else 0

    assert single_client.submit(down, single_client, 50).result(MINUTE) == 50


def test_many_parents_at_once_on_one_worker(single_client: Client) -> None:
    def parent(client: Client, value: int) -> int:
        return client.submit(square, value).result(SECONDS) + 1

    futures = [single_client.submit(parent, single_client, value) for value in range(20)]
    assert [future.result(MINUTE) for future in futures] == [value * value + 1 for value in range(20)]


def test_threads_of_a_task_wait_too(single_client: Client) -> None:
    def parent(client: Client) -> list[int]:
        results = [0] * 5

        def child(number: int) -> None:
            results[number] = client.submit(square, number).result(SECONDS)

        threads = [threading.Thread(target=child, args=(number,)) for number in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    assert single_client.submit(parent, single_client).result(MINUTE) == [0, 1, 4, 9, 16]


def test_every_way_to_wait_gives_the_worker_to_the_children(single_client: Client) -> None:
    def parent(client: Client) -> list[int]:
        futures = [client.submit(square, number) for number in range(4)]
        done, _ = wait(futures, SECONDS)
        total = sum(future.result() for future in done)
        total_completed = sum(future.result() for future in as_completed([client.submit(square, 5)], SECONDS))
        with client.executor() as executor:
            total_executor = sum(executor.map(square, range(3)))
        graph = client.get({"a": 2, "b": (square, "a"), "c": (add, "a", "b")}, keys=["c"])
        return [total, total_completed, total_executor, graph["c"]]

    assert single_client.submit(parent, single_client).result(MINUTE) == [14, 25, 5, 6]


def test_waits_that_nobody_is_told_of_give_the_worker_away_too(single_client: Client) -> None:
    """A parent that sleeps in an event loop or for an event of its own is known by the CPU that it does not use."""

    def awaits(client: Client) -> int:
        async def awaiting() -> int:
            return await asyncio.wait_for(client.submit(square, 6), 5)

        return asyncio.run(awaiting())

    def waits_for_a_callback(client: Client) -> bool:
        called = threading.Event()
        client.submit(square, 7).add_done_callback(lambda _: called.set())
        return called.wait(5)

    assert single_client.submit(awaits, single_client).result(MINUTE) == 36
    assert single_client.submit(waits_for_a_callback, single_client).result(MINUTE)
    assert single_client.submit(fibonacci, single_client, 3).result(MINUTE) == 2
    assert single_client.submit(awaits, single_client).result(MINUTE) == 36, "while there is an idle spare worker"


def test_coroutine_functions_are_awaited_in_the_worker(single_client: Client) -> None:
    client, later = single_client, cast(Any, add_later)

    class Adder:
        async def __call__(self, a: int) -> int:
            return await add_later(a)

        async def method(self, a: int) -> int:
            return await add_later(a)

    assert client.submit(add_later, 1, b=2).result(MINUTE) == 3
    for fn in (functools.partial(add_later, b=1), Adder(), Adder().method, lambda a: add_later(a)):
        assert client.submit(fn, 1).result(MINUTE) == 2
    assert client.map(later, [1, 2], [3, 4]) == [4, 6]
    assert client.starmap(later, [(1,), (2, 2)]) == [2, 4]
    assert client.get({"a": (add_later, 1), "b": (add_later, "a", "a")}, keys=["b"]) == {"b": 4}
    assert client.submit(add_later, client.submit(add_later, 1)).result(MINUTE) == 3
    with Client(address=client._settings["address"], serializer=TaggedSerializer) as tagged:
        assert tagged.submit(add_later, 1).result(MINUTE) == 2


def test_coroutines_await_calls_of_their_own_on_one_worker(single_client: Client) -> None:
    assert single_client.submit(await_children, single_client, 5).result(MINUTE) == [0, 2, 4, 6, 8]
    nested = single_client.submit(lambda client: client.submit(await_children, client, 2).result(), single_client)
    assert nested.result(MINUTE) == [0, 2]


def test_what_a_coroutine_raises(single_client: Client) -> None:
    async def failing(text: str) -> None:
        await asyncio.sleep(0)
        raise KeyError(text)

    async def awaits_what_is_cancelled(client: Client) -> None:
        future = client.submit(time.sleep, 60)
        asyncio.get_running_loop().call_later(0.01, future.cancel)
        await future

    error = single_client.submit(failing, "k").exception(MINUTE)
    assert isinstance(error, KeyError) and error.args == ("k",)
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["failing"]
    cancelled = single_client.submit(awaits_what_is_cancelled, single_client).exception(MINUTE)
    assert isinstance(cancelled, CancelledError)


def test_coroutines_are_cancelled_and_time_out(single_client: Client, gate: Gate) -> None:
    async def stays(port: int) -> None:
        await asyncio.to_thread(wait_at, port, 0)
        await asyncio.sleep(600)

    future = single_client.submit(stays, gate.port)
    gate.arrive().let_go()
    assert future.cancel()
    late = single_client.submit_verbose(asyncio.sleep, (600,), {}, task_timeout_seconds=0.2)
    assert isinstance(late.exception(MINUTE), TaskTimeoutError)
    assert single_client.submit(add_later, 1).result(MINUTE) == 2


def test_nested_map(single_client: Client) -> None:
    def row(client: Client, start: int) -> list[int]:
        return client.map(square, range(start, start + 3))

    def table(client: Client) -> list[list[int]]:
        return client.map(row, [client] * 3, [0, 3, 6])

    assert single_client.submit(table, single_client).result(MINUTE) == [[0, 1, 4], [9, 16, 25], [36, 49, 64]]


def test_nested_futures_and_objects_as_arguments(single_client: Client) -> None:
    def parent(client: Client) -> int:
        first = client.submit(square, 3)
        reference = client.send_object([1, 2, 3])
        total = client.submit(sum, reference)
        return client.submit(lambda values: sum(values), [first, total]).result(SECONDS)

    assert single_client.submit(parent, single_client).result(MINUTE) == 15


@pytest.mark.parametrize("method", ["submit", "map"])
def test_nested_with_a_custom_serializer(single: LocalCluster, method: str) -> None:
    def parent(client: Client, fn: Callable[[int], int], depth: int) -> int:
        if depth:
            return client.submit(parent, client, fn, depth - 1).result(SECONDS)
        return client.map(fn, [7])[0] if method == "map" else client.submit(fn, 7).result(SECONDS)

    with Client(address=single.address, serializer=TaggedSerializer) as client:
        assert client.submit(parent, client, square, 2).result(MINUTE) == 49


def test_an_exception_comes_up_through_all_levels(single_client: Client) -> None:
    def down(client: Client, depth: int) -> None:
        if depth == 0:
            explode("at the bottom")
        client.submit(down, client, depth - 1).result(SECONDS)

    with pytest.raises(ValueError, match="at the bottom"):
        single_client.submit(down, single_client, 3).result(MINUTE)


def test_a_parent_may_carry_on_after_a_child_has_failed(single_client: Client) -> None:
    def parent(client: Client) -> str:
        try:
            client.submit(explode, "caught").result(SECONDS)
        except ValueError as error:
            return f"{error} {client.submit(square, 2).result(SECONDS)}"
        return "nothing was raised"

    assert single_client.submit(parent, single_client).result(MINUTE) == "caught 4"


def test_children_of_a_cancelled_parent_are_cancelled(client: Client, gate: Gate) -> None:
    port = gate.port

    def grandparent(client: Client) -> list[int]:
        return [client.submit(parent, client).result(SECONDS)]

    def parent(client: Client) -> int:
        futures = [client.submit(wait_at, port, number) for number in range(50)]
        return sum(future.result(SECONDS) for future in futures)

    future = client.submit(grandparent, client)
    arrivals = [gate.arrive(), gate.arrive()]
    assert future.cancel()
    for arrival in arrivals:
        arrival.wait_gone()
    assert client.submit(square, 3).result(SECONDS) == 9
    assert gate.arrived() == [], "what was queued of the children has not run"


def test_children_that_nobody_waits_for_end_with_their_parent(client: Client, gate: Gate) -> None:
    port = gate.port

    def parent(client: Client) -> str:
        client.submit(wait_at, port, 1)
        wait_at(port, 0)
        return "done"

    future = client.submit(parent, client)
    arrivals = {arrival.value: arrival for arrival in (gate.arrive(), gate.arrive())}
    arrivals["0"].let_go()
    assert future.result(SECONDS) == "done"
    arrivals["1"].wait_gone()
    assert client.submit(square, 3).result(SECONDS) == 9


def test_a_parent_that_waits_for_its_siblings_children_too(single_client: Client) -> None:
    """Two parents hold no place while they wait, so that children of both take turns on one worker."""

    def parent(client: Client, start: int) -> list[int]:
        return [client.submit(square, value).result(SECONDS) for value in range(start, start + 5)]

    left, right = (single_client.submit(parent, single_client, start) for start in (0, 5))
    assert left.result(MINUTE) + right.result(MINUTE) == [value * value for value in range(10)]


def test_a_nested_client_that_fails_is_replaced(single_client: Client) -> None:

    def fail(value: int) -> int:
        broken = Client()
        assert broken.submit(square, value).result(SECONDS) == value * value
        broken._io.mailbox.close(ClientQuitError("it has failed"))
        broken._io.mailbox.wake()
        with Client() as client:
            big = client.submit(bytes, 100_000)
            return client.submit(square, value + 1).result(SECONDS) + len(big.result(SECONDS))

    def use(client: Client, value: int) -> int:
        return client.submit(square, value).result(SECONDS)

    assert single_client.submit(fail, 3).result(MINUTE) == 100_016
    assert single_client.submit(fail, 4).result(MINUTE) == 100_025
    assert single_client.submit(use, single_client, 5).result(MINUTE) == 25


def test_calls_on_every_worker_do_not_keep_nested_tasks_from_their_slots(client: Client) -> None:
    def tree(client: Client, depth: int) -> int:
        return 1 + sum(client.map(tree, [client] * 2, [depth - 1] * 2)) if depth else 1

    over = threading.Event()

    def everywhere() -> None:
        while not over.is_set():
            with suppress(WorkerDiedError):  # there are more workers only while parents wait
                client.run(os.getpid)

    calls = threading.Thread(target=everywhere)
    calls.start()
    trees = [client.submit(tree, client, 3) for _ in range(4)]
    try:
        assert [each.result(SECONDS) for each in trees] == [15] * 4
    finally:
        over.set()
    calls.join(SECONDS)
    assert not calls.is_alive()


def test_a_fork_of_a_task_has_a_client_of_its_own_by_the_address(client: Client, cluster: LocalCluster) -> None:
    def parent(client: Client, address: str) -> list[str]:
        before = client.submit(square, 2).result(SECONDS)

        def by_address() -> int:
            with Client(address) as own:
                return own.submit(square, 3).result(SECONDS)

        return [
            str(before),
            in_fork(by_address),
            in_fork(Client),
            in_fork(lambda: client.submit(square, 4).result(SECONDS)),
            str(client.submit(square, 5).result(SECONDS)),
        ]

    before, by_address, without, inherited, after = client.submit(parent, client, cluster.address).result(MINUTE)
    assert (before, by_address, after) == ("4", "9", "25")
    assert without.startswith("ClientForkedError: ") and "address of the scheduler" in without
    assert inherited.startswith("ClientForkedError: ")


def test_a_fork_that_returns_from_its_task_ends(single_client: Client) -> None:
    def forks(size: int) -> tuple[bytes, int]:
        pid = os.fork()
        if not pid:
            return bytes(size), 0
        return bytes(size), os.waitpid(pid, 0)[1]

    for size in (1, 100_000):
        assert single_client.submit(forks, size).result(MINUTE) == (bytes(size), 256)
    assert single_client.submit(square, 3).result(MINUTE) == 9


def test_the_address_of_its_own_cluster_makes_a_nested_client(single_client: Client, single: LocalCluster) -> None:
    def down(address: str, depth: int) -> int:
        if not depth:
            return 0
        with Client(address.replace("127.0.0.1", "localhost") if depth % 2 else address) as client:
            return 1 + client.submit(down, address, depth - 1).result(SECONDS)

    assert single_client.submit(down, single.address, 5).result(MINUTE) == 5


def test_the_address_of_another_cluster_leads_there(client: Client, single: LocalCluster) -> None:
    def elsewhere(address: str) -> int:
        with Client(address) as other:
            return other.submit(worker_pid).result(SECONDS)

    with Client(single.address) as other:
        expected = other.submit(worker_pid).result(SECONDS)
    assert client.submit(elsewhere, single.address).result(MINUTE) == expected


def test_tasks_nested_deeper_than_there_are_descriptors_for_end(tmp_path: Path) -> None:
    """The agent can start no more workers: the deepest task is ended, and the cluster goes on."""
    log = tmp_path / "log"
    with SchedulerClusterCombo(n_workers=1, logging_paths=(str(log),), logging_level="INFO") as combo:
        resource.prlimit(combo._services[0].pid, resource.RLIMIT_NOFILE, (120, 120))

        def nest(client: Client, depth: int) -> int:
            return 0 if depth == 0 else 1 + int(client.submit(nest, client, depth - 1).result())

        with Client(combo.get_address()) as client:
            with pytest.raises(NestingLimitError, match="Too many open files"):
                client.submit(nest, client, 60).result(MINUTE)
            assert client.submit(nest, client, 5).result(MINUTE) == 5
    said = [line for line in log.read_text("utf-8").splitlines() if "workers can" in line]
    # Said once each time that it begins: descriptors that become free let workers start in between.
    assert said and all(("cannot" in line) == (number % 2 == 0) for number, line in enumerate(said)), said
