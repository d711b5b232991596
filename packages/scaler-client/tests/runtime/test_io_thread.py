"""The io thread: whatever fails in it, no future hangs, and whoever waits is told the cause."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest

from scaler_client.api.client import Client
from scaler_client.calls.task_options import TaskOptions
from scaler_client.core.core import ClientCore
from scaler_client.core.effects import (
    AnswerShutdown,
    Cleared,
    ClientEffect,
    Connected,
    DeleteUnknownObjects,
    DumpInputs,
    KeepObjects,
    ListUnknownObjects,
    Print,
    RestoreObjects,
    SessionAnswered,
    Transmit,
    WorkersListed,
)
from scaler_client.core.events import RestoreFailed, TasksCancelled
from scaler_client.core.records import CallGroup, Deliver, Discard
from scaler_client.futures.futures import ScalerFuture
from scaler_client.objects.store import ClientStorage, StorageDoor
from scaler_client.runtime.io_thread import IoThread
from scaler_client.runtime.task_ids import TaskIds
from scaler_client.task_context import Transport
from scaler_io.objects.connection import ObjectConnection
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.capacity import WorkerList
from scaler_protocol.errors import ClientQuitError, InvalidFieldError, ScalerError
from scaler_protocol.handshake import INLINE_LIMIT, SESSION_CREDIT
from scaler_protocol.messages import Cancel, NeedFunctions, Reconcile, Release, Status, Submit
from scaler_protocol.objects import SHARED_BYTES

SECONDS = 10.0


def add(a: int, b: int) -> int:
    return a + b


def double(a: int) -> int:
    return 2 * a


class OnceError(Exception):
    """Raised on purpose."""


def once(work: Callable[..., object], fits: Callable[..., bool] = lambda *args: True) -> Callable[..., object]:
    """The same, but the first call that fits raises OnceError; `raised` says whether it has."""
    raised = threading.Event()

    def wrapped(*args: Any) -> object:
        if not raised.is_set() and fits(*args):
            raised.set()
            raise OnceError("on purpose")
        return work(*args)

    wrapped.raised = raised  # type: ignore[attr-defined]
    return wrapped


@dataclass(frozen=True)
class WorkForTheCore:
    """An event that only these tests have."""

    work: Callable[[ClientCore], object]


def run_in_core(client: Client, work: Callable[[ClientCore], object]) -> None:
    """Have the io thread call `work(core)` in the place of an event's handler."""
    core = client._io._core
    core._handlers[WorkForTheCore] = lambda event, now: event.work(core)
    client._io.tell(WorkForTheCore(work))  # type: ignore[arg-type]
    client._io.mailbox.wake()


EFFECTS: dict[type[Any], Any] = {
    Cleared: Cleared(-1),
    Transmit: Transmit(Release([1])),
    Deliver: Deliver.alike((), (), 0, b""),
    Connected: Connected(None),
    Print: Print([]),
    AnswerShutdown: AnswerShutdown(False, "protected"),
    WorkersListed: WorkersListed(-1, WorkerList(0)),
    SessionAnswered: SessionAnswered(-1, ()),
    Discard: Discard([]),
    DumpInputs: DumpInputs({}),
    RestoreObjects: RestoreObjects([]),
    ListUnknownObjects: ListUnknownObjects(),
    DeleteUnknownObjects: DeleteUnknownObjects(),
    KeepObjects: KeepObjects(),
}


