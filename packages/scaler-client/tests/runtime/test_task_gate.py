"""Threads that submit wait while the scheduler's limit is reached."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

from scaler_client.api.client import Client
from scaler_client.api.pickled_clients import _nested
from scaler_protocol.errors import ClientForkedError, ClientQuitError, SchedulerLostError, SubmitLimitError
from scaler_protocol.messages import Submit
from support.fake_cluster import FakeCluster
from support.waiting import wait_until

LIMIT = 8


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A cluster without keys that allows each client LIMIT unfinished tasks, and runs none yet."""
    monkeypatch.setenv("SCALER_INSECURE", "1")
    cluster = FakeCluster()
    cluster.task_credit, cluster.paused = LIMIT, True
    yield cluster
    cluster.stop()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that submit."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


def wait_blocked(client: Client, count: int = 1) -> None:
    """Until so many threads wait for room."""
    wait_until(lambda: len(client._io.gate._waiters) == count, f"{count} waiting threads")


def wait_unfinished(client: Client, count: int) -> None:
    """Until the client counts so many unfinished tasks."""
    wait_until(lambda: client._io.gate._unfinished == count, f"{count} unfinished tasks")


def fill(client: Client) -> list[Any]:
    """As many tasks as are allowed."""
    return [client.submit(abs, -at) for at in range(LIMIT)]


def seen(cluster: FakeCluster) -> int:
    """The tasks that the cluster was sent."""
    return sum(len(submit.tasks) for submit in cluster.of(Submit))


def calls(client: Client) -> list[Callable[[], object]]:
    """Calls that need room."""
    graph = {"a": (abs, -1), "b": (abs, "a")}
    return [
        lambda: client.submit(abs, -1),
        lambda: client.submit_verbose(abs, (-1,), {}),
        lambda: client.map(abs, [-1]),
        lambda: client.starmap(pow, [(1, 2)]),
        lambda: client.get(graph, ["b"], block=False),
    ]


# --- waiting --------------------------------------------------------------------------------------------------------


def test_submit_waits_until_there_is_room(client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor) -> None:
    futures = fill(client)
    extra = threads.submit(client.submit, abs, -99)
    wait_blocked(client)
    cluster.wait_tasks(LIMIT)
    assert not extra.done() and seen(cluster) == LIMIT
    cluster.go_on()
    assert extra.result(10).result(10) == 99
    assert [future.result(10) for future in futures] == list(range(LIMIT))


def test_a_cancelled_task_makes_room(client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor) -> None:
    futures = fill(client)
    extra = threads.submit(client.submit, abs, -99)
    wait_blocked(client)
    futures[0].cancel()
    task = extra.result(10).task_id
    wait_until(lambda: any(task in submit.tasks for submit in cluster.of(Submit)))


def test_clear_makes_room(client: Client, threads: ThreadPoolExecutor) -> None:
    futures = fill(client)
    extra = threads.submit(client.submit, abs, -99)
    wait_blocked(client)
    client.clear()
    extra.result(10)
    with pytest.raises(CancelledError):
        futures[0].result(10)


