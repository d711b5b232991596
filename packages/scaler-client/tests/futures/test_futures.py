"""Futures keep the contract of concurrent.futures, and are small."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import gc
import pickle
import random
import re
import signal
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, _base
from contextlib import nullcontext, suppress
from itertools import count
from typing import Any, ClassVar

import pytest

from scaler_client.core.records import CallGroup, Deliver, RunReports
from scaler_client.futures import futures, waiters
from scaler_client.futures.argument_refs import Collector
from scaler_client.futures.deliveries import deliver
from scaler_client.futures.futures import FailedArgumentError, ScalerFuture, finished_future
from scaler_client.futures.waiters import ThreadWaiter, due_callbacks
from scaler_protocol.errors import DeserializeError, WorkerDiedError, describe, restore
from scaler_protocol.messages import Encoding, Group, Status
from scaler_protocol.profiles import Profile


class FutureDesk:
    """An owner that only takes notes; callbacks run in a thread of their own, as they do in a client."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self.waits = 0
        self.callback_threads: list[threading.Thread] = []
        self.again: list[ScalerFuture[Any]] = []

    @property
    def waiting(self) -> nullcontext[None]:
        self.waits += 1
        return nullcontext()

    def cancel(self, tasks: Sequence[int]) -> None:
        self.cancelled.extend(tasks)

    def call_soon(self, work: Callable[[], object]) -> None:
        thread = threading.Thread(target=work)
        self.callback_threads.append(thread)
        thread.start()

    def submit_again(self, *call: Any) -> ScalerFuture[Any]:
        self.again.append(ScalerFuture(self, 99, *call))
        return self.again[-1]


GROUP = CallGroup(Group(b"f"), (), pickle.loads, pickle.dumps)


@pytest.fixture
def desk() -> FutureDesk:
    return FutureDesk()


def make(desk: FutureDesk, task: int = 1) -> ScalerFuture[Any]:
    return ScalerFuture(desk, task, GROUP, b"call")


def settle(future: ScalerFuture[Any], status: int = Status.VALUE, payload: bytes = pickle.dumps("value")) -> None:
    profiles = Profile(2_500_000, 1_000_000, 4096, 1, 2, 3).packed()
    deliver(Deliver([future], [future.task_id], [status], [payload], RunReports([future.task_id], profiles, ("host",))))


def settle_all(futures: Sequence[ScalerFuture[Any]]) -> None:
    for future in futures:
        settle(future)


def later(work: Callable[[], object], future: ScalerFuture[Any]) -> threading.Thread:
    """Do it once somebody waits for the future."""

    def run() -> None:
        while not future._watch or not future._watch.waiters:
            pass
        work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_future_names_its_task_and_claims_no_more_than_is_known(desk: FutureDesk) -> None:
    future = make(desk, 0x1F)
    assert repr(future) == "<ScalerFuture 1f pending>"  # whether it runs, is queued or waits the client is not told
    settle(future)
    assert repr(future) == "<ScalerFuture 1f finished>"


# --- size -----------------------------------------------------------------------------------------------------------


def test_a_pending_future_takes_at_most_200_bytes(desk: FutureDesk) -> None:
    class Fresh(ScalerFuture[Any]):
        """Without what other tests have made of the class: objects are larger if some of them had attributes."""

    count = 10_000
    call = b"call"
    warm: list[ScalerFuture[Any]] = [Fresh(desk, 2**40 + i, GROUP, call) for i in range(100)]
    gc.collect()  # what other tests have left may log its end
    tracemalloc.start()
    try:
        futures: list[ScalerFuture[Any]] = [Fresh(desk, 2**40 + i, GROUP, call) for i in range(count)]
        used = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    assert used <= 200, used
    assert not futures[0].__dict__ and not warm[0].done()


# --- states ---------------------------------------------------------------------------------------------------------


