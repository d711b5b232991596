"""The encoding, compared with pycapnp's: the same bytes in one segment, and the same values from several."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_protocol.codec import decode
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.handshake import Heartbeat, Hello, NeedHello, Welcome
from scaler_protocol.messages import Blocked, Cancel, Group, NeedFunctions, Recall, Submit
from scaler_protocol.monitoring import MonitorStatus
from scaler_protocol.payloads import Payloads

if TYPE_CHECKING:
    from conftest import Wire

FEW = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
GROUP = Group(b"f" * 16)
NAMES = [f"{number:0100}" for number in range(2000)]


@FEW
@given(data=st.data())
def test_the_bytes_are_those_of_pycapnp(wire: Wire, data: st.DataObject) -> None:
    for kind in wire.kinds.values():
        message = data.draw(wire.messages_of(kind))
        assert wire.frames_of(message)[0] == wire.unchecked(message)[0]


def test_what_pycapnp_writes_into_several_segments_is_read(wire: Wire) -> None:
    """Segments grow from 8 KiB, so that structs, tables of pointers and texts are in different ones."""
    count = 10_000
    for message in (
        MonitorStatus(1, 2.0, waiting_capabilities=NAMES, waiting_tasks=range(2000), waiting_shortages=NAMES),
        NeedFunctions([name.encode()[-16:] for name in NAMES], 7),
        Blocked(range(count), [number % 3 == 0 for number in range(count)]),
        Cancel(range(count)),
        Submit([GROUP], range(1, count), Payloads([b"call"] * (count - 1)), [0] * (count - 1)),
    ):
        frames = wire.unchecked(message)
        assert struct.unpack_from("<I", frames[0])[0] > 0, "has several segments"
        assert decode(frames) == decode(wire.frames_of(message))


def words_of(*words: int) -> bytes:
    return struct.pack(f"<II{len(words)}Q", 0, len(words), *words)


def test_a_message_of_nothing_has_the_defaults_of_the_first_type() -> None:
    with pytest.raises(MalformedMessageError, match=r"Hello\.role"):
        decode([words_of(0)])
    with pytest.raises(MalformedMessageError, match="no root pointer"):
        decode([words_of()])


@pytest.mark.parametrize("words", [0, 1, 2])
def test_structs_of_earlier_versions_have_less(wire: Wire, words: int) -> None:
    """Heartbeat has two words of data; what is not there has its default."""
    number = 4
    content = [77, 1][:words]
    read = decode([words_of(1 << 32 | 1 << 48, number, words << 32 if words else 0xFFFF_FFFC, *content)])
    assert read == Heartbeat(77 if words else 0, words == 2)


def test_structs_of_later_versions_have_more() -> None:
    read = decode([words_of(1 << 32 | 1 << 48, 4, 5 << 32 | 1 << 48, 77, 1, 0, 0, 99, 0)])
    assert read == Heartbeat(77, True)


def two_segments(first: list[int], second: list[int]) -> bytes:
    sizes = struct.pack("<IIII", 1, len(first), len(second), 0)
    return sizes + struct.pack(f"<{len(first) + len(second)}Q", *first, *second)


def far(segment: int, word: int, *, double: bool = False) -> int:
    return 2 | (4 if double else 0) | word << 3 | segment << 32


RECALL = [1 << 32 | 1 << 48, 13]


def test_far_pointers_are_followed() -> None:
    near = two_segments([*RECALL, far(1, 0)], [1 << 32, 5])
    assert decode([near]) == Recall(5)
    double = two_segments([*RECALL, far(1, 0, double=True)], [far(1, 3), 1 << 32, 0, 5])
    assert decode([double]) == Recall(5)


def test_values_are_found_anew_where_pointers_lead_to_others() -> None:
    """What a message tells by its own pointers is remembered for messages with the same ones."""
    near, through = 1 | 5 << 32 | 1 << 35, [1 << 32 | 1 << 48, 10, 1 << 48, far(0, 4)]
    for _ in range(2):
        assert [decode([words_of(1 << 32 | 1 << 48, 10, 1 << 48, near, task)]) for task in (5, 6)] == [
            Cancel((5,)),
            Cancel((6,)),
        ]
        assert decode([words_of(*through, near, 7, 8)]) == Cancel((7,))
        assert decode([words_of(*through, near | 1 << 2, 7, 8)]) == Cancel((8,))
        with pytest.raises(MalformedMessageError, match="out of its segment"):
            decode([words_of(*through, near | 2 << 2, 7, 8)])


def test_messages_of_many_layouts_are_read(wire: Wire) -> None:
    messages = [Cancel(tuple(range(count))) for count in range(1, 100)]
    for message in [*messages, *reversed(messages)]:
        assert decode(wire.frames_of(message)) == message


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ([*RECALL, far(2, 0)], [], "no segment 2"),
        ([*RECALL, far(1, 9)], [1 << 32, 5], "out of its segment"),
        ([*RECALL, far(1, 1)], [1 << 32, 1 << 32], "out of its segment"),
        ([*RECALL, far(1, 0)], [far(1, 0), 5], "leads to another"),
        ([*RECALL, far(1, 0, double=True)], [1 << 32, 5], "no pointer where"),
        ([*RECALL, far(1, 0, double=True)], [far(1, 2)], "out of its segment"),
        ([*RECALL, far(1, 0, double=True)], [far(1, 9), 1 << 32], "out of its segment"),
        ([*RECALL, 3], [], "no struct"),
        ([*RECALL, 1], [], "no struct"),
        ([*RECALL, 1 << 32 | 0xFFFF_FF00], [], "out of its segment"),
        ([1 << 32 | 1 << 48, 10, 1 << 48, 1 | 5 << 32 | 2 << 35, 4], [], "out of its segment"),
        ([1 << 32 | 1 << 48, 10, 1 << 48, 1 | 4 << 32 | 2 << 35, 4], [], "no list of the expected type"),
        ([1 << 32 | 1 << 48, 10, 1 << 48, 1 | 5 << 32 | 1 << 35 | 0xFFFF_FF00, 4], [], "out of its segment"),
        ([1 << 32 | 1 << 48, 6, 1 << 48, 1 | 2 << 32 | 3 << 35, 0x616161], [], "zero byte"),
        ([1 << 32 | 1 << 48, 6, 1 << 48, 1 | 2 << 32, 0], [], "zero byte"),
        ([1 << 32 | 1 << 48, 6, 1 << 48, 1 | 2 << 32 | 3 << 35, 0x00FFFE], [], r"Goodbye\.reason is not UTF-8"),
        ([1 << 32 | 1 << 48, 60_000, 0], [], "unknown type 60000"),
    ],
)
def test_wrong_pointers(first: list[int], second: list[int], why: str) -> None:
    with pytest.raises(MalformedMessageError, match=why):
        decode([two_segments(first, second)])


def test_a_negative_zero_is_written_as_the_default(wire: Wire) -> None:
    assert wire.frames_of(Heartbeat(1, seconds=-0.0)) == wire.frames_of(Heartbeat(1, seconds=0.0))


def test_empty_and_boolean_values(wire: Wire) -> None:
    for message in (NeedHello(), Welcome(1, 2, resumed=True), Hello(1, b"i" * 16, 1), Submit([], [], Payloads([]))):
        assert wire.frames_of(message) == wire.unchecked(message)
