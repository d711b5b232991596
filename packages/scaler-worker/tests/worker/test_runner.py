"""Runner: one reply per run, in order; and what becomes of calls that fail."""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import pickle
import threading
from collections.abc import Callable
from itertools import count, islice
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from scaler_client.futures.results import load_failure
from scaler_client.payloads import pickles
from scaler_protocol.buffers import MAGIC, Payload
from scaler_protocol.errors import (
    DeserializeError,
    ObjectNotFoundError,
    ResultNotSerializableError,
    ScalerError,
    StorageFullError,
    StorageLostError,
    restore,
)
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.ids import function_id, named_function_id
from scaler_protocol.messages import Encoding, Status
from scaler_protocol.outputs import KEPT, StreamOutput
from scaler_protocol.profiles import profile_at
from scaler_protocol.serializer import Serializer, join_parts
from scaler_protocol.tracebacks import traceback_text
from scaler_worker.ipc import frames
from scaler_worker.ipc.cells import REVOKED, RUN
from scaler_worker.ipc.frames import (
    DatagramReturned,
    Definition,
    FunctionMissing,
    InputMissing,
    OutputWritten,
    ReplyReader,
    RunsEnded,
    WorkerReady,
    WorkerRetired,
)
from scaler_worker.ipc.inputs import Input, join_inputs
from scaler_worker.worker.coroutines import run_coroutine
from scaler_worker.worker.invoke import dump_value, load_invoker
from scaler_worker.worker.kept_output import KeptOutput
from scaler_worker.worker.ordered_replies import OrderedReplies
from scaler_worker.worker.output import CapturedOutput
from scaler_worker.worker.preload import Preload, PreloadError
from scaler_worker.worker.runner import RetiredError, Runner
from support.odd_exceptions import ODD, fail_oddly, fail_oddly_later

Done = Callable[[ScalerError | None], object]


TICK = 1_000_000


class Store:
    """Objects in a dict."""

    named = True

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.fetching = self.storing = 0
        self.full = False
        self.put_for: list[tuple[int, int]] = []
        self.soon = False
        """Whether what is put arrives later."""
        self.on_the_way: list[tuple[bytes, Done]] = []

    def may_put_soon(self, size: int) -> bool:
        return self.soon

    def put_soon(self, payload: bytes, task: int, run: int, done: Done) -> bytes:
        reference = self.put(payload, task, run)
        self.on_the_way.append((reference, done))
        return reference

    def arrive(self, at: int = 0, error: ScalerError | None = None) -> None:
        """Storage has what was put, or not."""
        reference, done = self.on_the_way.pop(at)
        if error is not None:
            del self.objects[reference]
        done(error)

    def get(self, reference: bytes) -> bytes:
        if reference not in self.objects:
            raise ObjectNotFoundError
        return self.objects[reference]

    def put(self, payload: Payload, task: int = 0, run: int = 0) -> bytes:
        if self.full:
            raise StorageFullError
        reference = bytes([len(self.objects)]) * 24
        self.objects[reference] = bytes(payload)
        self.put_for.append((task, run))
        return reference


class Bench:
    """A Runner and what it wrote."""

    def __init__(
        self,
        store: Store | None = None,
        capture: Any = lambda send: contextlib.nullcontext(),
        damage: Callable[[], str] = str,
        may_have_changed: Callable[[], bool] = bool,
        output_limit: int = 0,
        allow_functions: tuple[str, ...] = (),
    ) -> None:
        self.output = KeptOutput(
            output_limit, "w", "vm", lambda: self.core.run_and_task, lambda *said: self.core.write_output(*said)
        )
        self.word = memoryview(bytearray(24)).cast("Q")
        self.written: list[Any] = []
        self.ticks = count(step=TICK)
        reader = ReplyReader()
        self.core = Runner(
            name="w",
            host="vm",
            number=3,
            pid=44,
            cells=self.word,
            replies=OrderedReplies(lambda reply: self.written.extend(reader.feed(reply))),
            capture=capture,
            finish=run_coroutine,
            clock=lambda: next(self.ticks),
            cpu_clock=lambda: next(self.ticks),
            peak_memory=lambda: 5,
            damage=damage,
            may_have_changed=may_have_changed,
            store=store,
            output=self.output,
            allow_functions=allow_functions,
        )

    def tick(self, times: int) -> int:
        """Let time pass; returns how much."""
        return sum(TICK for _ in islice(self.ticks, times))

    def define(self, handle: int, function: Any, encoding: int = Encoding.PICKLE, stream_output: int = 0) -> None:
        body = cloudpickle.dumps(function)
        self.core.take(
            frames.pack_definition(Definition(handle, function_id(body), "f", body, encoding, stream_output))
        )

    def run(self, sequence: int, *calls: tuple[int, int, bytes], flag: int = 0) -> None:
        runs, handles, payloads = zip(*calls, strict=True)
        ones = [1] * len(runs)
        flags = [flag] * len(runs)
        self.core.take(frames.pack_tasks(sequence, runs, runs, handles, payloads, ones, flags))