def test_it_runs_until_it_is_done(desk: FutureDesk) -> None:
    future = make(desk)
    assert (future.running(), future.done(), future.cancelled()) == (True, False, False)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0)
    with pytest.raises(TimeoutError):
        future.exception(-1)
    with pytest.raises(ValueError, match="profile"):
        future.profiling_info()
    settle(future)
    assert (future.running(), future.done(), future.cancelled()) == (False, True, False)
    assert future.result() == "value" and future.exception() is None
    assert future._call == b""


def test_the_value_is_loaded_once_and_by_who_asks(desk: FutureDesk) -> None:
    loads: list[threading.Thread] = []

    def load(payload: bytes) -> list[bytes]:
        loads.append(threading.current_thread())
        return [payload]

    future: ScalerFuture[Any] = ScalerFuture(desk, 1, CallGroup(Group(b""), (), load, pickle.dumps), b"")
    settle(future)
    assert not loads and future.done()
    assert future.result() is future.result()
    assert loads == [threading.current_thread()]


def test_profiling_info(desk: FutureDesk) -> None:
    future = make(desk)
    settle(future)
    info = future.profiling_info()
    assert (info.duration_s, info.duration_us, info.cpu_time_s) == (2.5, 2_500_000, 1.0)
    assert (info.memory_peak, info.peak_memory, info.worker, info.attempt) == (4096, 4096, "host/2", 3)


def test_each_run_of_a_message_is_told_with_its_own_agent() -> None:
    profiles = b"".join(Profile(number, 0, 0, 1, number, 1).packed() for number in range(3))
    reports = RunReports([5, 6, 7], profiles, ("one", "two"), (1, 3))
    assert [(profile.worker, agent) for profile, agent in map(reports.profile, (5, 6, 7))] == [
        (0, "one"), (1, "two"), (2, "two"),
    ]  # fmt: skip


def test_what_the_task_raised_is_raised_each_time_with_the_same_frames(desk: FutureDesk) -> None:
    future = make(desk)
    settle(future, Status.RAISED, pickle.dumps((KeyError("k"), "remote\n")))
    depths = []
    for _ in range(3):
        with pytest.raises(KeyError) as caught:
            future.result()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
    assert "remote" in str(future.exception().__cause__)  # type: ignore[union-attr]


def test_failures_of_the_engine_and_of_loading(desk: FutureDesk) -> None:
    died, unreadable, unreadable_error = make(desk, 1), make(desk, 2), make(desk, 3)
    settle(died, Status.FAILED, describe(WorkerDiedError("signal 9", attempts=3)))
    settle(unreadable, Status.VALUE, b"garbage")
    settle(unreadable_error, Status.RAISED, b"garbage")
    with pytest.raises(WorkerDiedError, match="signal 9"):
        died.result()
    assert isinstance(unreadable.exception(), DeserializeError)
    assert isinstance(unreadable_error.exception(), DeserializeError)


def test_a_result_of_a_module_that_is_missing_here_says_what_to_do(desk: FutureDesk) -> None:
    future = make(desk)
    settle(future, Status.VALUE, b"cunknown_models\nQuote\n.")
    with pytest.raises(DeserializeError) as caught:
        future.result()
    assert str(caught.value) == (
        "the result could not be loaded here: ModuleNotFoundError: No module named 'unknown_models':"
        " install it where this program runs, or set its PYTHONPATH"
    )


class LoadTrouble:
    """What happens while a result is loaded, as long as there is something left to happen."""

    left: ClassVar[list[Callable[[], object]]] = []

    @classmethod
    def load(cls) -> str:
        while cls.left:
            cls.left.pop()()
        return "value"

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadTrouble.load, ()


