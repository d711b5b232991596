"""Clients: connecting, settings, leaving, and clients inside tasks."""

from __future__ import annotations

import asyncio
import gc
import io
import os
import pickle
import queue
import re
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler_protocol import errors
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.processes import free_ports
from support.tasks import add, explode, square


class Listening(io.StringIO):
    """A stream whose text can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self._texts.put(text)
        return len(text)

    def read_until(self, end: str) -> str:
        """All that was written, up to `end`."""
        text = ""
        while not text.endswith(end):
            text += self._texts.get(timeout=SECONDS)
        return text


def test_connecting_to_nothing_is_told_after_the_timeout() -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)}"
    begin = time.monotonic()
    with pytest.raises(ConnectionError) as raised:
        Client(address=address, timeout_seconds=0.5)
    assert 0.4 < time.monotonic() - begin < 4
    assert isinstance(raised.value, errors.SchedulerLostError)
    assert address in str(raised.value), "it names the address"
    assert f"scaler_scheduler {address}" in str(raised.value), "and the remedy"


@pytest.mark.parametrize("address", ["127.0.0.1:2345", "http://127.0.0.1:2345", "tcp://127.0.0.1", "tcp://:x"])
def test_a_bad_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="tcp://host:port"):
        Client(address=address)


def test_a_client_without_address_outside_of_tasks_is_refused() -> None:
    with pytest.raises(ValueError) as raised:
        Client()
    assert "No scheduler address provided" in str(raised.value)
    assert "not running inside a worker context" in str(raised.value)


def test_unknown_settings_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(TypeError, match="adress"):
        Client(adress=cluster.address)  # type: ignore[call-arg]


def test_a_client_is_a_context_manager_and_leaves_at_its_end(cluster: LocalCluster, gate: Gate) -> None:
    with Client(cluster.address) as client:
        done = client.submit(square, 3)
        assert done.result(SECONDS) == 9
        running = client.submit(wait_at, gate.port, 1)
        arrival = gate.arrive()
    assert running.cancelled() and done.result() == 9
    with pytest.raises(CancelledError):
        running.result()
    arrival.wait_gone()


def test_after_disconnect_everything_is_refused(cluster: LocalCluster) -> None:
    client = Client(address=cluster.address)
    executor = client.executor()
    for _ in range(3):
        client.disconnect()
    uses: list[Any] = [
        lambda: client.submit(square, 1),
        lambda: client.submit_verbose(square, (1,), {}),
        lambda: client.map(square, [1]),
        lambda: client.map(square, []),
        lambda: client.starmap(add, [(1, 2)]),
        lambda: client.get({"a": 1}, keys=["a"]),
        lambda: client.send_object([1]),
        lambda: client.clear(),
        lambda: client.workers(),
        lambda: client.wait_for_workers(0),
        lambda: client.shutdown(),
        lambda: executor.submit(square, 1),
    ]
    for use in uses:
        with pytest.raises(errors.ClientQuitError):
            use()
    with pytest.raises(errors.ClientQuitError), client:
        client.submit(square, 1)


def test_clear_cancels_and_forgets_and_the_client_goes_on(client: Client, gate: Gate) -> None:
    reference = client.send_object([1, 2, 3])
    done, running = client.submit(square, 3), client.submit(wait_at, gate.port, 1)
    assert done.result(SECONDS) == 9
    arrival = gate.arrive()
    client.clear()
    assert running.cancelled() and done.result() == 9
    arrival.wait_gone()
    with pytest.raises(errors.ObjectNotFoundError):
        client.submit(len, reference)
    assert client.submit(square, 4).result(SECONDS) == 16
    assert client.submit(len, client.send_object([1])).result(SECONDS) == 1


def test_a_protected_scheduler_is_not_shut_down(client: Client, cluster: LocalCluster) -> None:
    with pytest.raises(ValueError, match="protected"):
        client.shutdown()
    with Client(address=cluster.address) as another:
        assert another.submit(square, 2).result(SECONDS) == 4


def test_identities_are_unique_keys(client: Client, cluster: LocalCluster) -> None:
    with Client(address=cluster.address) as other:
        assert {client.identity: 1, other.identity: 2}[client.identity] == 1
        assert client.identity != other.identity and bytes(client.identity).startswith(b"Client|")
        assert len(bytes(client.identity)) == len(b"Client|") + 32


def test_a_client_says_what_it_is(client: Client, cluster: LocalCluster) -> None:
    async def call() -> Client:
        async with Client(address=cluster.address, name="night") as other:
            assert await other.submit(square, 3) == 9
            assert repr(other) == f"<Client 'night' of {cluster.address}, connected>"
            return other

    other = asyncio.run(call())
    assert other.address == client.address == cluster.address
    assert repr(other) == f"<Client 'night' of {cluster.address}, disconnected>"


def test_many_threads_share_a_client(client: Client) -> None:
    def work(start: int) -> int:
        futures = [client.submit(add, start, value) for value in range(50)]
        return sum(future.result(SECONDS) for future in futures) + sum(client.map(square, range(10)))

    with ThreadPoolExecutor(8) as pool:
        totals = list(pool.map(work, range(8)))
    assert totals == [50 * start + 1225 + 285 for start in range(8)]


def test_many_clients_share_a_cluster(cluster: LocalCluster) -> None:
    clients = [Client(address=cluster.address) for _ in range(5)]
    try:
        futures = [client.submit(add, number, 1) for number, client in enumerate(clients)]
        assert not wait(futures, SECONDS).not_done
        assert [future.result() for future in futures] == [1, 2, 3, 4, 5]
    finally:
        for client in clients:
            client.disconnect()


def test_a_pickled_client_is_another_one_of_the_same_settings(cluster: LocalCluster) -> None:
    with Client(cluster.address, profiling=True, timeout_seconds=7) as client:
        with pickle.loads(pickle.dumps(client)) as again:
            assert isinstance(again, Client) and again.identity != client.identity
            assert again.submit(square, 3).result(SECONDS) == 9
        assert client.submit(square, 4).result(SECONDS) == 16


def test_a_client_is_an_argument_of_a_task(client: Client) -> None:
    def outer(inner: Client, values: list[int]) -> list[int]:
        with inner:
            doubled = inner.map(square, values)
        return doubled

    assert client.submit(outer, client, [1, 2, 3]).result(SECONDS) == [1, 4, 9]


def test_a_client_of_another_cluster_stays_its_client_inside_a_task(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outer(inner: Client) -> str:
        with inner:
            return str(inner.submit(os.getenv, "OF_CLUSTER", "first").result(SECONDS))

    monkeypatch.setenv("OF_CLUSTER", "second")
    with (
        SchedulerClusterCombo(n_workers=1, logging_paths=("/dev/null",)) as combo,
        Client(combo.get_address()) as other,
    ):
        assert client.submit(outer, other).result(SECONDS) == "second"
        assert client.submit(outer, client).result(SECONDS) == "first"


def test_a_client_without_address_inside_a_task(client: Client) -> None:
    def outer() -> int:
        with Client() as inner:
            return inner.submit(square, 5).result(SECONDS)

    assert client.submit(outer).result(SECONDS) == 25


def test_closing_a_nested_client_closes_only_that_one(client: Client) -> None:
    def outer() -> tuple[int, int, str]:
        first, second = Client(), Client()
        with first:
            result = first.submit(square, 2).result(SECONDS)
        try:
            first.submit(square, 1)
        except RuntimeError as error:
            refused = type(error).__name__
        return result, second.submit(square, 3).result(SECONDS), refused

    for _ in range(3):
        assert client.submit(outer).result(SECONDS) == (4, 9, "ClientQuitError")


def test_current_task(client: Client) -> None:
    from scaler import current_task

    def inside() -> tuple[int, int, str]:
        task = current_task()
        assert task is not None
        return task.id, task.attempt, task.worker

    def in_a_thread() -> int:
        found: list[int] = []

        def look() -> None:
            task = current_task()
            found.append(task.id if task else 0)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return found[0]

    assert current_task() is None
    future = client.submit(inside)
    task_id, attempt, worker = future.result(SECONDS)
    assert (task_id, attempt) == (future.task_id, 1)
    assert worker and isinstance(worker, str)
    future_in_thread = client.submit(in_a_thread)
    assert future_in_thread.result(SECONDS) == future_in_thread.task_id


def test_stream_output_prints_here_what_tasks_print(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(client: Client, depth: int) -> int:
        import sys

        print(f"out at {depth}")
        print(f"error at {depth}", file=sys.stderr)
        return client.submit(talk, client, depth - 1).result(SECONDS) if depth else 0

    out, error = Listening(), Listening()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", error)
    with Client(cluster.address, stream_output=True) as client:
        assert client.submit(talk, client, 1).result(SECONDS) == 0
        assert out.read_until("out at 0\n") == "out at 1\nout at 0\n"
        assert error.read_until("error at 0\n") == "error at 1\nerror at 0\n"
        with pytest.raises(ValueError, match="unheard"):
            client.submit(explode, "unheard").result(SECONDS)


def test_stream_output_with_task_and_worker_before_each_line(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Listening()
    monkeypatch.setattr("sys.stdout", out)
    with Client(cluster.address, stream_output="prefixed") as client:
        future = client.submit(print, "one\ntwo")
        future.result(SECONDS)
        pattern = rf"\[{future.task_id:x} Worker\[\d\]@\S+\] "
        assert re.fullmatch(f"{pattern}one\n{pattern}two\n", out.read_until("two\n"))
    with pytest.raises(ValueError, match="'prefixed', not 'loud'"):
        Client(cluster.address, stream_output="loud")


def test_stream_output_is_off_by_default(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    assert client.submit(print, "nobody reads this").result(SECONDS) is None
    client.disconnect()
    assert capsys.readouterr() == ("", "")


def test_use_as_parfun_makes_of_it(cluster: LocalCluster) -> None:
    client = Client(address=cluster.address, profiling=True)
    backends = {client.identity: client}
    shared = client.send_object(list(range(10)))
    seen: queue.Queue[tuple[bool, Any, Any, float]] = queue.Queue()

    def report(future: Any) -> None:
        if future.cancelled():
            seen.put((True, None, None, 0.0))
            return
        error = future.exception()
        seen.put((False, error, None if error else future.result(), future.profiling_info().cpu_time_s))

    backends[client.identity].submit(sum, shared).add_done_callback(report)
    cancelled, error, result, cpu = seen.get(timeout=SECONDS)
    assert (cancelled, error, result) == (False, None, 45) and cpu >= 0
    client.submit(explode, "x").add_done_callback(report)
    cancelled, error, result, cpu = seen.get(timeout=SECONDS)
    assert not cancelled and isinstance(error, ValueError) and cpu >= 0
    with Gate() as gate:
        future = client.submit(wait_at, gate.port, 1)
        future.add_done_callback(report)
        gate.arrive()
        assert future.cancel()
        assert seen.get(timeout=SECONDS)[0]
    client.disconnect()


def test_a_client_ends_with_its_last_future_whatever_it_was_used_for(cluster: LocalCluster) -> None:
    big = b"x" * 100_000

    def use() -> tuple[threading.Thread, Any]:
        client = Client(cluster.address, timeout_seconds=SECONDS)
        stored = client.submit(lambda text: text * 4, big)
        client.submit(len, stored).add_done_callback(lambda done: None)
        client.submit(lambda: len(big)).result(SECONDS)
        client.submit(len, client.send_object(big)).result(SECONDS)
        client.map(len, [big, b""])
        client.get({"a": (len, big), "b": (add, "a", 1)}, ["b"])
        client.executor().submit(square, 2).result(SECONDS)
        with pytest.raises(ValueError, match="here"):
            client.submit(explode, "here").result(SECONDS)
        return client._io._thread, stored

    thread, stored = use()
    gc.collect()
    assert stored.result(SECONDS) == big * 4 and thread.is_alive()
    del stored
    gc.collect()
    thread.join(SECONDS)
    assert not thread.is_alive()
