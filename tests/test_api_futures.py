"""Futures: waiting, callbacks, cancelling, profiles, and futures as arguments."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture, current_task
from scaler_protocol.errors import ClientQuitError
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.processes import listener_of, stopped
from support.tasks import add, explode, square, worker_pid


class Reports:
    """A callback that keeps what it saw, and whoever waits for it."""

    def __init__(self, look: Callable[[Future[Any]], Any]) -> None:
        self._look = look
        self._seen: list[Any] = []
        self._called = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self, future: Future[Any]) -> None:
        self.thread = threading.current_thread()
        try:
            self._seen.append(self._look(future))
        except BaseException as error:
            self._seen.append(error)
        self._called.set()

    def wait(self) -> Any:
        """What it saw."""
        assert self._called.wait(SECONDS), "never called back"
        assert len(self._seen) == 1
        return self._seen[0]


def test_a_future_is_one_of_the_standard_library(client: Client, gate: Gate) -> None:
    future = client.submit(wait_at, gate.port, 5)
    assert isinstance(future, ScalerFuture) and isinstance(future, Future)
    assert future.running() and not future.done() and not future.cancelled()
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(timeout=0.01)
    gate.arrive().let_go()
    assert future.result(SECONDS) == 5 and future.exception(SECONDS) is None
    assert future.done() and not future.running() and not future.cancelled() and not future.cancel()


def test_wait_and_as_completed(client: Client, gate: Gate) -> None:
    quick, slow = client.submit(square, 3), client.submit(wait_at, gate.port, 1)
    done, not_done = concurrent.futures.wait([quick, slow], SECONDS, concurrent.futures.FIRST_COMPLETED)
    assert (done, not_done) == ({quick}, {slow})
    arrival = gate.arrive()
    assert concurrent.futures.wait([quick, slow], 0.05).not_done == {slow}
    order = concurrent.futures.as_completed([slow, quick], SECONDS)
    assert next(order) is quick
    arrival.let_go()
    assert next(order) is slow
    failed = client.submit(explode, "x")
    several: list[Future[Any]] = [failed, quick]
    assert failed in concurrent.futures.wait(several, SECONDS, concurrent.futures.FIRST_EXCEPTION).done
    futures = [client.submit(square, value) for value in range(200)]
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures, SECONDS)) == sorted(
        value * value for value in range(200)
    )


def test_waiting_together_with_other_futures(client: Client, gate: Gate) -> None:
    ours = client.submit(wait_at, gate.port, 1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(gate.arrive)
        both: list[Future[Any]] = [ours, theirs]
        assert concurrent.futures.wait(both, SECONDS, concurrent.futures.FIRST_COMPLETED).done == {theirs}
        theirs.result().let_go()
        assert not concurrent.futures.wait(both, SECONDS).not_done


def test_asyncio(client: Client, gate: Gate) -> None:
    async def main() -> None:
        assert await client.submit(square, 3) == 9
        assert await asyncio.wrap_future(client.submit(square, 4)) == 16
        assert await asyncio.gather(*(client.submit(square, value) for value in range(5))) == [0, 1, 4, 9, 16]
        with pytest.raises(ValueError, match="awaited"):
            await client.submit(explode, "awaited")
        waiting = client.submit(wait_at, gate.port, 1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(waiting, 0.05)
        assert waiting.cancelled(), "giving up a wait gives up the call"

    asyncio.run(main())


def test_asyncio_wait(client: Client, gate: Gate) -> None:
    def results(futures: set[Any]) -> list[int]:
        return sorted(future.result() for future in futures)

    async def main() -> None:
        done, pending = await asyncio.wait([client.submit(square, value) for value in range(3)])
        assert (results(done), pending) == ([0, 1, 4], set())
        slow, ended = client.submit(wait_at, gate.port, 1), client.submit(square, 3)
        assert ended.result() == 9
        done, pending = await asyncio.wait([ended], timeout=SECONDS)
        assert (results(done), pending) == ([9], set())
        done, pending = await asyncio.wait([slow, ended], return_when=asyncio.FIRST_COMPLETED)
        assert (results(done), len(pending)) == ([9], 1)
        both: list[Any] = [slow, client.submit(explode, "x")]
        done, pending = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        assert (str(done.pop().exception()), len(done), len(pending)) == ("x", 0, 1)
        done, pending = await asyncio.wait([slow], timeout=0.01)
        assert (len(done), len(pending)) == (0, 1)
        gate.arrive().let_go()
        done, _ = await asyncio.wait([slow], timeout=SECONDS)
        assert results(done) == [1]

    asyncio.run(asyncio.wait_for(main(), SECONDS))


def test_callbacks_may_ask_the_future_and_use_the_client(client: Client, gate: Gate) -> None:
    def look(future: Future[Any]) -> tuple[Any, ...]:
        assert isinstance(future, ScalerFuture)
        again = client.submit(square, future.result()).result(SECONDS)  # needs a live io thread
        return future.result(), future.exception(), future.cancelled(), future.profiling_info().attempt, again

    future = client.submit(wait_at, gate.port, 7)
    reports = Reports(look)
    future.add_done_callback(reports)
    gate.arrive().let_go()
    assert reports.wait() == (7, None, False, 1, 49)
    assert reports.thread not in (None, threading.main_thread())
    late = Reports(look)
    future.add_done_callback(late)
    assert late.thread is threading.current_thread() and late.wait() == (7, None, False, 1, 49)


def test_callbacks_of_failed_and_cancelled_futures(client: Client, gate: Gate) -> None:
    failed = Reports(lambda future: (type(future.exception()), future.cancelled()))
    client.submit(explode, "x").add_done_callback(failed)
    assert failed.wait() == (ValueError, False)
    cancelled = Reports(lambda future: future.cancelled())
    future = client.submit(wait_at, gate.port, 1)
    future.add_done_callback(cancelled)
    future.cancel()
    assert cancelled.wait() is True


def test_a_callback_that_raises_is_logged_and_harms_nobody(
    client: Client, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(future: Future[Any]) -> None:
        raise RuntimeError("in a callback")

    future = client.submit(wait_at, gate.port, 1)
    second = Reports(lambda future: future.result())
    with caplog.at_level(logging.ERROR, "scaler"):
        future.add_done_callback(fails)
        future.add_done_callback(second)
        gate.arrive().let_go()
        assert second.wait() == 1
        future.add_done_callback(fails)
    assert caplog.text.count("RuntimeError: in a callback") == 2
    assert client.submit(square, 2).result(SECONDS) == 4


def test_cancel_of_a_queued_task(single_client: Client, gate: Gate) -> None:
    running, *queued = [single_client.submit(wait_at, gate.port, number) for number in range(6)]
    arrival = gate.arrive()
    assert all(future.cancel() for future in queued)
    for future in queued:
        assert future.cancelled() and future.done() and future.cancel()
        with pytest.raises(CancelledError):
            future.result(SECONDS)
        with pytest.raises(CancelledError):
            future.exception(SECONDS)
    last = single_client.submit(square, 2)
    arrival.let_go()
    assert running.result(SECONDS) == 0 and last.result(SECONDS) == 4
    # One may have begun while the word was on its way: it is stopped.
    for overtaken in gate.arrived():
        overtaken.wait_gone()


def test_cancel_of_a_running_task_stops_it_and_no_other(client: Client, gate: Gate) -> None:
    futures = [client.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = {int(arrival.value): arrival for arrival in (gate.arrive(), gate.arrive())}
    assert futures[0].cancel() and futures[0].cancelled()
    arrivals[0].wait_gone()
    behind = client.submit(worker_pid)
    assert behind.result(SECONDS) != arrivals[0].pid
    arrivals[1].let_go()
    assert futures[1].result(SECONDS) == 1
    assert futures[1].profiling_info().attempt == 1


def test_cancel_never_blocks(cluster: LocalCluster, client: Client, gate: Gate) -> None:
    future = client.submit(wait_at, gate.port, 1)
    arrival = gate.arrive()
    with stopped(listener_of(cluster.address)):
        begin = time.monotonic()
        assert future.cancel() and future.cancelled()
        queued = client.submit(square, 2)
        assert queued.cancel()
        with pytest.raises(CancelledError):
            future.result()
        assert time.monotonic() - begin < 1
    arrival.wait_gone()
    assert client.submit(square, 2).result(SECONDS) == 4


def test_profiles(client: Client, gate: Gate) -> None:
    def spin(seconds: float) -> int:
        end = time.thread_time() + seconds
        data = bytearray(1 << 20)
        while time.thread_time() < end:
            pass
        return len(data)

    waiting = client.submit(wait_at, gate.port, 1)
    with pytest.raises(ValueError):
        waiting.profiling_info()
    gate.arrive().let_go()
    waiting.result(SECONDS)
    future = client.submit(spin, 0.1, profiling=True)
    assert future.result(SECONDS) == 1 << 20
    info = future.profiling_info()
    assert 0.09 < info.cpu_time_s <= info.duration_s + 0.02 < SECONDS
    assert info.duration_us == pytest.approx(info.duration_s * 1e6, abs=1)
    assert info.memory_peak == info.peak_memory > 1 << 20
    assert info.attempt == 1 and isinstance(info.worker, str) and info.worker
    assert info.fetch_time_s == info.store_time_s == 0.0
    failed = client.submit(explode, "x")
    assert failed.exception(SECONDS) is not None and failed.profiling_info().attempt == 1
    moved = client.submit(lambda data: bytes(9 * len(data)), bytes(1 << 20))
    assert len(moved.result(SECONDS)) == 9 << 20
    info = moved.profiling_info()
    assert info.fetch_time_s > 0 < info.store_time_s and info.fetch_time_s + info.store_time_s <= info.duration_s


def test_futures_are_arguments_at_any_depth(client: Client, gate: Gate) -> None:
    waiting, done = client.submit(wait_at, gate.port, 2), client.submit(square, 3)
    assert done.result(SECONDS) == 9

    def total(direct: int, nested: list[dict[str, tuple[int, ...]]], *, keyword: int) -> list[int]:
        return [direct, nested[0]["deep"][1], keyword]

    futures = [
        client.submit(total, waiting, [{"deep": (0, waiting)}], keyword=done),
        client.submit(total, done, [{"deep": (0, done)}], keyword=waiting),
        client.submit_verbose(total, (1, [{"deep": (0, waiting)}]), {"keyword": waiting}),
    ]
    arrival = gate.arrive()
    assert not any(future.done() for future in futures)
    arrival.let_go()
    assert [future.result(SECONDS) for future in futures] == [[2, 2, 9], [9, 9, 2], [1, 2, 2]]
    assert client.map(add, [done, 1], [done, done]) == [18, 10]


def test_futures_inside_objects(client: Client) -> None:
    @dataclasses.dataclass
    class Local:
        value: Any

    inner = client.submit(square, 4)
    assert client.submit(lambda holder: holder.value, Local(inner)).result(SECONDS) == 16
    assert client.submit(lambda holder: holder.value[0], Local([client.submit(square, 5)])).result(SECONDS) == 25


def test_chains_and_diamonds(client: Client) -> None:
    last: Any = client.submit(add, 0, 0)
    for _ in range(100):
        last = client.submit(add, last, 1)
    assert last.result(SECONDS) == 100
    top = client.submit(square, 3)
    sides = [client.submit(add, top, side) for side in range(10)]
    assert client.submit(lambda *values: sum(values), *sides).result(SECONDS) == 9 * 10 + 45


def test_a_failed_dependency_fails_the_dependent_alike(client: Client, gate: Gate) -> None:
    def fails_later(port: int) -> None:
        wait_at(port, None)
        raise LookupError("the first of the chain")

    pending = client.submit(fails_later, gate.port)
    direct = client.submit(square, pending)
    deep = client.submit(lambda values: values, [direct])
    gate.arrive().let_go()
    for future in (pending, direct, deep):
        error = future.exception(SECONDS)
        assert isinstance(error, LookupError) and error.args == ("the first of the chain",)
    after = client.submit(lambda value: value, pending)
    assert isinstance(after.exception(SECONDS), LookupError)
    with pytest.raises(LookupError, match="the first of the chain"):
        client.map(square, [1, pending])


def test_a_cancelled_dependency_cancels_the_dependent(client: Client, gate: Gate) -> None:
    pending = client.submit(wait_at, gate.port, 1)
    direct = client.submit(square, pending)
    deep = client.submit(lambda values: values, [direct])
    gate.arrive()
    pending.cancel()
    for future in (direct, deep, client.submit(square, pending)):
        with pytest.raises(CancelledError):
            future.result(SECONDS)
        assert future.cancelled()


def test_a_future_of_another_client_is_refused_at_submit(client: Client, cluster: LocalCluster, gate: Gate) -> None:
    with Client(address=cluster.address) as other:
        pending = other.submit(wait_at, gate.port, 1)
        gate.arrive()
        with pytest.raises(ValueError, match="another client"):
            client.submit(square, pending)
        with pytest.raises(ValueError, match="another client"):
            client.map(square, [pending])
    assert client.submit(square, 2).result(SECONDS) == 4


def test_the_executor_is_one_of_the_standard_library(client: Client, gate: Gate, tmp_path: Path) -> None:
    port = gate.port
    with client.executor() as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        assert executor._max_workers == client.workers().count
        assert executor.submit(add, 1, b=2).result(SECONDS) == 3
        assert list(executor.map(add, [1, 2, 3], [10, 20, 30])) == [11, 22, 33]
        results = executor.map(lambda number: wait_at(port, number), range(2))
        first, second = sorted((gate.arrive(), gate.arrive()), key=lambda arrival: arrival.value)
        first.let_go()
        assert next(results) == 0, "the first comes while the second is under way"
        second.let_go()
        assert next(results) == 1
        late = executor.map(lambda _: wait_at(port, 0), range(1), timeout=0.05)
        arrival = gate.arrive()
        with pytest.raises(TimeoutError):
            next(late)
        arrival.wait_gone()
        failing = executor.map(lambda value: explode("here") if value else value, [0, 1])
        assert next(failing) == 0
        with pytest.raises(ValueError, match="here") as caught:
            next(failing)
        if sys.version_info >= (3, 11):
            assert "raised by item 1 of the map: 1" in str(caught.value.__notes__)
        endless = executor.map(add, itertools.count(), itertools.repeat(1), buffersize=2, chunksize=5)
        assert list(itertools.islice(endless, 5)) == [1, 2, 3, 4, 5]
        with pytest.raises(ValueError, match="buffersize is 0"):
            executor.map(square, [1], buffersize=0)
        left = executor.map(square, [1, 2], buffersize=1)
        executor.map(Path.touch, [tmp_path / "done"])
    assert (tmp_path / "done").exists(), "although nobody takes the result"
    with pytest.raises(RuntimeError):
        executor.submit(square, 1)
    with pytest.raises(RuntimeError):
        list(left)
    assert client.submit(square, 2).result(SECONDS) == 4, "the client stays open"


def test_the_executor_waits_or_cancels_at_shutdown(client: Client, gate: Gate) -> None:
    executor = client.executor()
    pending = executor.submit(wait_at, gate.port, 1)
    arrival = gate.arrive()
    executor.shutdown(wait=False, cancel_futures=True)
    assert pending.cancelled()
    arrival.wait_gone()
    executor = client.executor()
    waited = executor.submit(wait_at, gate.port, 2)
    release = threading.Timer(0.05, gate.arrive().let_go)
    release.start()
    executor.shutdown()
    assert waited.done() and waited.result() == 2
    release.join()


def test_a_future_that_its_owner_ends_stands_for_what_it_was_given(client: Client, gate: Gate) -> None:
    """In calls that were submitted before, too, and in nodes of a graph."""
    source = client.submit(wait_at, gate.port, 1)
    gate.arrive()
    failing = client.submit(time.sleep, 600)
    before, needs_failing = client.submit(square, source), client.submit(square, failing)
    graph = client.get({"a": (time.sleep, 600), "b": (square, "a")}, ["a", "b"], block=False)
    source.set_result(4)
    failing.set_exception(KeyError("mine"))
    graph["a"].set_result(5)
    assert client.submit(square, source).result(SECONDS) == before.result(SECONDS) == 16
    assert isinstance(needs_failing.exception(SECONDS), KeyError)
    assert graph["b"].result(SECONDS) == 25


def test_a_failed_call_is_retried_with_its_function_arguments_and_options(client: Client, tmp_path: Path) -> None:
    flag, big = tmp_path / "flag", client.send_object(b"x" * 100_000)
    offset = client.submit(add, 1, 1)

    def measure(data: bytes, more: int, *, also: int) -> tuple[int, int]:
        flag.stat()
        return len(data) + more + also, getattr(current_task(), "attempt", 0)

    future = client.submit_verbose(measure, (big, offset), {"also": 3}, retries=1)
    with pytest.raises(FileNotFoundError):
        future.result(SECONDS)
    flag.touch()
    again = future.retry()
    assert again.task_id != future.task_id
    assert again.result(SECONDS) == (100_005, 1), "attempts begin anew"
    assert isinstance(future.exception(), FileNotFoundError), "the first future stays as it is"
    with pytest.raises(InvalidStateError, match="has a result"):
        again.retry()

    def retry_inside() -> str:
        with Client() as inside:
            failed = inside.submit(explode, "inside")
            assert failed.exception() is not None
            return repr(failed.retry().exception())

    assert client.submit(retry_inside).result(SECONDS) == "ValueError('inside')"
    node = client.get({"a": (abs, 1), "b": (int, "a", 0)}, ["b"], block=False)["b"]
    assert isinstance(node.exception(SECONDS), TypeError)
    with pytest.raises(InvalidStateError, match="other nodes of its graph"):
        node.retry()


def test_a_call_of_a_closed_client_is_not_retried(cluster: LocalCluster) -> None:
    with Client(cluster.address, timeout_seconds=SECONDS) as client:
        future = client.submit(explode, "open")
        assert future.exception(SECONDS) is not None
    with pytest.raises(ClientQuitError):
        future.retry()