class Alarmed:
    """Signal handlers: a method, one that takes any arguments, one that calls another function."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def as_method(self, number: int, frame: object) -> None:
        raise self._error

    def as_any(self, *arguments: object) -> None:
        raise self._error

    def as_caller(self, number: int, frame: object) -> None:
        self.as_method(number, None)


@pytest.fixture
def raise_in_handler() -> Iterator[Callable[[str, BaseException], None]]:
    before = signal.getsignal(signal.SIGINT)

    def install(how: str, error: BaseException) -> None:
        signal.signal(signal.SIGINT, getattr(Alarmed(error), how))

    yield install
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", ["as_method", "as_any", "as_caller"])
@pytest.mark.parametrize("ask", ["result", "exception"])
@pytest.mark.parametrize(
    "error",
    [RuntimeError("late"), TimeoutError("late"), OSError("late"), EOFError("late"), KeyboardInterrupt()],
    ids=repr,
)
def test_what_a_signal_handler_raises_while_a_result_is_loaded_passes_through(
    desk: FutureDesk,
    raise_in_handler: Callable[[str, BaseException], None],
    error: BaseException,
    ask: str,
    how: str,
) -> None:
    value, failure = make(desk, 1), make(desk, 2)
    settle(value, Status.VALUE, pickle.dumps(LoadTrouble()))
    settle(failure, Status.RAISED, pickle.dumps((LookupError("of the task"), LoadTrouble())))
    raise_in_handler(how, error)
    for future in value, failure:
        LoadTrouble.left = [lambda: signal.raise_signal(signal.SIGINT)]
        with pytest.raises(type(error)) as caught:
            getattr(future, ask)()
        assert caught.value is error and error.__cause__ is None
    assert value.result() == "value" and value.exception() is None
    assert isinstance(failure.exception(), LookupError)


@pytest.mark.parametrize(
    ("trouble", "raised"),
    [(MemoryError(), MemoryError), (OSError(errno.EMFILE, "too many"), DeserializeError)],
    ids=["memory", "descriptors"],
)
def test_a_result_that_could_not_be_loaded_is_loaded_again(
    desk: FutureDesk, trouble: Exception, raised: type[Exception]
) -> None:
    def fail() -> None:
        raise trouble

    future = make(desk)
    settle(future, Status.VALUE, pickle.dumps(LoadTrouble()))
    LoadTrouble.left = [fail]
    with pytest.raises(raised):
        future.result()
    assert future.result() == "value" and future.exception() is None


def test_cancel_ignores_the_timeout_that_older_programs_give_it(desk: FutureDesk) -> None:
    assert make(desk, 1).cancel(timeout=5) and make(desk, 2).cancel(None)


def test_the_first_outcome_wins(desk: FutureDesk) -> None:
    future = make(desk)
    assert future.cancel() and future.cancel()
    settle(future)
    assert future.cancelled() and desk.cancelled == [1]
    with pytest.raises(CancelledError):
        future.result()
    done = make(desk, 2)
    settle(done)
    assert not done.cancel() and done.result() == "value"
    with pytest.raises(InvalidStateError):
        done.set_result(1)


def test_a_result_of_ones_own(desk: FutureDesk) -> None:
    mine, wrong = make(desk), make(desk)
    mine.set_result(5)
    wrong.set_exception(KeyError("x"))
    assert mine.result() == 5 and isinstance(wrong.exception(), KeyError)
    assert finished_future(desk, GROUP, 3).result() == 3


@pytest.mark.parametrize("value", [None, KeyError, "text"])
def test_what_is_no_exception_ends_no_future(desk: FutureDesk, value: Any) -> None:
    future = make(desk)
    with pytest.raises(TypeError, match=f"exception={re.escape(repr(value))} is not an exception: pass an instance"):
        future.set_exception(value)
    assert future.running() and not desk.cancelled
    settle(future)
    assert future.result() == "value"


# --- waiting --------------------------------------------------------------------------------------------------------


def test_result_waits(desk: FutureDesk) -> None:
    future = make(desk)
    thread = later(lambda: settle(future), future)
    assert future.result(10) == "value" and desk.waits == 1
    thread.join()


def test_many_threads_wait_for_one(desk: FutureDesk) -> None:
    future = make(desk)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(future.result(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    settle(future)
    for thread in threads:
        thread.join()
    assert found == ["value"] * 8


@pytest.mark.parametrize("end", [settle, ScalerFuture.cancel])
def test_wait_returns(desk: FutureDesk, end: Callable[[ScalerFuture[Any]], object]) -> None:
    early, future = make(desk, 1), make(desk, 2)
    settle(early)
    thread = later(lambda: end(future), future)
    done, pending = concurrent.futures.wait([early, future], timeout=10)
    assert done == {early, future} and not pending and desk.waits == 1
    thread.join()
    assert not future._watching().waiters  # concurrent.futures took its waiter away


def test_wait_for_the_first(desk: FutureDesk) -> None:
    first, second = make(desk, 1), make(desk, 2)
    settle(second, Status.RAISED, pickle.dumps((KeyError(), "")))
    done, pending = concurrent.futures.wait([first, second], return_when="FIRST_EXCEPTION")
    assert (done, pending) == ({second}, {first})
    done, pending = concurrent.futures.wait([first, second], return_when="FIRST_COMPLETED")
    assert done == {second}
    assert concurrent.futures.wait([first], timeout=0.01) == (set(), {first})


def test_as_completed(desk: FutureDesk) -> None:
    futures = [make(desk, i) for i in range(50)]
    shuffled = random.sample(futures, len(futures))
    thread = later(lambda: settle_all(shuffled), futures[-1])
    assert set(concurrent.futures.as_completed([*futures, *futures], timeout=10)) == set(futures)
    thread.join()


def test_waiting_for_a_mixture(desk: FutureDesk) -> None:
    ours, theirs = make(desk), Future[int]()
    settle(ours)
    theirs.set_result(1)
    assert concurrent.futures.wait([ours, theirs]).done == {ours, theirs}


def test_outcomes_race_with_waiters(desk: FutureDesk) -> None:
    """Each waiter is told exactly once, however delivery and installation interleave."""

    def race() -> None:
        futures = [make(desk, i) for i in range(40)]
        deliverer = threading.Thread(target=settle_all, args=(futures,))
        canceller = threading.Thread(target=lambda: [future.cancel() for future in futures[::3]])
        deliverer.start()
        canceller.start()
        assert not concurrent.futures.wait(futures, timeout=10).not_done
        deliverer.join()
        canceller.join()

    for _ in range(30):
        race()


def test_await_and_wrap_future(desk: FutureDesk) -> None:
    one, two, three = make(desk, 1), make(desk, 2), make(desk, 3)
    settle(one)

    async def work() -> list[Any]:
        asyncio.get_running_loop().call_later(0.001, settle, two)
        found = [await one, await two]
        wrapped = asyncio.wrap_future(three)
        wrapped.cancel()
        await asyncio.sleep(0)
        return found

    assert asyncio.run(work()) == ["value", "value"]
    for thread in desk.callback_threads:
        thread.join()
    assert three.cancelled()
    assert two._get_snapshot() == (True, False, "value", None)


# --- callbacks ------------------------------------------------------------------------------------------------------


def test_callbacks_may_ask_for_everything(desk: FutureDesk) -> None:
    future = make(desk)
    seen: list[Any] = []

    def callback(done: Future[Any]) -> None:
        assert isinstance(done, ScalerFuture)
        seen.extend([done.result(), done.exception(), done.cancelled(), done.profiling_info().attempt])

    future.add_done_callback(callback)
    settle(future)
    desk.callback_threads[0].join()
    assert seen == ["value", None, False, 3]
    future.add_done_callback(callback)  # runs at once, here
    assert len(seen) == 8


def test_callbacks_run_in_order_once_and_errors_are_logged(desk: FutureDesk, caplog: pytest.LogCaptureFixture) -> None:
    future, order = make(desk), list[int]()
    future.add_done_callback(lambda done: order.append(1))
    future.add_done_callback(lambda done: 1 / 0)
    future.add_done_callback(lambda done: order.append(2))
    assert future.cancel() and not future._settle(Status.VALUE, b"")
    assert order == [1, 2]
    future.add_done_callback(lambda done: 1 / 0)
    assert caplog.text.count("ZeroDivisionError") == 2


class _AlarmError(Exception):
    """What a signal handler raises."""


class Alarm:
    """Raises once, at the n-th place in the code of futures where signal handlers run: a call begins or has ended."""

    FILES = (futures.__file__, waiters.__file__, _base.__file__)

    def __init__(self, after: int) -> None:
        self._left = after

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename in self.FILES and event != "c_call":
            self._left -= 1
            if self._left < 0:
                sys.setprofile(None)
                raise _AlarmError


def end_with_an_alarm(future: ScalerFuture[Any], end: Callable[[ScalerFuture[Any]], object], after: int) -> bool:
    """Whether it ends before the alarm."""
    sys.setprofile(Alarm(after))
    try:
        end(future)
    except _AlarmError:
        return False
    finally:
        sys.setprofile(None)
    return True


@pytest.mark.parametrize(
    "end",
    [lambda it: it.cancel(), lambda it: it.set_result(1), lambda it: it.set_exception(OSError())],
    ids=["cancel", "set_result", "set_exception"],
)
def test_a_signal_handler_that_raises_loses_no_callback_and_no_waiter(
    desk: FutureDesk, end: Callable[[ScalerFuture[Any]], object]
) -> None:
    """Wherever it does. An end of the interpreter that waits for callbacks that nobody calls would hang."""
    ended = False
    for after in count():
        if ended:
            break
        future, called = make(desk, after), list[int]()
        waiting = [ThreadWaiter() for _ in range(2)]
        for waiter in waiting:
            future._add_waiter(waiter)
        for number in range(3):
            future.add_done_callback(lambda done, number=number, called=called: called.append(number))  # type: ignore[misc]
        ended = end_with_an_alarm(future, end, after)
        for thread in desk.callback_threads:
            thread.join()
        if future.done():
            assert all(waiter.wait(0.0) for waiter in waiting), after
            assert after in desk.cancelled, after
            assert len(called) >= 2 and called == sorted(set(called)), after  # one may be the place of the alarm
        else:
            assert not called
            future.cancel()
        assert future not in due_callbacks._futures, after
        assert not future._watching().lock._is_owned()  # type: ignore[attr-defined]
    assert ended and after > 20


def look(futures: Sequence[ScalerFuture[Any]]) -> None:
    concurrent.futures.wait(futures, timeout=0)


def look_at_each(futures: Sequence[ScalerFuture[Any]]) -> None:
    with suppress(concurrent.futures.TimeoutError):
        list(concurrent.futures.as_completed(futures, timeout=0))


@pytest.mark.parametrize("waiting", [look, look_at_each])
def test_a_signal_handler_that_raises_in_a_wait_keeps_no_outcome_back(
    desk: FutureDesk, waiting: Callable[[Sequence[ScalerFuture[Any]]], object]
) -> None:
    """Wherever it does: the thread that delivers outcomes would wait for ever, and with it every call of the client."""
    ended = False
    for after in count():
        if ended:
            break
        pending = [make(desk, task) for task in range(3)]
        sys.setprofile(Alarm(after))
        try:
            waiting(pending)
            ended = True
        except _AlarmError:
            ended = False
        finally:
            sys.setprofile(None)
        deliverer = threading.Thread(target=settle_all, args=(pending,), daemon=True)
        deliverer.start()
        deliverer.join(10)
        assert not deliverer.is_alive(), after
        assert concurrent.futures.wait(pending, timeout=0).done == set(pending), after
    assert after > 20


class DeliveringDesk(FutureDesk):
    """Settles its futures in another thread: at the n-th place in the code of waits, or else once a thread waits."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.futures = [make(self, task) for task in range(3)]
        self.has_delivered = self.was_early = False
        self._left = after

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename == _base.__file__ and not self.has_delivered:
            self._left -= 1
            if self._left < 0:
                self.was_early = True
                self._deliver()

    @property
    def waiting(self) -> nullcontext[None]:
        if not self.has_delivered:
            self._deliver()
        return nullcontext()

    def _deliver(self) -> None:
        self.has_delivered = True
        thread = threading.Thread(target=settle_all, args=(self.futures,), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), "a wait that has begun keeps outcomes back"