def call(*args: Any, **kwargs: Any) -> bytes:
    return pickle.dumps((args, kwargs))


def assert_lost(bench: Bench, run: int, kind: type[ScalerError] = ObjectNotFoundError) -> None:
    """The last run has failed because of a loss, which names it."""
    event = bench.written[-1]
    error = restore(event.payloads[-1])
    assert (event.runs[-1], event.statuses[-1]) == (run, Status.FAILED)
    assert type(error) is kind and error.details == {"run": run}


def test_a_result_too_big_for_a_message_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 2**32)

    def huge() -> pickle.PickleBuffer:
        with open(path, "rb") as file:
            return pickle.PickleBuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    bench = Bench()
    bench.define(1, huge)
    bench.define(2, lambda: 5)
    bench.run(1, (10, 1, call()), (11, 2, call()))
    refused, other = bench.written
    assert refused.statuses == [Status.FAILED] and pickle.loads(other.payloads[0]) == 5
    with pytest.raises(
        ScalerError, match=r"a result of 4,294,967,\d+ bytes is too big .*: start an object storage server"
    ):
        raise restore(refused.payloads[0])


def test_one_record_per_run_in_order() -> None:
    bench = Bench()
    bench.core.ready()
    bench.define(1, lambda x: x + 1)
    bench.run(1, (10, 1, call(1)), (11, 9, call(1)), (12, 1, call(2)))
    assert [type(event) for event in bench.written] == [WorkerReady, RunsEnded, FunctionMissing, RunsEnded]
    assert [pickle.loads(bench.written[at].payloads[0]) for at in (1, 3)] == [2, 3]
    profile = profile_at(bench.written[1].profiles[0], 0)
    assert profile.duration_us > 0 and profile[2:] == (5, 44, 3, 1, 0, 0)
    assert bench.word[RUN] == 12 and bench.core.current() is None


def test_what_is_revoked_is_returned() -> None:
    bench = Bench()

    def revoke() -> None:
        bench.word[REVOKED] = 1

    bench.define(1, len)
    bench.core._functions.invokers[2] = lambda call: (revoke(), (Status.VALUE, b""))[1]  # type: ignore[func-returns-value]
    bench.run(1, (10, 1, call([])), (11, 2, b""), (12, 1, call([])), (13, 1, call([])))
    bench.run(2, (14, 1, call([])))
    kinds = [event.runs if isinstance(event, RunsEnded) else event for event in bench.written]
    assert kinds == [[10], [11], DatagramReturned(12, 1), [14]]


def test_the_current_task_is_known_while_it_runs() -> None:
    bench = Bench()
    seen: list[Any] = []
    bench.core._functions.invokers[1] = lambda call: (Status.VALUE, seen.append(bench.core.current()) or b"")  # type: ignore[func-returns-value]
    bench.run(1, (10, 1, b""))
    assert (seen[0].id, seen[0]._run, seen[0].attempt, seen[0].worker) == (10, 10, 1, "w")


def test_inputs_and_references() -> None:
    store = Store()
    bench = Bench(store)
    seen: list[Any] = []
    bench.core._functions.invokers[1] = lambda call: (Status.VALUE, seen.append((call, dict(bench.core.inputs))) or b"")  # type: ignore[func-returns-value]
    stored = store.put(b"big call")
    big_input = store.put(b"big input")
    joined = join_inputs(stored, [Input(5, frames.PLAIN, b"five"), Input(6, frames.STORED, big_input)])
    bench.run(1, (10, 1, joined), flag=frames.STORED | frames.WITH_INPUTS)
    assert seen == [(b"big call", {5: (False, b"five"), 6: (True, big_input)})]
    assert not bench.core.inputs
    bench.run(2, (11, 1, b"nowhere"), flag=frames.STORED)
    assert_lost(bench, 11)


