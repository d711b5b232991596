"""The facade, over real sockets, with calls run on the spot."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import math
import os
import pickle
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import cloudpickle
import pytest

from scaler_client.api.client import Client
from scaler_client.calls.object_reference import ObjectReference
from scaler_protocol.errors import (
    ClientForkedError,
    ClientQuitError,
    DeserializeError,
    HandshakeRefusedError,
    ObjectNotFoundError,
    SchedulerLostError,
)
from scaler_protocol.messages import Cancel, Reconcile, Submit
from scaler_protocol.serializer import Serializer

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def add(a: int, b: int = 10) -> int:
    return a + b


def fail(text: str) -> None:
    raise LookupError(text)


# --- the constructor ------------------------------------------------------------------------------------------------


def test_parameters_are_those_that_third_parties_read() -> None:
    names = list(inspect.signature(Client).parameters)
    assert names == [
        "address", "profiling", "timeout_seconds", "heartbeat_interval_seconds", "serializer", "stream_output",
        "object_storage_address", "security_config", "keys", "insecure", "block",
        "session", "session_secret", "name", "initializer", "tracing",
    ]  # fmt: skip
    defaults = {name: each.default for name, each in inspect.signature(Client).parameters.items()}
    assert (defaults["timeout_seconds"], defaults["heartbeat_interval_seconds"]) == (60, 2)


def test_no_address_outside_of_a_task() -> None:
    with pytest.raises(ValueError, match=r"No scheduler address provided.*not running inside a worker context"):
        Client()


def test_connecting_to_nothing_names_address_and_remedy() -> None:
    with pytest.raises(SchedulerLostError, match=r"tcp://127\.0\.0\.1:1.*scaler_scheduler tcp://127\.0\.0\.1:1"):
        Client("tcp://127.0.0.1:1", timeout_seconds=0.2)


def test_a_refusal_lists_its_reasons(cluster: Any) -> None:
    cluster.refusals = ("protocol version 7", "a bad day")
    with pytest.raises(HandshakeRefusedError, match="protocol version 7; a bad day"):
        Client(cluster.address)


def test_identity(client: Client) -> None:
    assert client.identity.startswith(b"Client|") and len(client.identity) == 7 + 32
    assert {client.identity: 1}


# --- calls ----------------------------------------------------------------------------------------------------------


def test_submit_and_result(client: Client) -> None:
    assert client.submit(math.sqrt, 16).result(10) == 4
    assert client.submit(add, 1).result(10) == 11
    assert client.submit(add, b=1, a=2).result(10) == 3
    assert client.submit(lambda *args, **kwargs: (args, kwargs), 1, fn=2).result(10) == ((1,), {"fn": 2})


def test_many_submits(client: Client, cluster: Any) -> None:
    futures = [client.submit(math.floor, i + 0.5) for i in range(5000)]
    assert [future.result(30) for future in futures] == list(range(5000))
    bodies = [function for submit in cluster.of(Submit) for function in submit.functions]
    assert len(bodies) == 1


def test_submits_from_several_threads(client: Client) -> None:
    sums: list[int] = []

    def work() -> None:
        sums.append(sum(future.result(30) for future in [client.submit(add, i, 0) for i in range(500)]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(500))] * 4


def test_an_exception_comes_back_with_its_remote_traceback(client: Client) -> None:
    with pytest.raises(LookupError, match="gone") as caught:
        client.submit(fail, "gone").result(10)
    assert "remote text" in str(caught.value.__cause__)


def test_what_python_would_refuse_is_refused_at_submit(client: Client) -> None:
    with pytest.raises(TypeError, match=r"add\(\) missing 1 required positional argument: 'a'"):
        client.submit(add)
    with pytest.raises(TypeError, match="must be callable"):
        client.submit(3)  # type: ignore[call-overload]


def test_profiling_is_taken_where_the_function_can_not(client: Client) -> None:
    info = client.submit(add, 1, profiling=True)
    assert info.result(10) == 11
    assert info.profiling_info().duration_us == 1500
    assert client.submit(lambda **kwargs: kwargs, profiling=True).result(10) == {"profiling": True}


def test_submit_verbose_passes_options_on(client: Client, cluster: Any) -> None:
    future = client.submit_verbose(
        round, args=(3.15,), kwargs={}, capabilities={"gpu": -1}, priority=3, retries=2, task_timeout_seconds=1.5
    )
    assert future.result(10) == 3
    group = cluster.of(Submit)[0].groups[0]
    assert (group.capability_names, group.capability_values) == (("gpu",), (-1,))
    assert (group.priority, group.retries, group.timeout_seconds) == (3, 2, 1.5)


def test_a_global_that_changes_is_seen(client: Client) -> None:
    scope: dict[str, Any] = {"__name__": "__main__", "factor": 10}
    exec("def scale(x): return factor * x", scope)
    assert client.submit(scope["scale"], 1).result(10) == 10
    scope["factor"] = 20
    assert client.submit(scope["scale"], 1).result(10) == 20


# --- map ------------------------------------------------------------------------------------------------------------


def test_map_is_the_builtin(client: Client) -> None:
    assert client.map(add, range(3), range(5)) == [0, 2, 4]
    assert client.map(add, []) == []
    assert client.map(len, [(1, 2), (3,)]) == [2, 1]
    assert client.map(add, (i for i in range(3))) == [10, 11, 12]
    with pytest.raises(TypeError, match="at least one iterable"):
        client.map(add)


def test_a_function_that_nobody_knows_the_parameters_of_names_starmap(client: Client) -> None:
    with pytest.raises(TypeError, match=r"integer; map\(\) passes each item as one argument.*starmap"):
        client.map(range, [(1, 2), (3, 4)])
    with pytest.raises(TypeError) as raised:
        client.map(range, ["a"])
    assert "starmap" not in str(raised.value)


def test_starmap(client: Client) -> None:
    assert client.starmap(add, [(1, 2), [3], (4, 5)]) == [3, 13, 9]
    assert client.starmap(add, []) == []
    with pytest.raises(TypeError, match="add"):
        client.starmap(add, [(1,), ()])


def test_the_old_form_of_map(client: Client) -> None:
    with pytest.warns(FutureWarning, match="starmap"):
        assert client.map(math.sqrt, [(i,) for i in range(5)]) == [math.sqrt(i) for i in range(5)]
    with pytest.warns(FutureWarning, match="as they are"):
        assert client.map(len, [(1,), (2,)]) == [1, 1]  # the builtin meaning wins
    with pytest.raises(TypeError):
        client.map(math.sqrt, ((i,) for i in range(5)))  # generators are never unpacked


def test_a_big_map_goes_in_few_messages(client: Client, cluster: Any) -> None:
    assert client.map(abs, range(20_000)) == list(range(20_000))
    # The first few tell how big the others are.
    assert [len(submit.tasks) for submit in cluster.of(Submit)] == [16, 4096, 4096, 4096, 4096, 3600]
    assert sum(len(submit.tasks) for submit in cluster.of(Submit)) == 20_000


def test_map_of_big_arguments_respects_the_message_limit_and_the_credit(cluster: Any) -> None:
    cluster.credit = 4 * 1024 * 1024
    with Client(cluster.address) as client:
        assert client.map(len, (bytes(100_000) for _ in range(200))) == [100_000] * 200
    assert all(sum(map(len, submit.calls)) <= 1024 * 1024 for submit in cluster.of(Submit))
    assert cluster.most_waiting <= 4 * 1024 * 1024


def test_a_failing_item_raises_and_the_rest_is_cancelled(client: Client, cluster: Any) -> None:
    def even(x: int) -> int:
        if x == 3:
            raise ValueError("odd")
        return x

    with pytest.raises(ValueError, match="odd"):
        client.map(even, range(10))
    assert client.map(even, range(3)) == [0, 1, 2]  # the client goes on


def test_an_interrupted_map_cancels_its_items(client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.paused = True

    def interrupt(*args: object) -> None:
        cluster.wait_tasks(100)
        raise KeyboardInterrupt

    monkeypatch.setattr("scaler_client.api.map.MapSubmission._await", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.map(add, range(100))
    cluster.wait_for(Cancel)
    monkeypatch.undo()
    cluster.go_on()
    assert client.map(add, range(3)) == [10, 11, 12]


# --- futures as arguments -------------------------------------------------------------------------------------------


def test_futures_are_arguments_at_any_depth(client: Client, cluster: Any) -> None:
    cluster.paused = True
    one = client.submit(add, 1)
    two = client.submit(lambda values: values["a"][0] + 1, {"a": [one]})
    three = client.submit(add, one, two)
    cluster.wait_tasks(3)
    cluster.go_on()
    assert three.result(10) == 23
    assert cluster.of(Submit)[-1].needs


def test_a_future_that_is_done_travels_as_its_value(client: Client, cluster: Any) -> None:
    one = client.submit(add, 1)
    done = client.submit(add, 2)
    one.result(10)
    while not done.done():
        client.submit(add, 3).result(10)
    assert client.submit(add, one, done).result(10) == 23
    assert not any(submit.needs for submit in cluster.of(Submit))


def test_a_failed_argument_fails_the_call_with_the_same_exception(client: Client, cluster: Any) -> None:
    failed = client.submit(fail, "root")
    assert failed.exception(10)
    after = client.submit(add, failed)
    with pytest.raises(LookupError, match="root"):
        after.result(10)
    cluster.paused = True
    pending = client.submit(fail, "later")
    dependent = client.submit(add, pending)
    cluster.wait_tasks(2)
    cluster.go_on()
    with pytest.raises(LookupError, match="later"):
        dependent.result(10)


def test_a_cancelled_argument_cancels_the_call(client: Client, cluster: Any) -> None:
    cluster.paused = True
    cancelled = client.submit(add, 1)
    cancelled.cancel()
    with pytest.raises(CancelledError):
        client.submit(add, cancelled).result(10)


def test_results_that_the_scheduler_no_longer_has_are_sent_again(client: Client, cluster: Any) -> None:
    cluster.forgets_results = True
    cluster.paused = True
    one = client.submit(add, 1)
    two = client.submit(add, one)
    cluster.wait_tasks(2)
    cluster.go_on()
    assert two.result(10) == 21


def test_a_pending_future_of_another_client_is_refused(client: Client, cluster: Any) -> None:
    cluster.paused = True
    with Client(cluster.address) as other, pytest.raises(ValueError, match="another client"):
        client.submit(add, other.submit(add, 1))


def test_map_over_futures(client: Client, cluster: Any) -> None:
    cluster.paused = True
    futures = [client.submit(add, i) for i in range(3)]
    cluster.wait_tasks(3)
    threading.Thread(target=lambda: (cluster.wait_tasks(6), cluster.go_on())).start()
    assert client.map(add, futures) == [20, 21, 22]


# --- graphs ---------------------------------------------------------------------------------------------------------

GRAPH: dict[str, Any] = {
    "a": 2, "b": 2, "c": (lambda i: i + 1, "a"), "d": (add, "a", "b"), "e": (lambda d, c: d - c, "d", "c"), "f": add,
}  # fmt: skip


def test_get(client: Client) -> None:
    result = client.get(GRAPH, keys=["e", "a", "f", "d"])
    assert list(result.items()) == [("e", 1), ("a", 2), ("f", add), ("d", 4)]


def test_get_without_block(client: Client) -> None:
    futures = client.get(GRAPH, keys=["e", "a"], block=False)
    assert futures["a"].done() and futures["a"].result() == 2
    assert futures["e"].result(10) == 1


@pytest.mark.parametrize("keys", [["bad", "slow"], ["slow", "bad"]])
def test_get_raises_the_failure_of_a_requested_future_at_once(client: Client, cluster: Any, keys: list[str]) -> None:
    failed = client.submit(fail, "early")
    assert isinstance(failed.exception(10), LookupError)
    cluster.paused = True
    with pytest.raises(LookupError, match="early"):
        client.get({"bad": failed, "slow": (add, 1)}, keys)
    cluster.wait_for(Cancel)
    (cancelled := client.submit(add, 1)).cancel()
    with pytest.raises(CancelledError):
        client.get({"bad": cancelled, "slow": (add, 1)}, keys)
    pending = client.submit(add, 1)

    def end() -> None:
        cluster.wait_tasks(2)
        pending.set_exception(OSError("late"))

    threading.Thread(target=end).start()
    with pytest.raises(OSError, match="late"):
        client.get({"bad": pending, "slow": (add, 1)}, keys)


@pytest.mark.parametrize(
    ("graph", "keys", "error"),
    [
        ({"a": (add, 1, 2, 3, 4)}, ["a"], TypeError),
        ({"a": 1}, "a", TypeError),
        ({"a": (add, "b")}, ["a"], KeyError),
        ({"a": 1}, ["b"], KeyError),
        ({"a": 1}, ["a", "a"], KeyError),
        ({"a": (add, "b"), "b": (add, "a")}, ["a"], ValueError),  # graphlib.CycleError
    ],
)
def test_graphs_that_make_no_sense(client: Client, graph: dict[str, Any], keys: list[str], error: type) -> None:
    with pytest.raises(error):
        client.get(graph, keys)


def test_a_failing_node_fails_the_graph_with_the_first_exception(client: Client) -> None:
    graph = {"text": "node", "x": (fail, "text"), "y": (add, "x"), "n": 1, "z": (add, "n")}
    with pytest.raises(LookupError, match="node"):
        client.get(graph, ["y", "x"])
    assert client.get(graph, ["z"]) == {"z": 11}


def test_cancelling_one_future_leaves_the_others(client: Client, cluster: Any) -> None:
    cluster.paused = True
    futures = client.get(GRAPH, ["c", "d"], block=False)
    futures["c"].cancel()
    cluster.go_on()
    assert futures["d"].result(10) == 4


def test_a_new_scheduler_is_told_the_graph_again(client: Client, cluster: Any) -> None:
    cluster.paused = True
    futures = client.get(GRAPH, ["e"], block=False)
    cluster.wait_tasks(3)
    cluster.be_replaced()
    cluster.wait_for(Reconcile)
    cluster.wait_tasks(3)
    cluster.go_on()
    assert futures["e"].result(10) == 1


# --- objects --------------------------------------------------------------------------------------------------------


def test_references_stand_for_objects(client: Client) -> None:
    reference = client.send_object([1, 2, 3], name="list")
    assert isinstance(reference, ObjectReference) and reference.name == b"list" and reference.size > 0
    assert client.submit(lambda items, i: items[i], reference, 1).result(10) == 2
    assert client.submit(lambda nested: sum(nested["x"]), {"x": reference}).result(10) == 6
    assert client.map(len, [reference, reference]) == [3, 3]
    assert client.get({"r": reference, "n": (len, "r")}, ["n", "r"]) == {"n": 3, "r": [1, 2, 3]}
    assert len({reference, reference}) == 1
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(reference)


def test_clear(client: Client, cluster: Any) -> None:
    cluster.paused = True
    reference = client.send_object(1)
    future = client.submit(add, 1)
    cluster.wait_tasks(1)
    client.clear()
    assert future.cancelled()
    with pytest.raises(ObjectNotFoundError):
        client.submit(add, reference)
    cluster.go_on()
    assert client.submit(add, 1).result(10) == 11


# --- the end --------------------------------------------------------------------------------------------------------


def test_disconnect_cancels_and_says_goodbye(cluster: Any) -> None:
    cluster.paused = True
    client = Client(cluster.address)
    future = client.submit(add, 1)
    cluster.wait_tasks(1)
    for _ in range(3):
        client.disconnect()
    assert future.cancelled()
    for use in _uses(client):
        with pytest.raises(ClientQuitError):
            use()


def _uses(client: Client) -> list[Callable[[], object]]:
    return [
        lambda: client.submit(add, 1),
        lambda: client.map(add, [1]),
        lambda: client.get({"a": (add, "b"), "b": 1}, ["a"]),
        lambda: client.send_object(1),
        lambda: client.workers(),
        lambda: client.wait_for_workers(0),
        lambda: client.shutdown(),
        lambda: client.clear(),
    ]


def test_shutdown_of_a_protected_scheduler(client: Client, cluster: Any) -> None:
    with pytest.raises(ValueError, match="protected"):
        client.shutdown()
    assert client.submit(add, 1).result(10) == 11
    cluster.protected = False
    client.shutdown()
    with pytest.raises(ClientQuitError):
        client.submit(add, 1)


def test_a_new_scheduler_is_given_what_is_still_wanted(client: Client, cluster: Any) -> None:
    cluster.paused = True
    futures = [client.submit(add, i) for i in range(10)]
    cluster.wait_tasks(10)
    cluster.be_replaced()
    (resume,) = cluster.wait_for(Reconcile)
    assert sorted(resume.wanted) == sorted(future.task_id for future in futures)
    cluster.go_on()
    assert [future.result(10) for future in futures] == [i + 10 for i in range(10)]


def test_a_lost_scheduler_ends_the_futures(cluster: Any) -> None:
    cluster.paused = True
    client = Client(cluster.address, timeout_seconds=0.3)
    future = client.submit(add, 1)
    cluster.wait_tasks(1)
    cluster.stays_silent = True
    cluster.be_replaced()
    # Whatever is connected now never hears anything; the heartbeat notices, and no Hello is answered.
    with pytest.raises(SchedulerLostError):
        future.result(30)
    with pytest.raises(SchedulerLostError):
        client.submit(add, 2).result(10)
    client.disconnect()


def test_output_is_written_where_the_client_is(
    client: Client, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.paused = True
    future = client.submit(add, 1)
    cluster.wait_tasks(1)
    cluster.print_for_client(future.task_id, 1, "out\n")
    cluster.print_for_client(future.task_id, 2, "err\n")
    called = threading.Event()
    future.add_done_callback(lambda future: called.set())
    cluster.go_on()
    assert called.wait(10)  # callbacks and output share a thread
    assert capsys.readouterr() == ("out\n", "err\n")


def test_a_pickled_client_connects_again_with_its_settings(client: Client) -> None:
    with pickle.loads(pickle.dumps(client)) as again:
        assert again.identity != client.identity
        assert again.submit(add, 1).result(10) == 11


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_inherited_client_is_poisoned(client: Client, cluster: Any) -> None:
    cluster.paused = True
    pending = client.submit(add, 1)
    child = os.fork()
    if not child:
        caught = 0
        for use in (lambda: client.submit(add, 1), lambda: pending.result(1), lambda: client.map(add, [1])):
            try:
                use()
            except ClientForkedError:
                caught += 1
        os._exit(caught)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    cluster.go_on()
    assert pending.result(10) == 11


def test_the_executor(client: Client) -> None:
    with client.executor() as executor:
        assert executor.submit(add, 1, b=2).result(10) == 3
        assert list(executor.map(add, range(3), range(3))) == [0, 2, 4]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(add, 1)
    assert client.submit(add, 1).result(10) == 11


def test_what_belongs_to_a_client_is_no_argument(client: Client) -> None:
    for owned in (client.executor(), client.options(retries=1), client.options(retries=1).submit):
        with pytest.raises(TypeError, match=r"with their client: pass the client|with its client: pass the client"):
            client.submit(repr, owned)


def test_a_future_keeps_its_client_connected(cluster: Any) -> None:
    def start() -> tuple[Any, threading.Thread]:
        client = Client(cluster.address, timeout_seconds=10)
        return client.submit(add, 1), client._io._thread

    cluster.paused = True
    future, thread = start()
    cluster.wait_tasks(1)
    gc.collect()
    cluster.go_on()
    assert future.result(10) == 11 and thread.is_alive()
    del future
    thread.join(10)
    assert not thread.is_alive()


def test_a_graph_keeps_its_client_connected(cluster: Any) -> None:
    def start() -> dict[Any, Any]:
        return Client(cluster.address, timeout_seconds=10).get({"a": (add, 1), "b": (add, "a", 2)}, ["b"], block=False)

    cluster.paused = True
    futures = start()
    cluster.wait_tasks(1)
    gc.collect()
    cluster.go_on()
    assert futures["b"].result(10) == 13


def test_a_call_of_which_nobody_has_the_future_ends_before_its_client(cluster: Any) -> None:
    cluster.paused = True
    client = Client(cluster.address, timeout_seconds=10)
    thread = client._io._thread
    client.submit(add, 1)
    cluster.wait_tasks(1)
    del client
    gc.collect()
    cluster.go_on()
    thread.join(10)
    assert not thread.is_alive() and len(cluster.ran) == 1 and not cluster.of(Cancel)


class Leaving:
    """A result that ends whoever loads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


