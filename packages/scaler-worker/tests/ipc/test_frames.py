"""Framing: what goes in at one end comes out at the other, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.messages import Blocked, Done, Message
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE
from scaler_worker.ipc import frames
from scaler_worker.ipc.client_messages import MessageReader, pack_message
from scaler_worker.ipc.frames import (
    OUTPUT,
    READY,
    REPLY,
    RESULT,
    STORED_RESULT,
    Definition,
    OutputWritten,
    ReplyReader,
    RunsEnded,
    WorkerReady,
)
from scaler_worker.ipc.inputs import Input, join_inputs, split_inputs

NUMBERS = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.binary(max_size=50)), min_size=1))
def test_tasks(tasks: list[tuple[int, int, int, bytes]]) -> None:
    runs, ids, handles, calls = zip(*tasks, strict=True)
    attempts, flags = [3] * len(tasks), [1] * len(tasks)
    datagram = frames.pack_tasks(9, runs, ids, handles, calls, attempts, flags)
    columns = frames.unpack_tasks(datagram)
    assert (columns.sequence, columns.runs, columns.tasks, columns.handles) == (9, runs, ids, handles)
    assert (columns.attempts, columns.flags) == (tuple(attempts), tuple(flags))
    at = columns.start
    for length, call in zip(columns.lengths, calls, strict=True):
        assert datagram[at : at + length] == call
        at += length
    assert at == len(datagram)


def test_no_counter_and_no_length_of_a_datagram_ends() -> None:
    """Retries and lost runs together exceed 16 bits, sequences and handles count for the life of an agent."""
    count = 2**16 + 1
    last, ones = [2**64 - 1] * count, [1] * count
    calls = [b""] * count
    columns = frames.unpack_tasks(frames.pack_tasks(2**64 - 1, last, last, last, calls, [2**32 - 1] * count, ones))
    assert columns.sequence == 2**64 - 1 and set(columns.handles) == {2**64 - 1}
    assert columns.attempts == (2**32 - 1,) * count
    name = "f" * 70_000
    definition = Definition(2**64 - 1, b"f" * 70_000, name, b"body", 2, 1, b"s" * 70_000, b"serializer")
    assert frames.unpack_definition(frames.pack_definition(definition)) == definition


def test_a_call_may_take_any_number_of_results() -> None:
    inputs = [Input(task, 0, b"r") for task in range(2**16 + 1)]
    assert split_inputs(join_inputs(b"call", inputs)) == (b"call", inputs)


@given(st.binary(), st.lists(st.builds(Input, NUMBERS, st.booleans(), st.binary())))
def test_inputs(call: bytes, inputs: list[Input]) -> None:
    assert split_inputs(join_inputs(call, inputs)) == (call, inputs)


@given(st.text(), st.binary(), st.integers(0, 2), st.binary())
def test_definitions(name: str, body: bytes, stream_output: int, serializer: bytes) -> None:
    definition = Definition(7, b"f" * 16, name, body, 2, stream_output, b"s" * 16, serializer)
    datagram = frames.pack_definition(definition)
    assert frames.unpack_definition(datagram) == definition
    assert datagram[0] == frames.DEFINE and frames.handle_of(datagram) == 7


def reply(kind: int, status: int, run: int, payload: bytes) -> bytes:
    return REPLY.pack(kind, status, len(payload), run, 11, 12, 13, 14, 15, 16, 17, 18) + payload


REPLIES = st.lists(
    st.tuples(st.sampled_from([RESULT, RESULT, STORED_RESULT, OUTPUT, READY]), NUMBERS, st.binary(max_size=99))
)


@given(REPLIES, st.lists(st.integers(1, 70)), st.integers(0, 40))
def test_replies_however_they_are_cut(replies: list[tuple[int, int, bytes]], cuts: list[int], missing: int) -> None:
    data = b"".join(reply(kind, 1, run, payload) for kind, run, payload in replies)
    reader, seen, at = ReplyReader(), [], 0
    for size in [*cuts, len(data) + 1]:
        seen += reader.feed(data[at : at + size]) if at < len(data) else []
        at += size
    flat: list[tuple[int, int, bytes]] = []
    for event in seen:
        if isinstance(event, RunsEnded):
            for position, (run, payload) in enumerate(zip(event.runs, event.payloads, strict=True)):
                flat.append((STORED_RESULT if position in event.stored else RESULT, run, payload))
                assert event.durations[position] == 11 and len(event.profiles[position]) == PROFILE.size
        elif isinstance(event, OutputWritten):
            flat.append((OUTPUT, event.run, event.text))
        elif isinstance(event, WorkerReady):
            flat.append((READY, event.pid, b""))
    assert flat == [(kind, run, b"" if kind == READY else payload) for kind, run, payload in replies]


def test_a_record_cut_short_by_death_is_dropped() -> None:
    reader = ReplyReader()
    assert reader.feed(reply(RESULT, 0, 1, b"abc")[:-1]) == []


def test_garbage_is_no_record() -> None:
    with pytest.raises(MalformedMessageError):
        ReplyReader().feed(b"\xff" * 7 + b"\0" * 80)


def test_messages_however_they_are_cut() -> None:
    messages: list[Message] = [
        Blocked((1,), (True,)),
        Done((2,), (0,), Payloads([b"x" * 100])),
        Blocked((3,), (False,)),
    ]
    data = b"".join(pack_message(message) for message in messages)
    for size in (1, 7, 100, len(data)):
        reader = MessageReader()
        found = [message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])]
        assert found == messages