def test_a_larger_credit_makes_room_and_a_smaller_one_takes_it(
    client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    futures = fill(client)
    cluster.wait_tasks(LIMIT)
    extra = threads.submit(client.submit, abs, -99)
    wait_blocked(client)
    cluster.grant(LIMIT + 1)
    futures.append(extra.result(10))
    cluster.wait_tasks(LIMIT + 1)
    cluster.grant(2)
    wait_until(lambda: client._io.gate.limit == 2)
    more = threads.submit(client.submit, abs, -100)
    wait_blocked(client)
    cluster.go_on()
    assert more.result(10).result(10) == 100
    assert len([future.result(10) for future in futures]) == LIMIT + 1


def test_the_client_never_has_more_unfinished_tasks_than_its_credit(
    client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    most, count = 0, 100

    def look(effects: Any) -> None:
        nonlocal most
        most = max(most, client._io._core.unfinished)
        perform(effects)

    perform = client._io._perform_each
    client._io._perform_each = look  # type: ignore[method-assign]
    cluster.go_on()
    submitting = [threads.submit(lambda: [client.submit(abs, -at) for at in range(count)]) for _ in range(4)]
    results = [future.result(10) for each in submitting for future in each.result(10)]
    assert sorted(results) == sorted(list(range(count)) * 4)
    assert 0 < most <= LIMIT


def test_map_waits_and_gives_its_results_in_order(client: Client, cluster: FakeCluster) -> None:
    cluster.go_on()
    assert client.map(abs, range(1000)) == list(range(1000))
    assert max(len(submit.tasks) for submit in cluster.of(Submit)) <= LIMIT


def test_a_map_that_waits_raises_its_first_failure(
    client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    mapped = threads.submit(client.map, int, ["no number"] * 100)
    wait_blocked(client)
    cluster.go_on()
    with pytest.raises(ValueError, match="no number"):
        mapped.result(10)


# --- not waiting ----------------------------------------------------------------------------------------------------


def test_with_block_false_all_calls_are_refused_at_once(cluster: FakeCluster) -> None:
    with Client(cluster.address, timeout_seconds=10, block=False) as client:
        futures = fill(client)
        for call in calls(client):
            with pytest.raises(SubmitLimitError, match=r"has 8 unfinished tasks and may have 8.*tasks-waiting"):
                call()
        cluster.go_on()
        assert [future.result(10) for future in futures] == list(range(LIMIT))
        wait_unfinished(client, 0)
        assert client.submit(abs, -1).result(10) == 1


# --- graphs ---------------------------------------------------------------------------------------------------------


def chain(size: int) -> dict[Any, Any]:
    """A graph of so many calls."""
    return {"n0": (abs, -1), **{f"n{at}": (max, f"n{at - 1}", at) for at in range(1, size)}}


def test_a_graph_is_admitted_as_a_whole(client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor) -> None:
    first = client.submit(abs, -1)
    result = threads.submit(client.get, chain(LIMIT), [f"n{LIMIT - 1}"])
    wait_blocked(client)
    cluster.wait_tasks(1)
    assert seen(cluster) == 1
    cluster.go_on()
    assert result.result(10) == {f"n{LIMIT - 1}": LIMIT - 1} and first.result(10) == 1
    wait_unfinished(client, 0)


@pytest.mark.parametrize("block", [True, False])
def test_a_graph_that_can_never_be_admitted_is_refused(cluster: FakeCluster, block: bool) -> None:
    cluster.go_on()
    with Client(cluster.address, timeout_seconds=10, block=block) as client:
        with pytest.raises(SubmitLimitError, match=r"graph has 9 nodes.* at most 8 unfinished.*tasks-waiting"):
            client.get(chain(LIMIT + 1), [f"n{LIMIT}"])
        assert client.get(chain(LIMIT), [f"n{LIMIT - 1}"]) == {f"n{LIMIT - 1}": LIMIT - 1}


def test_a_waiting_graph_is_refused_once_its_credit_is_too_small(
    client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    client.submit(abs, -1)
    cluster.wait_tasks(1)
    result = threads.submit(client.get, chain(LIMIT), [f"n{LIMIT - 1}"])
    wait_blocked(client)
    cluster.grant(LIMIT - 1)
    with pytest.raises(SubmitLimitError, match=r"graph has 8 nodes.* at most 7 unfinished"):
        result.result(10)


def test_a_graph_that_cannot_be_serialized_returns_its_room(client: Client) -> None:
    with pytest.raises(TypeError, match="lock"):
        client.get({"a": (id, threading.Lock())}, ["a"])
    wait_unfinished(client, 0)


# --- the end of a wait ----------------------------------------------------------------------------------------------


def test_disconnect_ends_the_wait(client: Client, threads: ThreadPoolExecutor) -> None:
    fill(client)
    waiting: list[Future[Any]] = [threads.submit(client.submit, abs, -99), threads.submit(client.map, abs, range(9))]
    wait_blocked(client, 2)
    client.disconnect()
    for each in waiting:
        with pytest.raises(ClientQuitError):
            each.result(10)


def test_a_lost_scheduler_ends_the_wait(cluster: FakeCluster, threads: ThreadPoolExecutor) -> None:
    with Client(cluster.address, timeout_seconds=0.5) as client:
        futures = fill(client)
        extra: Any = threads.submit(client.submit, abs, -99)
        wait_blocked(client)
        cluster.stays_silent = True
        for future in [*futures, extra.result(30)]:
            with pytest.raises(SchedulerLostError):
                future.result(30)


def test_a_forked_process_does_not_wait(client: Client) -> None:
    fill(client)
    with client._io.gate._lock, ThreadPoolExecutor(1) as child:
        client._io.poison()
        with pytest.raises(ClientForkedError):
            child.submit(client.submit, abs, -1).result(10)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.timeout(method="thread")  # the other method's timer is taken here
def test_an_interrupted_wait_leaves_the_client_usable(client: Client, cluster: FakeCluster) -> None:
    def interrupt(number: int, frame: object) -> None:
        if client._io.gate._waiters:
            signal.setitimer(signal.ITIMER_REAL, 0)  # once for each wait, however long that takes to end
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    futures = fill(client)
    try:
        for call in calls(client):
            signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
            with pytest.raises(KeyboardInterrupt):
                call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not client._io.gate._waiters
    cluster.go_on()
    assert [future.result(10) for future in futures] == list(range(LIMIT))
    wait_unfinished(client, 0)
    assert [client.submit(abs, -at).result(10) for at in range(2 * LIMIT)] == list(range(2 * LIMIT))


# --- where it is called ---------------------------------------------------------------------------------------------


def test_a_callback_that_submits_waits_for_tasks_only(
    client: Client, cluster: FakeCluster, threads: ThreadPoolExecutor
) -> None:
    chained: Future[Any] = Future()

    def again(done: Any) -> None:
        try:
            chained.set_result([client.submit(abs, -at) for at in range(3 * LIMIT)])
        except Exception as error:
            chained.set_exception(error)

    first = client.submit(abs, -7)
    first.add_done_callback(again)
    others = threads.submit(lambda: [client.submit(abs, -at) for at in range(10 * LIMIT)])
    wait_blocked(client)
    cluster.go_on()
    assert [future.result(10) for future in chained.result(10)] == list(range(3 * LIMIT))
    assert [future.result(10) for future in others.result(10)] == list(range(10 * LIMIT))


def test_the_io_thread_never_waits(client: Client, cluster: FakeCluster) -> None:
    futures = fill(client)
    submitted: Future[Any] = Future()
    perform = client._io._perform_each

    def finalize(effects: Any) -> None:
        client._io._perform_each = perform  # type: ignore[method-assign]
        submitted.set_result(client.submit(abs, -99))
        perform(effects)

    client._io._perform_each = finalize  # type: ignore[method-assign]
    client._io.mailbox.wake()
    extra = submitted.result(10)
    cluster.wait_tasks(LIMIT + 1)
    cluster.go_on()
    assert extra.result(10) == 99 and [future.result(10) for future in futures] == list(range(LIMIT))


def test_an_event_loop_may_submit_from_a_thread(client: Client, cluster: FakeCluster) -> None:
    async def main() -> int:
        fill(client)
        waiting = asyncio.create_task(asyncio.to_thread(client.submit, abs, -99))
        while not client._io.gate._waiters:
            await asyncio.sleep(0.005)
        cluster.go_on()
        return int(await (await waiting))

    assert asyncio.run(asyncio.wait_for(main(), 10)) == 99


def test_a_client_whose_tasks_are_nested_is_exempt(cluster: FakeCluster) -> None:
    with _nested(Client, {"address": cluster.address, "timeout_seconds": 10}, 5) as client:
        futures = [client.submit(abs, -at) for at in range(3 * LIMIT)]
        graph = client.get(chain(2 * LIMIT), ["n9"], block=False)
        cluster.wait_tasks(3 * LIMIT + 10)
        cluster.go_on()
        assert len([future.result(10) for future in futures]) == 3 * LIMIT and graph["n9"].result(10) == 9