@pytest.mark.parametrize("until", ["ALL_COMPLETED", "FIRST_EXCEPTION", "FIRST_COMPLETED", "each"])
def test_a_wait_learns_once_of_an_outcome_that_comes_as_it_begins(until: str) -> None:
    was_early = True
    for after in count():
        if not was_early:
            break
        desk = DeliveringDesk(after)
        sys.setprofile(desk)
        try:
            if until == "each":
                each = list(concurrent.futures.as_completed(desk.futures, timeout=10))
                assert len(each) == 3 and set(each) == set(desk.futures), after
            else:
                done, pending = concurrent.futures.wait(desk.futures, timeout=10, return_when=until)
                assert done | pending == set(desk.futures) and done, after
                assert not pending or until == "FIRST_COMPLETED", after
        finally:
            sys.setprofile(None)
        was_early = desk.was_early
    assert after > 10


# --- futures in calls -----------------------------------------------------------------------------------------------


def test_a_future_is_pickled_for_calls_only(desk: FutureDesk) -> None:
    future = make(desk, 7)
    with pytest.raises(TypeError, match="ScalerFuture can not be pickled"):
        pickle.dumps(future)
    with Collector(desk) as collector:
        pickle.dumps([future, {"again": future}])
    assert [need.task_id for need in collector.found] == [7] and collector.failed is None
    settle(future)
    with Collector(desk) as collector:
        assert pickle.loads(pickle.dumps((future,))) == ("value",)
        future.result()
        assert pickle.loads(pickle.dumps((future,))) == ("value",)
    assert not collector.found
    failed = make(desk)
    failed.cancel()
    with Collector(desk) as collector:
        pickle.dumps(failed)
    with pytest.raises(FailedArgumentError) as caught:
        collector.raise_failure()
    assert caught.value.argument is failed


