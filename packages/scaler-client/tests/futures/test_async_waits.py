"""Event loops wait for futures: nothing but the outcome is needed, and whatever that is, the wait ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from scaler_client.core.records import CallGroup, Deliver, RunReports
from scaler_client.futures.deliveries import deliver
from scaler_client.futures.futures import ScalerFuture
from scaler_client.futures.waiters import due_callbacks
from scaler_client.objects.handles import StoredObject, StoredPayload
from scaler_protocol.errors import DeserializeError, StorageLostError
from scaler_protocol.messages import Group, Status
from scaler_protocol.objects import Reference

SECONDS = 10.0


class SilentOwner:
    """Runs no callbacks, as a client does not while one of them blocks."""

    waiting = nullcontext()

    def __init__(self) -> None:
        self.cancelled: list[int] = []

    def cancel(self, tasks: Sequence[int]) -> None:
        self.cancelled.extend(tasks)

    def call_soon(self, work: Callable[[], object]) -> None: ...

    def submit_again(self, *call: object) -> None: ...


class Home:
    """Storage that notes which threads fetch."""

    def __init__(self, answer: bytes | Exception) -> None:
        self.answer = answer
        self.threads: list[threading.Thread] = []

    def fetch(self, reference: bytes, timeout: float = 0.0) -> bytes:
        self.threads.append(threading.current_thread())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def free(self, reference: bytes) -> None: ...


def make() -> ScalerFuture[Any]:
    return ScalerFuture(SilentOwner(), 1, CallGroup(Group(b"f"), (), pickle.loads, pickle.dumps), b"call")


def settle(future: ScalerFuture[Any], status: int, payload: bytes) -> None:
    thread = threading.Thread(target=deliver, args=(Deliver([future], [1], [status], [payload], RunReports([], b"")),))
    thread.start()
    thread.join()


def awaited(status: int, payload: bytes) -> Any:
    """The outcome of an `await` that began before the future was done."""

    async def main() -> Any:
        future = make()
        asyncio.get_running_loop().call_later(0.001, settle, future, status, payload)
        return await asyncio.wait_for(_wait(future), SECONDS)

    return asyncio.run(main())


async def _wait(future: ScalerFuture[Any]) -> Any:
    return await future


def raised(error: BaseException) -> bytes:
    return pickle.dumps((error, "remote text\n"))


class Raises:
    """Loading it raises this."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return raise_one, (self.error,)


def raise_one(error: type[BaseException]) -> None:
    raise error("on purpose")


def stored(answer: bytes | Exception) -> tuple[Home, StoredPayload]:
    home = Home(answer)
    return home, StoredPayload.of(StoredObject(home, Reference(b"o" * 16, 100_000).pack()))


def test_a_wait_needs_no_callbacks_and_leaves_nothing_behind() -> None:
    future = make()

    async def main() -> list[Any]:
        waits = [asyncio.ensure_future(_wait(future)) for _ in range(3)]
        await asyncio.sleep(0)
        settle(future, Status.VALUE, pickle.dumps("value"))
        return [*await asyncio.wait_for(asyncio.gather(*waits), SECONDS), await future]

    assert asyncio.run(main()) == ["value"] * 4
    assert not future._watch or not future._watch.waiters


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (StopIteration(3), RuntimeError),
        (StopAsyncIteration(), StopAsyncIteration),
        (ValueError("x"), ValueError),
        (SystemExit(3), SystemExit),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (GeneratorExit(), GeneratorExit),
        (concurrent.futures.CancelledError(), asyncio.CancelledError),
        (asyncio.TimeoutError("x"), asyncio.TimeoutError),
    ],
    ids=repr,
)
def test_whatever_a_task_raises_is_raised(error: BaseException, expected: type[BaseException]) -> None:
    for payload in raised(error), stored(raised(error))[1]:
        with pytest.raises(expected) as caught:
            awaited(Status.RAISED, payload)
        if isinstance(error, StopIteration):
            assert isinstance(caught.value.__cause__, StopIteration) and caught.value.__cause__.args == (3,)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(MemoryError, MemoryError), (KeyboardInterrupt, KeyboardInterrupt), (StopIteration, DeserializeError)],
)
def test_whatever_loading_raises_is_raised(error: type[BaseException], expected: type[BaseException]) -> None:
    content = pickle.dumps(Raises(error))
    for payload in content, stored(content)[1]:
        with pytest.raises(expected, match="on purpose"):
            awaited(Status.VALUE, payload)