def test_a_callback_that_exits_ends_no_other(client: Client, cluster: Any, caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Semaphore(0)
    cluster.paused = True
    futures = [client.submit(add, number) for number in range(2)]
    for future in futures:
        future.add_done_callback(lambda done: sys.exit(1))
        future.add_done_callback(lambda done: called.release())
    cluster.wait_tasks(2)
    cluster.go_on()
    assert called.acquire(timeout=10) and called.acquire(timeout=10)
    assert "SystemExit" in caplog.text


def test_awaiting_a_result_that_exits_when_it_is_loaded(client: Client) -> None:
    async def main() -> None:
        for _ in range(2):
            with pytest.raises(DeserializeError, match="SystemExit"):
                await asyncio.wait_for(client.submit(Leaving), 10)
        assert await asyncio.wait_for(client.submit(add, 1), 10) == 11

    asyncio.run(main())


def test_the_executor_keeps_no_results(client: Client) -> None:
    executor = client.executor()
    futures = [executor.submit(add, number) for number in range(100)]
    assert [future.result(10) for future in futures] == list(range(10, 110))
    gone = threading.Semaphore(0)
    for future in futures:
        weakref.finalize(future, gone.release)
    del future, futures
    assert all(gone.acquire(timeout=10) for _ in range(100))
    executor.shutdown()


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
@pytest.mark.timeout(method="thread")  # the other method's timer is taken here
@pytest.mark.filterwarnings("ignore:(?s).*KeyboardInterrupt:pytest.PytestUnraisableExceptionWarning")
# The interpreter leaves a module's file open that it is interrupted in reading.
@pytest.mark.filterwarnings("ignore:(?s).*<_io.FileIO name='.*[.]pyc?':pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_leaves_the_client_usable(client: Client) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    scope: dict[str, Any] = {"__name__": "__main__", "n": 0}
    exec("def changing(x): return x + n", scope)
    interrupted = 0
    try:
        for attempt in range(300):
            try:
                # One that comes in the middle of a finalizer, or of a callback of the collector, is lost: hence others.
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3), 0.1)
                while True:
                    scope["n"] += 1
                    future = client.submit(scope["changing"], 1)
                    assert client.map(abs, range(3)) == [0, 1, 2]
                    assert client.submit(add, 1).result(10) == 11
                    assert future.result(10) == 1 + scope["n"]
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0)
                interrupted += 1
                assert client.submit(add, attempt).result(10) == attempt + 10
                assert client.submit(scope["changing"], 1).result(10) == 1 + scope["n"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 300


# --- serializers ----------------------------------------------------------------------------------------------------


class CountingSerializer(Serializer):
    serialized: list[Any] = []  # noqa: RUF012  # shared on purpose

    @staticmethod
    def serialize(obj: Any) -> bytes:
        CountingSerializer.serialized.append(obj)
        return b"S" + cloudpickle.dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        assert type(payload) is bytes and payload[:1] == b"S"
        return pickle.loads(payload[1:])


def by_keywords(a: int, *, b: int) -> int:
    return a + b


def test_a_serializer_is_called_four_times(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The class by reference, so that what runs in the fake cluster counts in the same list.
    monkeypatch.setitem(sys.modules, CountingSerializer.__module__, sys.modules[__name__])
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    try:
        CountingSerializer.serialized.clear()
        with Client(cluster.address, serializer=CountingSerializer) as client:
            assert client.submit(add, 1, 2).result(10) == 3
            assert CountingSerializer.serialized == [add, 1, 2, 3]
            assert client.submit(by_keywords, 1, b=2).result(10) == 3
            assert client.submit(add, 3, 4).result(10) == 7
            assert CountingSerializer.serialized[4:] == [by_keywords, 1, 2, 3, 3, 4, 7]
            assert sum(len(submit.functions) for submit in cluster.of(Submit)) == 3  # two functions, the class once
            cluster.paused = True
            one = client.submit(add, 5, 6)
            two = client.submit(by_keywords, one, b=one)
            cluster.wait_tasks(2)
            assert cluster.of(Submit)[-1].needs == (one.task_id,)  # once, however often it is an argument
            cluster.go_on()
            assert two.result(10) == 22
            assert client.submit(add, one, two).result(10) == 33
            assert client.submit(add, client.send_object(4), 5).result(10) == 9
            assert client.map(add, range(3), range(3)) == [0, 2, 4]
    finally:
        cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_an_argument_may_submit_to_the_executor_that_is_submitting_it(client: Client) -> None:
    """Finalizers, which may run in the middle of a submission, do the same."""

    class Submitting:
        def __reduce__(self) -> tuple[Any, ...]:
            inner.append(executor.submit(math.sqrt, 16))
            return float, (9.0,)

    inner: list[Any] = []
    with client.executor() as executor:
        assert executor.submit(math.sqrt, Submitting()).result(10) == 3.0
    assert [future.result(10) for future in inner] == [4.0] * len(inner) and inner


def test_an_argument_that_is_serialized_slowly_delays_no_other_use_of_the_executor(client: Client) -> None:
    serializing, may_end = threading.Event(), threading.Event()

    class Slow:
        def __reduce__(self) -> tuple[Any, ...]:
            serializing.set()
            assert may_end.wait(20)
            return float, (9.0,)

    def submit_slow() -> None:
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(math.sqrt, Slow())

    executor = client.executor()
    slow = threading.Thread(target=submit_slow)
    slow.start()
    try:
        assert serializing.wait(10)
        assert executor.submit(math.sqrt, 16).result(10) == 4.0
        executor.shutdown()
    finally:
        may_end.set()
        slow.join(10)
    assert not slow.is_alive()


LOCK = threading.Lock()


CLOSES_OVER = (lambda lock: lambda: lock.locked())(LOCK)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda client: client.submit(print, 1, {"deep": [LOCK]}, end=""),
            "argument 2 -> ['deep'][0] cannot be pickled: <unlocked",
        ),
        (lambda client: client.submit(print, bytes(100_000), [LOCK]), "argument 2 -> [0] cannot be pickled: <unlocked"),
        (lambda client: client.submit(print, 1, end=LOCK), "argument 'end' cannot be pickled: <unlocked"),
        (lambda client: client.map(print, [1, LOCK]), "argument 1 cannot be pickled: <unlocked"),
        (lambda client: client.map(print, iter([1, LOCK])), "argument 1 cannot be pickled: <unlocked"),
        (lambda client: client.submit(CLOSES_OVER), "test_client:<lambda>.<locals>.<lambda>"),
        (
            lambda client: client.get({"a": (abs, 1), "b": (max, "a", LOCK)}, ["b"]),
            "node 'b' of the graph was seriali",
        ),
        (lambda client: client.get({"a": LOCK, "b": (max, "a", 1)}, ["b"]), "node 'b' of the graph was serialized"),
    ],
    ids=["deep", "big", "keyword", "map", "iterator", "function", "node", "data"],
)
def test_what_can_not_be_sent_is_named(client: Client, call: Callable[[Client], object], named: str) -> None:
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object") as caught:
        call(client)
    assert named in "\n".join(caught.value.__dict__["__notes__"])