@pytest.mark.parametrize("lent", [True, False])
def test_an_argument_is_the_result_as_the_task_made_it(desk: FutureDesk, lent: bool) -> None:
    """Whatever the caller has done to what `result` gave."""
    future = make(desk)
    lease = future._lease() if lent else None
    settle(future, payload=pickle.dumps([1, 2]))
    future.result().append(1000)
    assert future.result() == [1, 2, 1000]
    with Collector(desk) as collector:
        assert pickle.loads(pickle.dumps((future,))) == ([1, 2],)
    assert not collector.found
    for outcome in (future._as_input(), lease.outcome() if lease else future._as_input()):
        assert outcome == (Status.VALUE, pickle.dumps([1, 2]))
    assert future._made() == [1, 2] and future.result() == [1, 2, 1000]


def test_many_futures_in_one_argument_are_each_noted_once(desk: FutureDesk) -> None:
    """Two tasks are compared only where their hashes are equal: N futures cost N, not N squared."""
    futures = [make(desk, task) for task in range(1, 2000)]
    with Collector(desk) as collector:
        pickle.dumps([futures, futures[::-1]])
    assert [need.task_id for need in collector.found] == list(range(1, 2000))
    compared: list[int] = []

    class Need:
        task_id = 0

        def outcome(self) -> None:
            return None

        def __hash__(self) -> int:
            return id(self) // 16

        def __eq__(self, other: object) -> bool:
            compared.append(1)
            return self is other

    for _ in range(2000):
        collector.add(Need())
    assert len(compared) < 2000


