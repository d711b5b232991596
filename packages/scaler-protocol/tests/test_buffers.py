"""Objects with buffers: what is laid out is read again, aligned and without a copy, and nothing else is read."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scaler_protocol.buffers import ALIGNMENT, MAGIC, BufferedPickle, split
from scaler_protocol.errors import MalformedMessageError

BUFFERS = st.lists(st.binary(max_size=300), max_size=6)


@given(st.binary(max_size=300), BUFFERS)
@example(b"", [b"", b""])
def test_what_is_laid_out_is_read_again(pickle: bytes, buffers: list[bytes]) -> None:
    laid_out = BufferedPickle(pickle, buffers)
    payload = bytes(laid_out)
    assert len(laid_out) == len(payload)
    found, views = split(payload)
    assert bytes(found) == pickle and list(map(bytes, views)) == buffers
    for view in views:
        assert view.readonly and view.format == "B" and view.obj is payload


@given(BUFFERS)
def test_buffers_are_aligned(buffers: list[bytes]) -> None:
    sizes = [len(piece) for piece in BufferedPickle(b"pickle", buffers).pieces]
    payload = bytes(BufferedPickle(b"pickle", buffers))
    for number, buffer in enumerate(buffers):
        offset, size = struct.unpack_from("<QQ", payload, 24 + 16 * number)
        assert offset % ALIGNMENT == 0 and payload[offset : offset + size] == buffer
    assert sum(sizes) == len(payload) and max(sizes[2:], default=0) <= max(map(len, buffers), default=0) + ALIGNMENT


def test_nothing_is_copied() -> None:
    memory = bytearray(1000)
    numbers: Any = memoryview(bytearray(800)).cast("d")
    laid_out = BufferedPickle(b"pickle", [memory, numbers])
    memory[0] = 7
    numbers[0] = 1.0
    _, (first, second) = split(bytes(laid_out))
    assert first == memory and second.cast("d") == numbers
    received = bytearray(bytes(laid_out))
    _, (first, second) = split(received)
    with pytest.raises(TypeError):
        first[0] = 0
    with pytest.raises(BufferError):
        received.clear()  # it is seen through the views


@given(st.binary(max_size=300).filter(lambda payload: not payload.startswith(MAGIC)))
def test_a_pickle_alone(payload: bytes) -> None:
    for given_as in (payload, memoryview(payload)):
        pickle, buffers = split(given_as)
        assert pickle == payload and not buffers


@given(st.binary(max_size=120))
def test_whatever_follows_the_magic_is_read_or_refused(rest: bytes) -> None:
    try:
        pickle, buffers = split(MAGIC + rest)
    except MalformedMessageError:
        return
    assert len(pickle) + sum(map(len, buffers)) <= len(rest)


def test_every_malformed_layout_is_refused() -> None:
    good = bytes(BufferedPickle(b"pickle", [b"a" * 100, b"b" * 100]))
    for end in range(len(MAGIC), len(good)):
        with pytest.raises(MalformedMessageError):
            split(good[:end])
    head, spans = struct.Struct("<8sIIQ"), struct.Struct("<QQQQ")
    magic, count, zero, size = head.unpack_from(good)
    first, first_size, second, second_size = spans.unpack_from(good, head.size)
    for wrong in (
        (magic, count, 1, size),
        (magic, 2**32 - 1, zero, size),
        (magic, count, zero, 2**64 - 1),
        (magic, count, zero, size + ALIGNMENT),
    ):
        with pytest.raises(MalformedMessageError):
            split(head.pack(*wrong) + good[head.size :])
    for places in (
        (first + 1, first_size, second, second_size),
        (0, first_size, second, second_size),
        (first, second_size, first, second_size),
        (first, 2**64 - 1, second, second_size),
        (first, first_size, 2**64 - 64, second_size),
        (first, first_size, second, second_size + 1),
    ):
        with pytest.raises(MalformedMessageError, match="buffer"):
            split(good[: head.size] + spans.pack(*places) + good[head.size + spans.size :])