def test_big_results_go_to_the_store_where_there_is_one() -> None:
    store = Store()
    for bench in (Bench(), Bench(store)):
        bench.define(1, lambda: bytes(INLINE_LIMIT + 1))
        bench.run(1, (10, 1, call()))
        [event] = bench.written
        assert event.stored == ([0] if bench.core._store else [])
        stored = store.objects.get(event.payloads[0], event.payloads[0])
        assert pickles.load(stored) == bytes(INLINE_LIMIT + 1)


def test_a_result_up_to_the_size_that_its_run_was_granted_is_in_the_reply() -> None:
    store = Store()
    bench = Bench(store)
    bench.define(1, bytes)
    bench.run(1, (10, 1, call(50_000)), (11, 1, call(2**16)), flag=2 << frames.RESULT_SHIFT)
    bench.run(2, (12, 1, call(50_000)), flag=1 << frames.RESULT_SHIFT)
    payloads = [payload for event in bench.written for payload in event.payloads]
    assert pickles.load(payloads[0]) == bytes(50_000)
    assert [pickles.load(store.objects[each]) for each in payloads[1:]] == [bytes(2**16), bytes(50_000)]


def test_a_granted_call_may_be_stored_and_take_inputs() -> None:
    store = Store()
    bench = Bench(store)
    bench.define(1, bytes)
    bench.run(1, (10, 1, store.put(call(50_000))), flag=frames.STORED | 2 << frames.RESULT_SHIFT)
    [event] = bench.written
    assert not event.stored and pickles.load(event.payloads[0]) == bytes(50_000)


def test_big_arrays_lie_beside_their_pickles_both_ways() -> None:
    store = Store()
    bench = Bench(store)
    bench.define(1, lambda array: array + 1)
    reference = store.put(pickles.dump(((np.arange(INLINE_LIMIT),), {})))
    bench.run(1, (10, 1, reference), flag=frames.STORED)
    [event] = bench.written
    result = store.objects[event.payloads[0]]
    assert result.startswith(MAGIC) and np.array_equal(pickles.load(result), np.arange(INLINE_LIMIT) + 1)


def test_big_exceptions_are_stored_and_a_storage_that_takes_nothing_is_an_error() -> None:
    store = Store()
    bench = Bench(store)

    def explode() -> None:
        raise ValueError("x" * INLINE_LIMIT)

    bench.define(1, explode)
    bench.run(1, (10, 1, call()))
    event = bench.written[-1]
    assert (event.statuses, event.stored, store.put_for) == ([Status.RAISED], [0], [(10, 10)])
    store.full = True
    bench.run(2, (11, 1, call()))
    event = bench.written[-1]
    assert (event.statuses, event.stored) == ([Status.FAILED], [])
    assert isinstance(restore(event.payloads[0]), StorageFullError)
    store.named = False
    bench.run(3, (12, 1, call()))
    assert bench.written[-1].statuses == [Status.RAISED] and len(bench.written[-1].payloads[0]) > INLINE_LIMIT


def test_the_next_run_does_not_wait_for_storage_and_its_record_does() -> None:
    store = Store()
    store.soon = True
    bench = Bench(store)
    bench.define(1, lambda size: bytes(size))
    bench.run(1, *((run, 1, call(size)) for run, size in enumerate((1, 20_000, 20_001, 2, 20_002), 10)))
    bench.run(2, (15, 1, call(3)), (16, 9, call()))
    assert [event.runs for event in bench.written] == [[10]]
    store.arrive(1)
    assert len(bench.written) == 1
    store.arrive(0)
    assert [run for event in bench.written for run in event.runs] == [10, 11, 12, 13]
    store.arrive(error=StorageFullError("full"))
    *ended, last, missed = bench.written
    assert [run for event in (*ended, last) for run in event.runs] == [10, 11, 12, 13, 14, 15] and missed.run == 16
    outcomes = [outcome for event in (*ended, last) for outcome in zip(event.statuses, event.payloads, strict=True)]
    assert [len(pickles.load(store.objects.get(payload, payload))) for _, payload in outcomes if _ == Status.VALUE] == [
        1, 20_000, 20_001, 2, 3,
    ]  # fmt: skip
    status, reason = outcomes[4]
    assert status == Status.FAILED and isinstance(restore(reason), StorageFullError)


def test_what_storage_refuses_at_once_is_the_outcome_of_its_run_alone() -> None:
    store = Store()
    store.soon = store.full = True
    bench = Bench(store)
    bench.define(1, lambda size: bytes(size))
    bench.run(1, (10, 1, call(20_000)), (11, 1, call(1)))
    [event, following] = bench.written
    assert isinstance(restore(event.payloads[0]), StorageFullError) and following.statuses == [Status.VALUE]