def test_nothing_is_pickled_for_calls_that_were_waiting(desk: FutureDesk) -> None:
    group = CallGroup(Group(b""), (), pickle.loads, lambda value: pytest.fail("pickled"))
    future: ScalerFuture[Any] = ScalerFuture(desk, 1, group, b"")
    lease = future._lease()
    settle(future, payload=pickle.dumps("constant"))
    assert future.result() == "constant"
    assert lease.outcome() == future._as_input() == (Status.VALUE, pickle.dumps("constant"))


def test_bytes_of_what_nobody_can_change_are_not_kept(desk: FutureDesk) -> None:
    for value, kept in ((5, False), ("text", False), (None, False), ((1, "a"), False), ([1], True), (([1],), True)):
        future = make(desk)
        settle(future, payload=pickle.dumps(value))
        assert future.result() == value and (future._as_written() is not None) == kept


def test_outcomes_for_dependents(desk: FutureDesk) -> None:
    future = make(desk)
    assert future._as_input() is None
    settle(future)
    assert future._as_input() == (Status.VALUE, pickle.dumps("value"))
    future.result()
    assert pickle.loads(dumped(future)[1]) == "value"
    failed = make(desk)
    settle(failed, Status.RAISED, pickle.dumps((KeyError("k"), "text")))
    failed.exception()
    status, payload = dumped(failed)
    assert status == Status.RAISED and isinstance(pickle.loads(payload)[0], KeyError)
    custom: ScalerFuture[Any] = ScalerFuture(
        desk, 1, CallGroup(Group(b"", encoding=Encoding.PARTS), (), pickle.loads, pickle.dumps), b""
    )
    custom.set_result(threading.Lock())
    assert dumped(custom)[0] == Status.FAILED
    leaving: ScalerFuture[Any] = ScalerFuture(
        desk, 1, CallGroup(Group(b""), (), pickle.loads, lambda value: sys.exit(1)), b""
    )
    leaving.set_result(1)
    status, payload = dumped(leaving)
    assert status == Status.FAILED and "SystemExit(1)" in str(restore(payload))


