"""Numbered streams: sequences, acknowledgements, gaps, duplicates."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_io.links.streams import (
    ACK_MESSAGES,
    ACK_SECONDS,
    HEADER,
    HEAVY_ACK_SECONDS,
    HEAVY_BYTES,
    KEPT_OVERHEAD,
    Frames,
    Stream,
    StreamGapError,
    StreamMismatchError,
    cut,
    is_numbered,
    join,
)
from scaler_protocol.errors import MalformedMessageError, ProtocolError
from scaler_protocol.handshake import Acknowledge, Goodbye, Heartbeat, Hello, NeedHello, Refused, Welcome
from scaler_protocol.messages import Cancel, Functions, Message, Shutdown
from scaler_protocol.payloads import Payloads


def header(frames: Frames) -> bytes:
    return bytes(frames[0])


def test_the_header_is_two_little_endian_numbers() -> None:
    stream = Stream()
    first = header(stream.write(Shutdown()))
    assert first == struct.pack("<QQ", 1, 0) and is_numbered(first)
    stream.read(struct.pack("<QQ", 1, 1), 0.0)
    assert header(stream.write(Shutdown())) == struct.pack("<QQ", 2, 1)


@pytest.mark.parametrize(
    "message", [Hello(1, b"i" * 16, 1), Welcome(1), Refused([]), NeedHello(), Heartbeat(1), Acknowledge()]
)
def test_what_keeps_the_connection_has_no_number(message: Message) -> None:
    stream = Stream()
    written = header(stream.write(message))
    assert written == bytes(16) and not is_numbered(written)
    assert stream.sent == stream.kept_bytes == 0 and stream.unacknowledged() == []
    assert stream.read(written, 0.0) and stream.read(written, 0.0), "never a duplicate"
    assert stream.received == 0 and not stream.owed


def test_goodbye_is_numbered() -> None:
    assert header(Stream().write(Goodbye())) == HEADER.pack(1, 0)


def test_what_was_sent_is_kept_until_it_is_acknowledged() -> None:
    one, other = Stream(), Stream()
    frames = [one.write(Cancel((number,))) for number in range(5)]
    assert one.kept_bytes == sum(KEPT_OVERHEAD + sum(map(len, frame[1:])) for frame in frames)
    for frame in frames[:3]:
        assert other.read(header(frame), 0.0)
    assert one.read(header(other.write(Acknowledge())), 0.0)
    again = one.unacknowledged()
    assert [list(frame[1:]) for frame in again] == [list(frame[1:]) for frame in frames[3:]]
    assert [HEADER.unpack(header(frame))[0] for frame in again] == [4, 5]
    one.acknowledge(5)
    assert one.kept_bytes == 0 and one.unacknowledged() == []


def test_what_is_sent_again_acknowledges_what_has_come_meanwhile() -> None:
    stream = Stream()
    stream.write(Shutdown())
    stream.read(HEADER.pack(1, 0), 0.0)
    (again,) = stream.unacknowledged()
    assert header(again) == HEADER.pack(1, 1)


def test_duplicates_and_gaps() -> None:
    stream = Stream()
    assert stream.read(HEADER.pack(1, 0), 0.0)
    assert not stream.read(HEADER.pack(1, 0), 0.0)
    with pytest.raises(StreamGapError, match="message 3 came after message 1"):
        stream.read(HEADER.pack(3, 0), 0.0)
    assert stream.read(HEADER.pack(2, 0), 0.0) and stream.received == 2


def test_a_duplicate_still_acknowledges() -> None:
    stream = Stream()
    stream.write(Shutdown())
    stream.read(HEADER.pack(1, 0), 0.0)
    assert not stream.read(HEADER.pack(1, 1), 0.0) and stream.kept_bytes == 0


def test_headers_that_are_none() -> None:
    stream = Stream()
    for size in (0, 8, 15, 17):
        with pytest.raises(ProtocolError, match="a header has 16 bytes"):
            stream.read(bytes(size), 0.0)
    with pytest.raises(StreamMismatchError, match="message 1 is acknowledged, 0 were sent"):
        stream.read(HEADER.pack(1, 1), 0.0)
    assert stream.received == 0


def test_an_acknowledgement_goes_alone_after_a_while_or_many_messages() -> None:
    stream = Stream()
    assert stream.acknowledge_at == math.inf
    stream.read(HEADER.pack(1, 0), 10.0)
    stream.read(HEADER.pack(2, 0), 10.0 + ACK_SECONDS / 2)
    assert stream.acknowledge_at == 10.0 + ACK_SECONDS
    stream.write(Acknowledge())
    assert stream.acknowledge_at == math.inf
    for sequence in range(3, 3 + ACK_MESSAGES):
        assert stream.acknowledge_at > 20.0
        stream.read(HEADER.pack(sequence, 0), 20.0)
    assert stream.acknowledge_at == 20.0


def test_an_acknowledgement_of_many_bytes_waits_less() -> None:
    stream = Stream()
    stream.read(HEADER.pack(1, 0), 10.0, HEAVY_BYTES)
    assert stream.acknowledge_at == 10.0 + ACK_SECONDS
    stream.read(HEADER.pack(2, 0), 10.1, 1)
    stream.read(HEADER.pack(3, 0), 10.11, HEAVY_BYTES)
    assert stream.acknowledge_at == 10.1 + HEAVY_ACK_SECONDS
    stream.write(Acknowledge())
    stream.read(HEADER.pack(4, 0), 20.0, HEAVY_BYTES)
    assert stream.acknowledge_at == 20.0 + ACK_SECONDS
    stream.read(HEADER.pack(5, 0), 20.0 + ACK_SECONDS - 0.01, 1)
    assert stream.acknowledge_at == 20.0 + ACK_SECONDS, "not later than without it"


def test_whatever_is_written_acknowledges() -> None:
    stream = Stream()
    stream.read(HEADER.pack(1, 0), 0.0)
    assert HEADER.unpack(header(stream.write(Shutdown())))[1] == 1
    assert stream.acknowledge_at == math.inf


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_epochs_lose_and_repeat_nothing(steps: list[tuple[bool, int]]) -> None:
    """Messages, or breaks that lose the last ones and then send the unacknowledged suffix again."""
    one, other = Stream(), Stream()
    wire: list[Frames] = []
    sent, got = 0, 0

    def deliver(count: int) -> int:
        new = 0
        for frames in wire[:count]:
            new += other.read(header(frames), 0.0)
        del wire[:count]
        return new

    for is_break, number in steps:
        if is_break:
            got += deliver(max(0, len(wire) - number))
            if number % 2:  # the new epoch says what has been received, or does not know
                one.acknowledge(other.received)
            wire[:] = one.unacknowledged()
        else:
            wire += [one.write(Shutdown()) for _ in range(number)]
            sent += number
    got += deliver(len(wire))
    assert got == sent == other.received


def test_a_message_that_the_peer_would_not_receive_is_refused() -> None:
    stream = Stream(longest=1000)
    stream.write(Cancel(range(10)))
    with pytest.raises(MalformedMessageError, match=r"Cancel has 8,.* bytes, and services receive 1,000 at most"):
        stream.write(Cancel(range(1000)))
    assert stream.sent == 1


def test_the_largest_message_is_no_backlog() -> None:
    stream = Stream()
    messages = [
        Functions((bytes(16),), ("f",), Payloads((bytes(size),))) for size in (8, 2_400_000, 1_600_000, 16, 1_600_000)
    ]
    sizes = [KEPT_OVERHEAD + sum(map(len, stream.write(message)[1:])) for message in messages]
    assert stream.kept_bytes == sum(sizes)
    tiny, _, large, small, _ = sizes
    backlogs = [tiny + large + small + large, large + small + large, large + small, small, 0, 0]
    for acknowledged, backlog in enumerate(backlogs):
        stream.acknowledge(acknowledged)
        assert (stream.oldest, stream.backlog) == (acknowledged + 1, backlog)


@pytest.mark.parametrize(("columns", "payload", "is_view"), [(100, 5000, True), (5000, 100, False)])
def test_a_payload_keeps_no_frame_that_is_much_longer(columns: int, payload: int, is_view: bool) -> None:
    written = memoryview(join([bytes(16), b"c" * columns, b"p" * payload]))
    parts = cut(written)
    assert list(map(len, parts)) == [16, columns, payload]
    assert parts[1:] == [b"c" * columns, b"p" * payload]
    assert isinstance(parts[2], memoryview) is is_view