@pytest.mark.parametrize("soon", [False, True])
def test_a_result_that_is_lost_on_the_way_to_storage_names_its_run(soon: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.soon = soon
    bench = Bench(store)
    bench.define(1, bytes)
    if not soon:
        monkeypatch.setattr(store, "put", _lose_server)
    bench.run(1, (10, 1, call(20_000)))
    if soon:
        store.arrive(error=StorageLostError("gone"))
    assert_lost(bench, 10, StorageLostError)


def _lose_server(*args: object) -> bytes:
    raise StorageLostError("gone")


@pytest.mark.parametrize("error", [None, StorageFullError("full")])
def test_a_run_waits_for_what_it_takes_of_the_one_before(error: ScalerError | None) -> None:
    store = Store()
    store.soon = True
    bench = Bench(store)
    bench.define(1, lambda: bytes(20_000))
    bench.core._functions.invokers[2] = lambda call: (Status.VALUE, repr(dict(bench.core.inputs)).encode())
    bench.run(1, (10, 1, call()))
    [(reference, _)] = store.on_the_way
    joined = join_inputs(call(), [Input(10, frames.FOLLOWS, b"")])
    arriving = threading.Timer(0.05, store.arrive, (0, error))
    arriving.start()
    bench.run(2, (11, 2, joined), flag=frames.WITH_INPUTS | frames.FOLLOWS)
    arriving.join()
    assert len(bench.written) == 2
    if error is None:
        assert bench.written[1].payloads == [repr({10: (True, reference)}).encode()]
    else:
        assert isinstance(bench.written[1], InputMissing)


def test_a_forked_process_does_not_wait_to_say_what_its_parent_does() -> None:
    said: list[bytes] = []
    answers = OrderedReplies(said.append)
    answer = answers.reserve()
    answers.write(b"behind")
    with answers._lock:  # as another thread may have it at that moment
        pid = os.fork()
    if not pid:
        answers.write(b"of the child")
        os._exit(0 if said == [b"of the child"] else 1)
    assert os.waitpid(pid, 0)[1] == 0 and not said
    answer.stored(None)
    answer.complete(b"first", lambda error: b"")
    assert said == [b"first", b"behind"]


def test_a_record_says_how_long_its_run_has_waited_for_storage() -> None:
    class SlowStore(Store):
        def get(self, reference: bytes) -> bytes:
            self.fetching += bench.tick(1)
            return super().get(reference)

        def put(self, payload: Payload, task: int = 0, run: int = 0) -> bytes:
            self.storing += bench.tick(2)
            return super().put(payload, task, run)

    store = SlowStore()
    bench = Bench(store)
    bench.define(1, lambda size: bytes(size))
    bench.run(1, (10, 1, Store.put(store, call(2 * INLINE_LIMIT))), flag=frames.STORED)
    bench.run(2, (11, 1, call(1)))
    store.fetching = 10**15  # many threads of a task at once
    bench.run(3, (12, 1, call(1)))
    waited, plain, odd = (profile_at(event.profiles[0], 0) for event in bench.written[-3:])
    assert (waited.duration_us, waited.fetch_us, waited.store_us) == (plain.duration_us + 3000, 1000, 2000)
    assert (plain.fetch_us, plain.store_us) == (0, 0)
    assert (odd.fetch_us, odd.store_us) == (odd.duration_us, 0)


def test_functions_are_fetched_when_they_are_first_run() -> None:
    store = Store()
    bench = Bench(store)
    reference = store.put(cloudpickle.dumps(lambda x: x + 1))
    bench.core.take(
        frames.pack_definition(
            Definition(1, function_id(reference, stored=True), "f", reference, 0, False, body_stored=True)
        )
    )
    for run in (10, 11):
        bench.run(run, (run, 1, call(1)))
        assert pickle.loads(bench.written[-1].payloads[0]) == 2
    lost = Definition(2, function_id(b"nowhere", stored=True), "g", b"nowhere", 0, False, body_stored=True)
    bench.core.take(frames.pack_definition(lost))
    bench.run(12, (12, 2, call(1)))
    assert_lost(bench, 12)


@pytest.mark.parametrize(
    "forged",
    [
        Definition(1, function_id(b"another"), "f", cloudpickle.dumps(print), 0, 0),
        Definition(1, named_function_id("math:sqrt"), "os:getpid", b"", Encoding.JSON, 0),
        Definition(1, function_id(cloudpickle.dumps(len)), "f", cloudpickle.dumps(len), 2, 0, b"s" * 16, b"class"),
        Definition(1, function_id(b"reference"), "f", b"reference", 0, 0, body_stored=True),
    ],
)
def test_a_function_that_is_not_the_one_of_its_id_is_not_run(forged: Definition) -> None:
    bench = Bench(Store())
    bench.core.take(frames.pack_definition(forged))
    bench.run(10, (10, 1, call(1)))
    error = restore(bench.written[-1].payloads[0])
    assert isinstance(error, DeserializeError) and "is not the BLAKE2b-128 of the" in str(error)


@pytest.mark.parametrize(
    ("name", "body", "encoding", "fault"),
    [
        ("math:sqrt", b"", Encoding.JSON, ""),
        ("json:dumps", b"", Encoding.JSON, ""),
        ("os:system", b"", Encoding.JSON, "no pattern admits its name"),
        ("math:sqrt.__call__", b"", Encoding.JSON, "no pattern admits its name"),
        ("jsonxdumps:dumps", b"", Encoding.JSON, "no pattern admits its name"),
        ("math:sqrt", b"", Encoding.PICKLE, "came as code"),
        ("math:sqrt", cloudpickle.dumps(print), Encoding.JSON, "came as code"),
        ("math:sqrt", cloudpickle.dumps(print), Encoding.PICKLE, "came as code"),
    ],
)
def test_only_functions_that_are_allowed_are_called(name: str, body: bytes, encoding: int, fault: str) -> None:
    bench = Bench(allow_functions=("math:*", "json:dumps"))
    function = function_id(body) if body else named_function_id(name)
    bench.core.take(frames.pack_definition(Definition(1, function, name, body, encoding, 0)))
    bench.run(10, (10, 1, b"[4]"))
    [status], [payload] = bench.written[-1].statuses, bench.written[-1].payloads
    if fault:
        text = str(restore(payload))
        assert status == Status.FAILED and f"{name!r} is not allowed" in text and fault in text
        assert text.endswith("(--allow-functions math:*, json:dumps)")
    else:
        assert status == Status.VALUE and json.loads(payload) in (2.0, "4")


def test_an_argument_that_is_not_there_is_named() -> None:
    class Lost:
        def __reduce__(self) -> Any:
            return _lose, ()

    bench = Bench()
    bench.define(1, lambda x: x)
    bench.run(1, (10, 1, cloudpickle.dumps(((Lost(),), {}))))
    assert_lost(bench, 10)


def _lose() -> None:
    raise ObjectNotFoundError


def test_output_comes_before_the_result() -> None:
    bench = Bench(capture=CapturedOutput)
    bench.define(1, lambda: print("hello"), stream_output=StreamOutput.PLAIN)
    bench.run(1, (10, 1, call()))
    assert bench.written[0] == OutputWritten(10, 1, b"hello\n")
    assert isinstance(bench.written[1], RunsEnded)


def test_kept_output_comes_before_the_result_whoever_else_reads_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bench = Bench(capture=CapturedOutput, output_limit=100)
    monkeypatch.setattr("sys.stdout", bench.output.stream(1))
    bench.define(1, lambda: print("hello", end=""))
    bench.define(2, lambda: print("hello"), stream_output=StreamOutput.PLAIN)
    bench.define(3, lambda: None)
    for run, handle in ((10, 1), (11, 2), (12, 3)):
        bench.run(run, (run, handle, call()))
    kept = [OutputWritten(10, 1 + KEPT, b"hello")], [OutputWritten(11, 1, b"hello\n"), OutputWritten(11, 3, b"hello\n")]
    ended = [position for position, event in enumerate(bench.written) if isinstance(event, RunsEnded)]
    assert ended == [1, 4, 5]
    assert (bench.written[:1], bench.written[2:4]) == kept
    assert capfd.readouterr().out == "hello", "what the client reads is not printed here"


def test_lines_of_output_behind_task_and_worker() -> None:
    def talk() -> None:
        print("one\ntwo")
        print("three", end="")

    bench = Bench(capture=CapturedOutput)
    bench.define(1, talk, stream_output=StreamOutput.PREFIXED)
    bench.run(1, (10, 1, call()))
    texts = [event.text for event in bench.written if isinstance(event, OutputWritten)]
    assert b"".join(texts) == b"[a w@vm] one\n[a w@vm] two\n[a w@vm] three\n"


class Marked(Serializer):
    """Marks what it made, and counts."""

    calls = 0

    @staticmethod
    def serialize(obj: Any) -> bytes:
        Marked.calls += 1
        return b"!" + cloudpickle.dumps(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        assert type(payload) is bytes and payload[:1] == b"!"
        return pickle.loads(payload[1:])


def test_calls_of_a_custom_serializer() -> None:
    body = Marked.serialize(lambda x, *, y: x - y)
    definition = Definition(1, b"f" * 16, "f", body, Encoding.PARTS, False, b"s" * 16, cloudpickle.dumps(Marked))
    invoker = load_invoker(definition, run_coroutine)
    status, payload = invoker(join_parts(["", "y"], [Marked.serialize(5), Marked.serialize(3)]))
    assert status == Status.VALUE and Marked.deserialize(bytes(payload)) == 2
    status, payload = invoker(b"\x01")
    assert isinstance(restore(bytes(payload)), DeserializeError)


class Careless(Serializer):
    """Makes text of everything."""

    @staticmethod
    def serialize(obj: Any) -> Any:
        return repr(obj)

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        return payload.decode()


def careless(name: str, body: bytes) -> Definition:
    return Definition(1, b"f" * 16, name, body, Encoding.PARTS, False, b"s" * 16, cloudpickle.dumps(Careless))


def test_a_serializer_that_returns_the_wrong_type_for_a_result_is_named() -> None:
    status, payload = load_invoker(careless("builtins:len", b""), run_coroutine)(join_parts([""], [b"abc"]))
    error = restore(bytes(payload))
    assert status == Status.FAILED and isinstance(error, ResultNotSerializableError)
    assert "Careless.serialize returned str, expected bytes" in str(error)


def test_a_serializer_that_makes_no_function_is_named() -> None:
    wanted = (
        r"function odd could not be loaded: TypeError: Careless\.deserialize returned str for a function, expected a"
    )
    with pytest.raises(DeserializeError, match=wanted):
        load_invoker(careless("odd", b"body"), run_coroutine)


@pytest.mark.parametrize("value", [1, "x", None, (1, 2.0, b"x"), (), ([],), {"a": 1}, tuple(range(100))])
def test_results(value: Any) -> None:
    assert pickles.load(bytes(dump_value(value))) == value


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (b"[NaN]", "NaN is not JSON: send null, or a text"),
        (b"[[-Infinity]]", "-Infinity is not JSON"),
        (b'["\xed\xa0\x80"]', "'utf-8' codec can't decode"),
        ("[1]".encode("utf-16"), "'utf-8' codec can't decode"),
        (b'{"args": [1], "args": [2]}', "an object has two members 'args': leave one out"),
        (b'[{"x": 1, "x": 2}]', "an object has two members 'x': leave one out"),
        (b'{"arguments": [1]}', "without 'arguments'"),
        (b'{"args": "44"}', r'or {"args": \[...\], "kwargs": {...}}: args is "44"'),
        (b'{"args": {"a": 1}}', "args is an object"),
        (b'{"kwargs": [4]}', "kwargs is an array"),
        (b"null", "not null"),
        (b'"1"', r'a call is an array of arguments, or {"args": \[...\], "kwargs": {...}}, not "1"'),
    ],
)
def test_json_that_is_no_call_is_refused(call: bytes, wanted: str) -> None:
    invoker = load_invoker(Definition(1, b"", "operator:index", b"", Encoding.JSON, False), run_coroutine)
    status, payload = invoker(call)
    assert status == Status.FAILED
    with pytest.raises(DeserializeError, match=wanted):
        raise restore(bytes(payload))