def dumped(future: ScalerFuture[Any]) -> tuple[int, bytes]:
    """The outcome, whose bytes are not kept."""
    dump = future._as_input()
    assert callable(dump)
    return dump()


@pytest.mark.parametrize("watched", [False, True])
def test_a_failed_future_keeps_its_call_and_retries_it(desk: FutureDesk, watched: bool) -> None:
    failure = describe(WorkerDiedError("it died"))
    need = ScalerFuture[int](desk, 2, GROUP, b"other")._lease()
    ends = ((Status.RAISED, b""), (Status.FAILED, failure), (Status.CANCELLED, b""), (Status.VALUE, pickle.dumps(1)))
    for status, payload in ends:
        future = ScalerFuture[int](desk, 1, GROUP, b"call", (need,))
        if watched:
            future._watching()
        deliver(Deliver.alike([future], [1], status, payload))
        if status in (Status.VALUE, Status.CANCELLED):
            assert (future._call, future._needs) == (b"", ())
            with pytest.raises(InvalidStateError, match="and its call is not kept"):
                future.retry()
            continue
        again = future.retry()
        assert desk.again.pop() is again and again.running() and future.done()
        assert (again.task_id, again._group, again._call, again._needs) == (99, GROUP, b"call", (need,))
    with pytest.raises(InvalidStateError, match="it has not ended"):
        ScalerFuture[int](desk, 1, GROUP, b"call").retry()
    assert not desk.again


def test_a_call_that_is_not_known_is_not_retried(desk: FutureDesk) -> None:
    adopted = CallGroup(Group(b""), (), pickle.loads, pickle.dumps)
    for group, why in ((GROUP, "other nodes of its graph"), (adopted, "an earlier client of the session")):
        future = ScalerFuture[int](desk, 1, group, b"")
        future.set_exception(KeyError())
        with pytest.raises(InvalidStateError, match=why):
            future.retry()
    assert not desk.again
