"""From an encoded call to a Symphony task and back, in every encoding."""

from __future__ import annotations

import json
import pickle
from typing import Any

import cloudpickle
import pytest

from scaler_client.payloads import pickles
from scaler_protocol.errors import restore
from scaler_protocol.ids import function_id, named_function_id
from scaler_protocol.messages import Encoding, Group, Status
from scaler_protocol.profiles import profile_at
from scaler_worker.agent.core.records import Entry, FunctionKind, TaskGroup
from scaler_worker.ipc.frames import PLAIN, WITH_INPUTS, Definition
from scaler_worker.ipc.inputs import Input, join_inputs
from scaler_worker.symphony.codec import CallCodec, ProxyRuntime
from scaler_worker.symphony.events import CallEnded
from scaler_worker.worker.object_store import WorkerObjectStore


def codec(*allow_functions: str) -> CallCodec:
    store = WorkerObjectStore(lambda: "", b"secret", "proxy")
    return CallCodec(ProxyRuntime(store, lambda: 1), store, allow_functions)


def entry(call: bytes, flag: int = PLAIN, attempt: int = 1) -> Entry:
    group = Group(b"f")
    return 5, 6, TaskGroup(group, FunctionKind(1, group), 0.0), call, attempt, flag


def definition(function: Any, encoding: int = Encoding.PICKLE) -> Definition:
    body = cloudpickle.dumps(function)
    return Definition(1, function_id(body), "test:f", body, encoding, 0, b"", b"")


def executed(made: Entry, defined: Definition) -> CallEnded:
    """Encode, run as a service does, decode."""
    coder = codec()
    written = coder.encode(made, defined)
    assert isinstance(written, bytes), written
    fn, *args = cloudpickle.loads(written)
    return coder.decode(made, defined, cloudpickle.dumps(fn(*args)), 3)


def test_a_call_and_its_profile() -> None:
    ended = executed(entry(pickle.dumps(((3,), {"b": 4})), attempt=2), definition(lambda a, b: a * b))
    assert (ended.status, pickles.load(ended.payload)) == (Status.VALUE, 12)
    profile = profile_at(ended.profile, 0)
    assert (profile.worker, profile.attempt) == (3, 2)


def test_json() -> None:
    named = Definition(1, named_function_id("operator:add"), "operator:add", b"", Encoding.JSON, 0, b"", b"")
    ended = executed(entry(b"[2, 3]"), named)
    assert (ended.status, json.loads(ended.payload)) == (Status.VALUE, 5)
    ended = executed(entry(b'[2, "x"]'), named)
    assert ended.status == Status.RAISED and json.loads(ended.payload)["error"] == "TypeError"


def test_an_exception_keeps_its_type() -> None:
    ended = executed(entry(pickle.dumps(((0,), {}))), definition(lambda x: 1 / x))
    error, text = pickles.load(ended.payload)
    assert ended.status == Status.RAISED and type(error) is ZeroDivisionError
    assert "ZeroDivisionError" in text


@pytest.mark.parametrize("call", [b"no pickle", pickle.dumps(3)])
def test_a_call_that_cannot_be_loaded(call: bytes) -> None:
    ended = codec().encode(entry(call), definition(abs))
    assert isinstance(ended, CallEnded) and ended.status == Status.FAILED
    assert "the arguments could not be loaded" in str(restore(ended.payload))


def test_a_function_that_is_not_the_one_of_its_id() -> None:
    forged = Definition(1, named_function_id("math:sqrt"), "os:getpid", b"", Encoding.JSON, 0, b"", b"")
    ended = codec().encode(entry(b"[]"), forged)
    assert isinstance(ended, CallEnded) and "is not the BLAKE2b-128 of the name of" in str(restore(ended.payload))


def test_a_function_that_cannot_be_loaded() -> None:
    broken = Definition(1, function_id(b"no pickle"), "test:f", b"no pickle", Encoding.PICKLE, 0, b"", b"")
    ended = codec().encode(entry(pickle.dumps(((), {}))), broken)
    assert isinstance(ended, CallEnded) and "test:f could not be loaded" in str(restore(ended.payload))


def test_a_function_that_is_not_allowed() -> None:
    ended = codec("math:*").encode(entry(pickle.dumps(((), {}))), definition(abs))
    assert isinstance(ended, CallEnded) and "'test:f' is not allowed" in str(restore(ended.payload))


def test_an_output_that_is_none_of_ours() -> None:
    ended = codec().decode(entry(b""), definition(abs), b"nonsense", 0)
    assert ended.status == Status.FAILED and "the output of Symphony cannot be used" in str(restore(ended.payload))


def test_an_input_of_another_task_is_within_reach_while_the_call_is_loaded() -> None:
    made = codec()
    inputs = join_inputs(pickle.dumps(((), {})), [Input(9, PLAIN, pickle.dumps("result"))])
    seen: list[Any] = []
    runtime = made._runtime
    loaded = made._load(definition(abs))

    def load_call(call: bytes) -> tuple[tuple[()], dict[str, Any]]:
        seen.append(dict(runtime.inputs))
        return (), {}

    made._functions[1] = loaded._replace(load_call=load_call)
    made.encode(entry(inputs, WITH_INPUTS), definition(abs))
    assert seen == [{9: (False, pickle.dumps("result"))}] and not runtime.inputs