@pytest.mark.parametrize("name", ["", ":", "sqrt", "math.sqrt", "math:", ":sqrt", ".math:sqrt", "../math:sqrt"])
def test_a_name_that_no_function_has_says_what_a_name_is(name: str) -> None:
    with pytest.raises(DeserializeError, match="not the name of a function: give module:qualname, such as math:sqrt"):
        load_invoker(Definition(1, b"", name, b"", Encoding.JSON, False), run_coroutine)


def test_what_a_call_in_json_raises_can_be_read_without_python() -> None:
    status, payload = load_invoker(Definition(1, b"", "operator:truediv", b"", Encoding.JSON, False), run_coroutine)(
        b"[1, 0]"
    )
    told = json.loads(bytes(payload))
    assert (status, told["error"], told["message"]) == (Status.RAISED, "ZeroDivisionError", "division by zero")
    assert told["details"]["traceback"].endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("function", [fail_oddly, fail_oddly_later])
def test_what_a_task_raises_is_sent_whatever_its_class_makes_of_attributes(function: Any, name: str) -> None:
    bench = Bench()
    bench.define(1, function)
    bench.run(1, (10, 1, call(name)), (11, 1, call(name)))
    for event in bench.written:
        assert event.statuses == [Status.RAISED]
        error, trace = load_failure(Status.RAISED, event.payloads[0])
        assert type(error) is type(ODD[name]()) and error.args == ODD[name]().args
        assert trace is not None and trace.tb_frame.f_code.co_name == function.__name__
        text = traceback_text(event.payloads[0])
        assert function.__name__ in text and type(error).__name__ in text and "worker_core" not in text