def test_long_calls_go_through_the_scheduler_while_half_of_the_credit_is_free(client: Client, cluster: Any) -> None:
    io = client._io
    cluster.paused = True
    size = SHARED_BYTES - 400  # and the rest of the call
    most, carried = SESSION_CREDIT // 2 // SHARED_BYTES, 0
    while io.carries(SHARED_BYTES):
        assert not io.carries(SHARED_BYTES + 1) and not io.carries(SHARED_BYTES, most)
        client.submit(len, carried.to_bytes(2, "big") * (size // 2))
        carried += 1
    assert carried == most
    cluster.wait_tasks(most)
    assert io.carries(INLINE_LIMIT) and not io.carries(SHARED_BYTES)
    cluster.paused = False


@pytest.mark.parametrize("kind", get_args(ClientEffect), ids=lambda kind: kind.__name__)
def test_an_effect_that_raises_harms_nothing_else(
    client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    io = client._io
    client.submit(add, 1, 2).result(SECONDS)
    cluster.paused = True
    futures = [client.submit(add, number, 1) for number in range(20)]
    cluster.wait_tasks(20)
    if kind is Transmit:
        raising = once(Dialer.send, lambda dialer, message: type(message) is Release)
        monkeypatch.setattr(Dialer, "send", raising)
    else:
        raising = io._perform[kind] = once(io._perform[kind])
    if kind is not Deliver:
        run_in_core(client, lambda core: core._out.append(EFFECTS[kind]))
        assert raising.raised.wait(SECONDS)  # type: ignore[attr-defined]
    cluster.go_on()
    ended = [future.exception(SECONDS) for future in futures]
    for error in ended:
        assert error is None or (kind is Deliver and isinstance(error.__cause__, OnceError))
    assert (kind is Deliver) == any(ended)
    assert client.map(double, range(5)) == [0, 2, 4, 6, 8]
    client.clear()
    assert client.submit(add, 3, 4).result(SECONDS) == 7


def test_clear_returns_though_its_effect_raises(client: Client) -> None:
    client._io._perform[Cleared] = once(client._io._perform[Cleared])
    client.clear()
    assert client.submit(add, 1, 2).result(SECONDS) == 3


def test_a_map_fails_with_the_cause(client: Client) -> None:
    client._io._perform[Deliver] = once(client._io._perform[Deliver])
    with pytest.raises(ScalerError, match="could not be delivered") as raised:
        client.map(double, range(100))
    assert isinstance(raised.value.__cause__, OnceError)
    assert client.map(double, range(100)) == list(range(0, 200, 2))


def test_a_delivery_that_raises_midway_fails_one_future_only(
    client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.paused = True
    futures = [client.submit(add, number, 1) for number in range(20)]
    called = [threading.Event() for _ in futures]
    for future, event in zip(futures, called, strict=True):
        future.add_done_callback(lambda done, event=event: event.set())  # type: ignore[misc]
    cluster.wait_tasks(20)
    unlucky = futures[7]
    monkeypatch.setattr(ScalerFuture, "_settle", once(ScalerFuture._settle, lambda future, *more: future is unlucky))
    cluster.go_on()
    assert not wait(futures, SECONDS).not_done
    assert isinstance(unlucky.exception().__cause__, OnceError)  # type: ignore[union-attr]
    others = [number for number in range(20) if futures[number] is not unlucky]
    assert [futures[number].result() for number in others] == [number + 1 for number in others]
    assert all(event.wait(SECONDS) for event in called)


def test_what_a_repair_of_storage_raises_ends_its_tasks(client: Client, cluster: Any) -> None:
    """Whatever that is: it runs in a thread of its own, and nobody else would end them."""
    io, given_up = client._io, threading.Event()

    def raise_it() -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    io.storage.restore = raise_it  # type: ignore[method-assign]
    io._core._handlers[RestoreFailed] = lambda event, now: given_up.set()
    io.restore_objects([1])
    assert given_up.wait(SECONDS)


def unwritable(client: Client, fn: Callable[..., Any]) -> CallGroup:
    """A group that no message can hold."""
    group = client._calls.group_with(client._calls.find(fn), TaskOptions.of(None, False, 0, 0, None))
    return replace(group, wire=replace(group.wire, retries=-1))


def test_a_submit_that_can_not_be_written_fails_its_calls_only(client: Client, cluster: Any) -> None:
    cluster.paused = True
    good = client.submit(add, 1, 2)
    cluster.wait_tasks(1)
    bad = client._calls.send(unwritable(client, double), (1,), {})
    error = bad.exception(SECONDS)
    assert isinstance(error, InvalidFieldError) and "retries" in str(error)
    cluster.go_on()
    assert good.result(SECONDS) == 3
    assert client.submit(double, 4).result(SECONDS) == 8  # its function was not sent with the other
    assert len(cluster.of(Submit)) == 2


def test_a_map_and_a_graph_that_can_not_be_written(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    group = unwritable(client, double)
    with monkeypatch.context() as patched:
        patched.setattr(client._calls, "group_with", lambda *args: group)
        with pytest.raises(InvalidFieldError, match="retries"):
            client.map(double, range(100))
        with pytest.raises(InvalidFieldError, match="retries"):
            client.get({"a": (double, 1), "b": (double, "a")}, ["b"])
    assert client.map(double, range(3)) == [0, 2, 4]
    assert client.get({"a": (double, 1), "b": (double, "a")}, ["b"]) == {"b": 4}


def test_functions_that_can_not_be_written_fail_the_calls_of_them(client: Client, cluster: Any) -> None:
    cluster.paused = True
    good, bad = client.submit(double, 4), [client.submit(add, number, 1) for number in range(3)]
    graph = client.get({"a": (add, 1, 2), "b": (double, "a"), "c": (double, 5)}, ["b", "c"], block=False)
    cluster.wait_tasks(7)
    (body,) = bad[0]._group.bodies

    def ask(core: ClientCore) -> None:
        core._functions._bodies[body.id] = replace(body, name="x" * 5000)
        core.handle(NeedFunctions((body.id,)), 0.0)

    run_in_core(client, ask)
    for future in [*bad, *graph.values()]:
        assert isinstance(future.exception(SECONDS), InvalidFieldError) and "names" in str(future.exception())
    assert not good.done()
    cluster.go_on()
    assert good.result(SECONDS) == 8
    assert client.submit(add, 1, 2).result(SECONDS) == 3  # written with the function
    assert sum(body.id in message.functions for message in cluster.of(Submit)) == 2


def test_a_resume_that_can_not_be_written_fails_the_calls_it_is_about(client: Client, cluster: Any) -> None:
    cluster.paused = True
    futures = [client.submit(add, number, 1) for number in range(3)]
    cluster.wait_tasks(3)
    wanted = [futures[0].task_id, futures[1].task_id, 2**70]
    run_in_core(client, lambda core: core._send(Reconcile(wanted=wanted)))
    for future in futures[:2]:
        assert isinstance(future.exception(SECONDS), InvalidFieldError)
    cluster.go_on()
    assert futures[2].result(SECONDS) == 3


def test_other_messages_that_can_not_be_written_are_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    run_in_core(client, lambda core: core._send(Cancel(["no task"])))  # type: ignore[list-item]
    assert client.submit(add, 1, 2).result(SECONDS) == 3
    assert "cannot send a Cancel message" in caplog.text


# --- code of users ----------------------------------------------------------------------------------------------------


class SlowToPickle:
    """Blocks in `__reduce__` until `go_on` is set."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __reduce__(self) -> tuple[Any, ...]:
        self.reached.set()
        assert self.go_on.wait(SECONDS)
        return int, ("5",)


def test_a_value_that_is_slow_to_pickle_delays_nothing_else(client: Client, cluster: Any) -> None:
    """Nor does a callback that blocks keep it from being pickled."""
    value, called, go_on = SlowToPickle(), threading.Event(), threading.Event()

    def block(future: object) -> None:
        called.set()
        assert go_on.wait(SECONDS)

    client.submit(add, 1, 2).add_done_callback(block)
    assert called.wait(SECONDS)
    cluster.paused = True
    source: ScalerFuture[Any] = client.submit(double, 1)
    consumers = [client.submit(double, source), client.submit(add, source, 1)]
    cluster.wait_tasks(3)
    source.set_result(value)
    cluster.wait_for(Cancel)
    cluster.go_on()
    assert value.reached.wait(SECONDS)
    assert client.submit(add, 1, 2).result(SECONDS / 2) == 3
    cluster.wait_heartbeats(2)
    assert not any(consumer.done() for consumer in consumers)
    value.go_on.set()
    assert [consumer.result(SECONDS) for consumer in consumers] == [10, 6]
    go_on.set()


def test_a_value_is_pickled_by_the_callback_thread_if_no_other_can_be_started(client: Client, cluster: Any) -> None:
    cluster.paused = True
    source: ScalerFuture[Any] = client.submit(double, 1)
    consumer = client.submit(double, source)
    cluster.wait_tasks(2)
    client._io._perform[DumpInputs] = once(client._io._perform[DumpInputs])
    source.set_result(5)
    cluster.wait_for(Cancel)
    cluster.go_on()
    assert consumer.result(SECONDS) == 10


# --- a thread that has ended ------------------------------------------------------------------------------------------


def fails_with(future: ScalerFuture[Any], cause: type[Exception]) -> bool:
    error = future.exception(SECONDS)
    return isinstance(error, ClientQuitError) and cause.__name__ in str(error) and isinstance(error.__cause__, cause)


def wait_dead(client: Client) -> None:
    client._io._thread.join(SECONDS)
    with pytest.raises(ClientQuitError, match="OnceError"):
        client.submit(add, 1, 2)


def test_a_dead_thread_names_its_cause(client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.paused = True
    futures = [client.submit(add, number, 1) for number in range(20)]
    cluster.wait_tasks(20)
    monkeypatch.setattr(Dialer, "turn", once(Dialer.turn))
    client._io.mailbox.wake()
    assert all(fails_with(future, OnceError) for future in futures)
    for _ in range(2):
        with pytest.raises(ClientQuitError, match="OnceError") as raised:
            client.submit(add, 1, 2)
        assert isinstance(raised.value.__cause__, OnceError)
        with pytest.raises(ClientQuitError, match="OnceError"):
            client.map(double, range(3))
        client._io.stop()  # which does not hide the cause


def test_calls_that_were_taken_with_a_request_that_raises(client: Client, cluster: Any) -> None:
    cluster.paused = True
    futures = [client.submit(add, 1, 2)]
    futures.append(ScalerFuture(client._calls._owner, client._io.next_task(), futures[0]._group, b""))

    def raise_it(event: object, now: float) -> None:
        raise OnceError("on purpose")

    client._io._core._handlers[TasksCancelled] = raise_it
    client._io.mailbox._entries.extend([TasksCancelled(()), futures[1]])  # taken in one turn
    client._io.mailbox.wake()
    assert all(fails_with(future, OnceError) for future in futures)


def test_outcomes_that_have_come_are_delivered_by_a_thread_that_fails(
    client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.paused = True
    future = client.submit(add, 1, 2)
    cluster.wait_tasks(1)
    delivered = threading.Event()
    perform = client._io._perform[Deliver]

    def flush(transport: Transport, now: float) -> Any:
        raise OnceError("on purpose")

    def deliver(effect: Deliver) -> None:
        perform(effect)
        delivered.set()

    client._io._perform[Deliver] = deliver
    task = future.task_id

    def end(core: ClientCore) -> None:  # in one turn with the failure
        monkeypatch.setattr(Dialer, "flush", flush)
        core._end({task: core._outstanding.pop(task)}, Status.CANCELLED, b"")

    run_in_core(client, end)
    assert delivered.wait(SECONDS)
    assert future.cancelled()
    wait_dead(client)


def test_a_dial_that_raises_is_the_cause() -> None:
    def dial() -> Transport:
        raise OnceError("no socket")

    door = StorageDoor(str, lambda address: ObjectConnection(address, session=1))
    io = IoThread("tcp://127.0.0.1:1", TaskIds(1), dial, ClientStorage(door, 1))
    io.start()
    with pytest.raises(ClientQuitError, match="no socket") as raised:
        io.wait_connected(SECONDS)
    assert isinstance(raised.value.__cause__, OnceError)
    io.stop()
    with pytest.raises(ClientQuitError, match="no socket"):
        io.mailbox.check()


WAITS: dict[str, Callable[[Client, ScalerFuture[Any]], object]] = {
    "result": lambda client, future: future.result(),
    "wait": lambda client, future: wait([future]),
    "map": lambda client, future: client.map(double, [1]),
    "get": lambda client, future: client.get({"a": (double, 1)}, ["a"]),
    "clear": lambda client, future: client.clear(),
    "shutdown": lambda client, future: client.shutdown(),
    "workers": lambda client, future: client.workers(),
    "connect": lambda client, future: Client(client._settings["address"]),
}


@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_whatever_waits_is_refused_in_the_thread_itself(
    client: Client, cluster: Any, waits: Callable[[Client, ScalerFuture[Any]], object]
) -> None:
    """There finalizers run: the garbage collector may come in any thread."""
    cluster.paused = True
    future = client.submit(add, 1, 2)
    answer: Future[Any] = Future()

    def finalize(core: ClientCore) -> None:
        try:
            answer.set_result(waits(client, future))
        except Exception as error:
            answer.set_exception(error)

    run_in_core(client, finalize)
    with pytest.raises(RuntimeError, match="a blocking call was made in thread scaler-io"):
        answer.result(SECONDS)
    cluster.go_on()
    assert client.submit(double, 4).result(SECONDS) == 8