def test_what_is_in_storage_is_fetched_and_loaded_by_another_thread_and_once() -> None:
    home, payload = stored(pickle.dumps("from storage"))
    assert awaited(Status.VALUE, payload) == "from storage"
    assert len(home.threads) == 1 and home.threads[0] is not threading.current_thread()
    home, payload = stored(StorageLostError("away"))
    with pytest.raises(StorageLostError, match="away"):
        awaited(Status.VALUE, payload)
    assert len(home.threads) == 1, "the loop itself does not ask again"


def test_a_wait_that_is_cancelled_cancels_the_call() -> None:
    future = make()

    async def main() -> None:
        waiting = asyncio.ensure_future(_wait(future))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    assert future.cancelled() and isinstance(future._owner, SilentOwner) and future._owner.cancelled == [1]


def test_a_call_that_is_cancelled_ends_the_wait_also_of_a_loop_that_is_closed() -> None:
    future = make()

    async def main() -> None:
        waiting = asyncio.ensure_future(_wait(future))
        await asyncio.sleep(0)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())
    loop, left = asyncio.new_event_loop(), make()
    abandoned = left.__await__()
    loop.call_soon(abandoned.send, None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert left.cancel() and left.cancelled()
    abandoned.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.wait awaits futures of others in tasks of its own")
def test_asyncio_wait_has_outcomes_loaded_and_leaves_nothing_behind() -> None:
    (home, payload), future, other = stored(pickle.dumps("from storage")), make(), make()
    other.add_done_callback(print)

    async def main() -> None:
        asyncio.get_running_loop().call_later(0.001, settle, future, Status.VALUE, payload)
        both: Any = [future, other]
        done, pending = await asyncio.wait_for(asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED), SECONDS)
        assert (done, pending) == ({future}, {other})
        assert future.result() == "from storage" and home.threads != [threading.current_thread()]

    asyncio.run(main(), debug=True)  # asyncio then refuses what another thread may not call
    assert len(home.threads) == 1
    for each, callbacks in (future, []), (other, [print]):
        assert each._watch is not None and (each._watch.waiters, each._watch.callbacks) == ([], callbacks)
    assert [other.remove_done_callback(print), other.remove_done_callback(print)] == [1, 0]
    settle(other, Status.VALUE, pickle.dumps("value"))
    due_callbacks.wait()  # a client that disconnects does so: nothing is left to call


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.wait awaits futures of others in tasks of its own")
def test_a_future_ends_also_if_the_loop_that_waits_for_it_is_closed() -> None:
    loop, future = asyncio.new_event_loop(), make()
    both: Any = [future]
    waiting = asyncio.wait(both)
    loop.call_soon(waiting.send, None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert future.cancel() and future.cancelled()
    waiting.close()


def test_callbacks_of_others_are_called_while_a_coroutine_blocks_its_loop() -> None:
    """As it does in a cell of a notebook that runs joblib or Dask, whose callbacks wake it."""
    future, called = make(), threading.Event()

    async def main() -> None:
        future.add_done_callback(lambda _: called.set())
        threading.Thread(target=future.cancel).start()
        assert called.wait(SECONDS)

    asyncio.run(main())


def test_a_failure_that_was_awaited_goes_with_its_future() -> None:
    gc.collect()
    gc.disable()
    try:
        future = make()
        settle(future, Status.RAISED, raised(ValueError("x")))

        gone, held = weakref.ref(future), [future]
        del future

        async def main() -> None:
            with suppress(ValueError):
                await held.pop()

        asyncio.run(main())
        assert gone() is None
    finally:
        gc.enable()