def import_mine() -> None:
    importlib.import_module("mine.part")


def change_array() -> None:
    raise ValueError("assignment destination is read-only")


@pytest.mark.parametrize(
    ("function", "remedies"),
    [
        (import_mine, ["PYTHONPATH", "client.upload(mine)"]),
        (change_array, ["array.copy()", "Parallel(max_nbytes=None)"]),
    ],
)
def test_the_remedy_is_a_note_of_what_a_task_raises(function: Callable[[], None], remedies: list[str]) -> None:
    body = cloudpickle.dumps(function)
    defined = Definition(1, function_id(body), "f", body, Encoding.PICKLE, 0)
    status, payload = load_invoker(defined, run_coroutine)(pickle.dumps(((), {})))
    text = traceback_text(bytes(payload))
    assert status == Status.RAISED and all(remedy in text for remedy in remedies)


@pytest.mark.parametrize("name", ODD)
def test_what_a_call_in_json_raises_is_told_whatever_its_class_makes_of_attributes(name: str) -> None:
    definition = Definition(1, b"", "support.odd_exceptions:fail_oddly", b"", Encoding.JSON, False)
    status, payload = load_invoker(definition, run_coroutine)(json.dumps([name]).encode())
    assert (status, json.loads(bytes(payload))["error"]) == (Status.RAISED, type(ODD[name]()).__name__)


