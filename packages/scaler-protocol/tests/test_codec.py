"""The codec: every message there and back, and nothing but MalformedMessageError for anything else."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_protocol import codec
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.handshake import Hello, NeedHello
from scaler_protocol.messages import (
    MESSAGE_IDS,
    AgentStatus,
    Blocked,
    Cancel,
    Done,
    Functions,
    Group,
    Inputs,
    Message,
    NeedInputs,
    Output,
    Reconcile,
    Run,
    Submit,
)
from scaler_protocol.payloads import Payloads
from support.examples import examples

if TYPE_CHECKING:
    from conftest import Wire

ID = b"f" * 16
GROUP = Group(ID)
FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def normal(message: Message) -> dict[str, Any]:
    """Sequences may be lists on the way in, and are tuples on the way out."""
    values = {field.name: getattr(message, field.name) for field in fields(message) if field.compare}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def submit(**changed: Any) -> Submit:
    group = Group(ID, ("gpu",), (1,))
    filled = Submit(
        [group],
        [1, 2],
        Payloads([b"abc", b"d"]),
        task_groups=[0, 0],
        dependents=[0],
        needs=[0],
        functions=[ID],
        names=["name"],
        bodies=Payloads([b"body"]),
    )
    return replace(filled, **changed)


# --- there and back -------------------------------------------------------------------------------------------------


@FEW
@given(data=st.data())
def test_every_message_comes_back(wire: Wire, data: st.DataObject) -> None:
    for kind in wire.kinds.values():
        message = data.draw(wire.messages_of(kind))
        frames = wire.frames_of(message)
        back = decode(frames)
        assert type(back) is kind and normal(back) == normal(message)
        assert wire.frames_of(back) == frames, "what was read is written the same again"


@FEW
@given(data=st.data())
def test_groups_come_back(wire: Wire, data: st.DataObject) -> None:
    group = data.draw(wire.groups)
    assert codec._read_group(codec._write_group(group)) == group


def test_lists_are_as_good_as_tuples(wire: Wire) -> None:
    assert wire.frames_of(Cancel([1, 2])) == wire.frames_of(Cancel((1, 2))) == wire.frames_of(Cancel(range(1, 3)))


def test_what_is_empty_takes_no_second_frame() -> None:
    assert len(encode(Cancel([1]))) == 1
    assert len(encode(Submit([], [], Payloads([])))) == 1
    assert len(encode(Output([1], [1], Payloads([b""])))) == 2


def test_payload_columns_follow_each_other_in_the_order_of_the_schema() -> None:
    frame = encode(submit())[1]
    assert bytes(frame) == b"abcd" + b"body"


def test_a_report_is_passed_on_as_it_came(wire: Wire) -> None:
    frames = wire.frames_of(Done((1, 2), (0, 1), Payloads([b"a", b"bc"]), agents=("w",)))
    done = decode(frames)
    assert isinstance(done, Done) and done.encoded is frames
    assert encode(done) is frames
    assert encode(done)[1] is frames[1], "not even copied"


def test_optional_columns_may_be_left_out() -> None:
    for message in (submit(task_groups=()), Run(1, [GROUP], [1, 2], Payloads([b"", b""]))):
        assert decode([bytes(frame) for frame in encode(message)])
    done = decode([bytes(frame) for frame in encode(Done([1], [0], Payloads([b""])))])
    assert isinstance(done, Done) and done.runs == ()


def test_a_single_payload_column_is_not_copied(wire: Wire) -> None:
    frames = wire.frames_of(Done([1, 2], [0, 0], Payloads([b"x" * 1000, b"y"])))
    done = decode(frames)
    assert isinstance(done, Done) and done.results.frame is frames[1]


def test_large_batches_are_within_the_traversal_limit(wire: Wire) -> None:
    count = MESSAGE_IDS
    for message in (
        Done(range(count), [0] * count, Payloads([b""] * count), range(count)),
        Submit([GROUP], range(count), Payloads([b"x"] * count), [0] * count),
        Functions([ID] * 4096, ["n"] * 4096, Payloads([b""] * 4096)),
    ):
        assert normal(decode(wire.frames_of(message))).keys()


# --- what is no message ---------------------------------------------------------------------------------------------


UNEQUAL: list[Message] = [
    submit(task_groups=[0]),
    submit(calls=Payloads([b"abc"])),
    submit(calls=Payloads([])),
    submit(needs=[]),
    submit(dependents=[]),
    submit(names=[]),
    submit(bodies=Payloads([])),
    submit(groups=[Group(ID, ("gpu",), ())]),
    submit(groups=[Group(ID, (), (1,))]),
    Run(1, [GROUP], [1, 2], Payloads([b""])),
    Run(1, [GROUP], [1, 2], Payloads([b"", b""]), attempts=[1]),
    Run(1, [GROUP], [1], Payloads([b""]), dependents=[0], needs=[2]),
    Done([1], [], Payloads([b""])),
    Done([1], [0], Payloads([])),
    Done([1, 2], [0, 0], Payloads([b"", b""]), runs=[1]),
    Blocked([1], []),
    Functions([ID], [], Payloads([b""])),
    NeedInputs([1], []),
    Inputs([1], [2], [], Payloads([b""])),
    Reconcile(running=[1], runs=[]),
    Output([1], [], Payloads([b""])),
    AgentStatus(names=["a"], pids=[1], states=[1], runs=[], cpus=[0.0], rsses=[1], queues=[1]),
    Hello(1, b"i" * 16, 1, capability_names=["gpu"]),
]


@pytest.mark.parametrize("message", UNEQUAL, ids=lambda message: type(message).__name__)
def test_unequal_columns_are_refused(wire: Wire, message: Message) -> None:
    with pytest.raises(MalformedMessageError, match="entries"):
        decode(wire.unchecked(message))


def test_the_payload_frame_has_to_fit(wire: Wire) -> None:
    columns, payload = wire.frames_of(submit())
    with pytest.raises(MalformedMessageError, match="ends at 8 of 7 bytes"):
        decode([columns, payload[:-1]])
    with pytest.raises(MalformedMessageError, match="ends at 4 of 0 bytes"):
        decode([columns])
    with pytest.raises(MalformedMessageError, match="1 unexpected bytes"):
        decode([columns, payload + b"x"])
    with pytest.raises(MalformedMessageError, match="3 unexpected bytes"):
        decode([*wire.frames_of(Cancel([1])), b"abc"])


@pytest.mark.parametrize("frames", [[], [b"", b"", b""]])
def test_one_or_two_frames(frames: list[bytes]) -> None:
    with pytest.raises(MalformedMessageError, match="one or two frames"):
        decode(frames)


FOREIGN = [
    b"",
    b"\0",
    b"\0" * 8,
    b"\0" * 16,
    b"\xff" * 8,
    b"\xff" * 4096,
    b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x80\x05]\x94.",
    b'{"task": 1}',
]


@pytest.mark.parametrize("frame", FOREIGN)
def test_foreign_frames(frame: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode([frame])


def only_malformed(frames: list[bytes]) -> None:
    """Either it is a message, or MalformedMessageError."""
    try:
        decode(frames)
    except MalformedMessageError as error:
        assert str(error) and "\n" not in str(error)


@FEW
@given(frame=st.binary(max_size=400), payload=st.binary(max_size=20))
def test_random_frames(frame: bytes, payload: bytes) -> None:
    only_malformed([frame])
    only_malformed([frame + bytes(-len(frame) % 8), payload])


@settings(FEW, max_examples=examples(100))
@given(data=st.data())
def test_damaged_frames(wire: Wire, data: st.DataObject) -> None:
    frames = wire.frames_of(data.draw(wire.any_message))
    damaged = bytearray(frames[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) // 8 - 1)) * 8
        change = data.draw(st.sampled_from(["byte", "word", "cut"]))
        if change == "byte":
            damaged[at + data.draw(st.integers(0, 7))] = data.draw(st.integers(0, 255))
        elif change == "word":  # a pointer, more often than not
            kind, low, high = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 64)), data.draw(st.integers())
            struct.pack_into("<Q", damaged, at, (high << 32 | low << 2 | kind) & (2**64 - 1))
        else:
            del damaged[max(8, at) :]
    only_malformed([bytes(damaged), *frames[1:]])


def _pointers_to_one_blob(count: int, size: int) -> bytes:
    """An AgentStatus whose `deaths` are all the same text: small on the wire, huge when copied."""
    frame = bytearray(encode(AgentStatus(deaths=["x" * (size - 1)]))[0])
    words = [struct.unpack_from("<Q", frame, at)[0] for at in range(0, len(frame), 8)]
    listed = next(i for i, word in enumerate(words) if word & 3 == 1 and word >> 32 & 7 == 6)
    content = listed + 1 + ((words[listed] & 0xFFFFFFFF) >> 2)
    head, between, blob = frame[: listed * 8], frame[(listed + 1) * 8 : content * 8], frame[(content + 1) * 8 :]
    table = bytearray()
    for i in range(count):
        table += struct.pack("<Q", 1 | ((count - 1 - i) << 2) | (2 << 32) | (size << 35))
    head += struct.pack("<Q", (words[listed] & 0xFFFFFFFF) | (6 << 32) | (count << 35)) + between + table + blob
    struct.pack_into("<I", head, 4, (len(head) - 8) // 8)
    return bytes(head)


def test_a_small_frame_takes_little_memory() -> None:
    decoded = decode([_pointers_to_one_blob(4, 800)])
    assert getattr(decoded, "deaths", None) == ("x" * 799,) * 4
    bomb = _pointers_to_one_blob(100_000, 4_000)
    tracemalloc.start()
    with pytest.raises(MalformedMessageError, match="traversal limit"):
        decode([bomb])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * len(bomb)


def test_a_list_of_nothing_is_not_believed(wire: Wire) -> None:
    """Elements of no size may claim to be half a billion."""
    (frame,) = wire.frames_of(Cancel([4]))
    for at in range(8, len(frame), 8):
        (word,) = struct.unpack_from("<Q", frame, at)
        if word & 3 == 1:
            claimed = bytearray(frame)
            struct.pack_into("<Q", claimed, at, word & 0xFFFFFFFF | (2**29 - 1) << 35)
            with pytest.raises(MalformedMessageError):
                decode([bytes(claimed)])


def test_big_groups_of_strangers_are_not_remembered(wire: Wire) -> None:
    codec._parse_known_group.cache_clear()
    decode(wire.frames_of(submit(groups=[Group(ID, tuple(f"{i:0200}" for i in range(30)), (1,) * 30)])))
    assert codec._parse_known_group.cache_info().currsize == 0
    for _ in range(2):
        decode(wire.frames_of(submit()))
    assert codec._parse_known_group.cache_info()[:2] == (1, 1)


def test_later_versions_may_add_fields_and_messages(wire: Wire) -> None:
    """An unknown member of the union is malformed to us, and never anything worse."""
    (frame,) = wire.frames_of(NeedHello())
    known = len(wire.union())
    for at in range(8, len(frame) - 1):
        unknown = bytearray(frame)
        struct.pack_into("<H", unknown, at, known + 1)
        only_malformed([bytes(unknown)])