class OwnPickles(Serializer):
    @staticmethod
    def serialize(obj: Any) -> bytes:
        return cloudpickle.dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return pickle.loads(payload)


class Counted(list[int]):
    """A list that does not know its length."""

    def __len__(self) -> int:
        return -1


def test_faults_of_calls_are_named_in_the_words_of_the_call(client: Client) -> None:
    assert client.map(abs, Counted([-1, 2])) == list(client.imap(abs, Counted([-1, 2]))) == [1, 2]
    with pytest.raises(ValueError, match=r"^timeout is 0, "):
        client.options(timeout=0)
    with pytest.raises(TypeError, match=r"<Future at .* is no future of a client, .*: pass its result"):
        client.submit(abs, [Future()])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": ""}, "name is '': a name has visible characters only, and at least one"),
        ({"name": " "}, "name is ' ': a name has visible"),
        ({"name": "a\x1b[2J"}, r"name is 'a\\x1b\[2J': a name has visible"),
        ({"keys": " "}, "keys: ' ' is not the path of a directory"),
        ({"keys": "~no-such-user/x"}, "keys: '~no-such-user/x': "),
    ],
)
def test_names_and_paths_that_nobody_can_read_are_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Client("tcp://127.0.0.1:1", **given)


def test_an_argument_that_a_serializer_refuses_is_named(cluster: Any) -> None:
    with Client(cluster.address, serializer=OwnPickles) as client, pytest.raises(TypeError) as caught:
        client.submit(print, 1, end=LOCK)
    assert "argument 'end' was serialized" in caught.value.__dict__["__notes__"][0]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda client: client.send_object([1]), "an ObjectReference"),
        (lambda client: client.submit(abs, -1), "a ScalerFuture"),
    ],
)
def test_what_only_arguments_may_hold_is_refused_elsewhere(
    client: Client, make: Callable[[Client], Any], what: str
) -> None:
    held = make(client)
    for use in (
        lambda: client.submit(functools.partial(max, held), 1),
        lambda: client.submit(lambda: held),
        lambda: client.send_object([held]),
    ):
        with pytest.raises(TypeError, match=f"{what} can not be pickled, .*give it to the call itself"):
            use()