def test_a_serializer_that_gives_no_bytes() -> None:
    invoker = load_invoker(Definition(1, b"", "math:sqrt", b"", Encoding.JSON, False), run_coroutine)
    assert invoker(b"[4]") == (Status.VALUE, b"2.0")
    invoker = load_invoker(Definition(1, b"", "builtins:set", b"", Encoding.JSON, False), run_coroutine)
    assert isinstance(restore(bytes(invoker(b"[]")[1])), ResultNotSerializableError)


def test_json_that_others_cannot_read_is_no_result() -> None:
    invoker = load_invoker(Definition(1, b"", "builtins:float", b"", Encoding.JSON, False), run_coroutine)
    assert isinstance(restore(bytes(invoker(b'["nan"]')[1])), ResultNotSerializableError)


@pytest.mark.parametrize("spec", ["", "no colon", "os", "os:", "os:f(", "os:f(x)", "os:f() or 1", "os:f(**{})()"])
def test_preloads_that_are_none(spec: str) -> None:
    with pytest.raises(PreloadError, match=r"preload must be in 'module\.sub:func\(\.\.\.\)' format"):
        Preload.parse(spec)


def test_preloads() -> None:
    assert Preload.parse("a.b:c") == Preload("a.b", "c")
    assert Preload.parse("a:c(1, 'x', k=[2])") == Preload("a", "c", (1, "x"), (("k", [2]),))
    with pytest.raises(PreloadError, match="callable"):
        Preload.parse("os:environ").run()


def takes(task: int, needed: int) -> tuple[int, int, bytes]:
    """A call with what the run before made."""
    joined = join_inputs(call(), [Input(needed, frames.FOLLOWS, b"")])
    return task, 1, joined


def test_a_run_takes_what_the_one_before_made() -> None:
    bench = Bench()
    bench.core._functions.invokers[1] = lambda call: (
        Status.VALUE,
        b"+".join((b"1", *(made for _, made in bench.core.inputs.values()))),
    )
    bench.core._functions.invokers[2] = lambda call: (Status.RAISED, b"error")
    chain = frames.WITH_INPUTS | frames.FOLLOWS
    bench.run(1, (10, 1, call()))
    bench.run(2, takes(11, 10), takes(12, 11), takes(13, 11), takes(14, 13), flag=chain)
    assert [type(event) for event in bench.written] == [RunsEnded] * 3 + [InputMissing] * 2
    assert [event.payloads[0] for event in bench.written[:3]] == [b"1", b"1+1", b"1+1+1"]
    bench.written.clear()
    bench.run(3, (20, 2, call()))
    bench.run(4, takes(21, 20), flag=chain)
    bench.run(5, (30, 9, call()))
    bench.run(6, takes(31, 30), flag=chain)
    assert [type(event) for event in bench.written] == [RunsEnded, InputMissing, FunctionMissing, InputMissing]


