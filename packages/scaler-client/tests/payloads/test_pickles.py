"""Values as pickles: what lies beside them, and what is seen when they are read."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import weakref
from textwrap import dedent
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_client.payloads.pickles import dump, load, load_with
from scaler_protocol.buffers import ALIGNMENT, MAGIC, BufferedPickle
from scaler_protocol.errors import MalformedMessageError
from scaler_protocol.handshake import INLINE_LIMIT

BIG = INLINE_LIMIT + 1


def laid_out(value: Any) -> BufferedPickle:
    payload = dump(value)
    assert isinstance(payload, BufferedPickle) and len(payload) > INLINE_LIMIT
    return payload


@pytest.mark.parametrize(
    "value",
    [None, 1, "a", b"b", bytearray(b"c"), bytes(INLINE_LIMIT), [1, (2, {"x": {3}})], ["a" * BIG], (bytes(BIG),)],
    ids=lambda value: type(value).__name__,
)
def test_a_pickle_alone(value: Any) -> None:
    payload = dump(value)
    assert type(payload) is bytes and pickle.loads(payload) == value == load(payload) == load(memoryview(payload))


@pytest.mark.parametrize(
    "value",
    [bytes(BIG), bytearray(BIG), "a" * BIG, "\u20ac" * BIG, "\ud800" * BIG],
    ids=["bytes", "bytearray", "ascii", "euro", "surrogate"],
)
def test_bytes_and_text_are_copied_once(value: Any) -> None:
    payload = laid_out(value)
    if not isinstance(value, str):
        assert any(isinstance(piece, memoryview) and piece.obj is value for piece in payload.pieces)
    copy = load(bytes(payload))
    assert copy == value and type(copy) is type(value)


def test_an_array_is_a_view_of_the_payload() -> None:
    array = np.arange(10_000, dtype=np.float64).reshape(100, 100)
    written = laid_out([array, array.T, np.arange(3)])
    assert len(written.pieces[0]) + len(written.pieces[1]) < 1000
    array[0, 0] = 7.0  # it was not copied
    payload = memoryview(bytearray(len(written) + ALIGNMENT))
    start = -np.frombuffer(payload, np.uint8).__array_interface__["data"][0] % ALIGNMENT
    payload = payload[start : start + len(written)]
    payload[:] = bytes(written)
    first, transposed, small = load(payload)
    assert np.array_equal(first, array) and np.array_equal(transposed, array.T) and small.tolist() == [0, 1, 2]
    assert np.shares_memory(first, np.frombuffer(payload, np.uint8))
    for view in (first, transposed, small):
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
    for view in (first, transposed):
        assert view.__array_interface__["data"][0] % ALIGNMENT == 0


def test_what_was_read_keeps_the_payload() -> None:
    class Memory(bytearray):
        pass

    memory = Memory(bytes(laid_out(np.zeros(BIG))))
    gone: list[int] = []
    weakref.finalize(memory, gone.append, 1)
    array = load(memory)
    del memory
    gc.collect()
    assert not gone and not array.any()
    del array
    gc.collect()
    assert gone


def test_arrow_and_pandas() -> None:
    table = pa.table({"a": np.arange(BIG), "b": [str(number) for number in range(BIG)]})
    assert load(bytes(laid_out(table))).equals(table)
    frame = pd.DataFrame({"a": np.arange(BIG), "b": np.arange(BIG) * 1.5, "c": ["x"] * BIG})
    pd.testing.assert_frame_equal(load(bytes(laid_out(frame))), frame)


def test_arrays_that_offer_no_buffer() -> None:
    strided = np.arange(2 * BIG)[::2]
    assert np.array_equal(load(bytes(dump(strided))), strided)
    objects = np.array([{"a": 1}] * BIG, dtype=object)
    assert load(bytes(dump(objects)))[-1] == {"a": 1}
    assert load(bytes(dump(np.zeros((0, 3))))).shape == (0, 3)


@given(st.lists(st.sampled_from([0, 1, INLINE_LIMIT, BIG, 3 * INLINE_LIMIT]), max_size=5))
def test_any_mixture(sizes: list[int]) -> None:
    arrays = [np.full(size, number, np.uint8) for number, size in enumerate(sizes)]
    payload = dump(arrays)
    assert isinstance(payload, BufferedPickle) == any(size > INLINE_LIMIT for size in sizes)
    for array, loaded in zip(arrays, load(bytes(payload)), strict=True):
        assert np.array_equal(array, loaded)


@pytest.mark.parametrize("array", ["zeros(9000)", "zeros((90, 100)).T", "zeros(9000)[::2]", "arange(3)"])
def test_what_is_garbage_with_a_payload_of_arrays_is_collected(array: str) -> None:
    """In a process of its own, which crashed: errors that are caught keep payloads in cycles of garbage."""
    code = f"""
        import gc
        from numpy import arange, zeros
        from scaler_client.payloads.pickles import dump

        class Error(Exception):
            pass

        for _ in range(3):
            error = Error()
            error.payload, error.cause = dump({array}), error
            del error
            gc.collect()
        print("alive")
        """
    ended = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "alive\n", "")


def test_serializers_of_users_get_bytes() -> None:
    seen: list[type] = []
    load_with(lambda payload: seen.append(type(payload)), memoryview(b"abc"))
    assert seen == [bytes] and load_with(load, memoryview(bytes(dump(1)))) == 1


@pytest.mark.parametrize("payload", [b"", MAGIC, MAGIC + bytes(8), b"no pickle"])
def test_what_is_none(payload: bytes) -> None:
    with pytest.raises((MalformedMessageError, IndexError, pickle.UnpicklingError, EOFError)):
        load(payload)