def test_a_run_does_not_take_what_an_earlier_run_of_the_task_made() -> None:
    bench = Bench()
    bench.core._functions.invokers[1] = lambda call: (Status.VALUE, b"made")
    chain = frames.WITH_INPUTS | frames.FOLLOWS
    bench.run(1, (10, 1, call()))
    bench.core.take(frames.pack_tasks(2, (20,), (11,), (1,), [takes(11, 10)[2]], (1,), (chain,)))
    assert [type(event) for event in bench.written] == [RunsEnded, InputMissing]
    assert bench.written[1] == InputMissing(20), "run 19 is the one of the chain, and was not here"


class Damageable:
    """A process that calls with True damage."""

    def __init__(self) -> None:
        self.damaged = ""
        self.examined = 0

    def find(self) -> str:
        self.examined += 1
        return self.damaged

    def run(self, damage: bool, fail: bool) -> None:
        if damage:
            self.damaged = "it is broken"
        if fail:
            raise ValueError


def test_what_fails_behind_a_run_that_may_have_done_the_damage_is_not_answered() -> None:
    process = Damageable()
    bench = Bench(damage=process.find)
    bench.core._functions.invokers[1] = load_invoker(
        Definition(1, b"f" * 16, "f", cloudpickle.dumps(len), 0, 0), run_coroutine
    )
    bench.core._functions.invokers[2] = _invoker_of(process)
    calls = [(10, 2, call(False, True)), (11, 2, call(True, False)), (12, 2, call(False, True)), (13, 1, call([]))]
    with pytest.raises(RetiredError, match="it is broken"):
        bench.run(1, *calls)
    assert [type(event) for event in bench.written] == [RunsEnded, RunsEnded, WorkerRetired]
    assert [run for event in bench.written[:2] for run in event.runs] == [10, 11]
    assert bench.written[-1].text == "it is broken" and bench.word[RUN] == 12


def test_a_run_that_has_done_the_damage_for_certain_ends_as_it_ended() -> None:
    process = Damageable()
    bench = Bench(damage=process.find)
    bench.core._functions.invokers[2] = _invoker_of(process)
    bench.core.examine()
    with pytest.raises(RetiredError):
        bench.run(1, (10, 2, call(True, True)), (11, 2, call(False, False)), (12, 2, call(False, False)))
    ended, returned, retired = bench.written
    assert (ended.runs, ended.statuses) == ([10], [Status.RAISED])
    assert (returned, retired) == (DatagramReturned(11, 1), WorkerRetired("it is broken"))


def test_damage_that_makes_nothing_fail_is_found_by_and_by_and_costs_nothing_until_then() -> None:
    process = Damageable()
    bench = Bench(damage=process.find)
    bench.core._functions.invokers[2] = _invoker_of(process)
    bench.run(1, *((run, 2, call(run == 20, False)) for run in range(10, 30)))
    assert process.examined == 0 and sum(len(event.runs) for event in bench.written) == 20
    with pytest.raises(RetiredError):
        bench.core.examine()
    assert bench.written[-1] == WorkerRetired("it is broken")


def test_a_run_that_has_done_damage_is_followed_by_no_other() -> None:
    process = Damageable()
    bench = Bench(damage=process.find, may_have_changed=lambda: bool(process.damaged))
    bench.core._functions.invokers[2] = _invoker_of(process)
    with pytest.raises(RetiredError):
        bench.run(1, *((run, 2, call(run == 12, False)) for run in range(10, 15)))
    assert [run for event in bench.written[:3] for run in event.runs] == [10, 11, 12]
    assert bench.written[3:] == [DatagramReturned(13, 1), WorkerRetired("it is broken")] and process.examined == 1


def _invoker_of(process: Damageable) -> Any:
    def run(payload: Any) -> tuple[int, bytes]:
        args, _ = pickle.loads(payload)
        try:
            process.run(*args)
        except ValueError:
            return Status.RAISED, b"raised"
        return Status.VALUE, b"done"

    return run
