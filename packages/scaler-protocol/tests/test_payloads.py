"""Columns of byte strings: split and joined only on demand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.payloads import Payloads

PARTS = st.lists(st.binary(max_size=10), max_size=10)


@given(PARTS)
def test_parts_to_frame_and_back(parts: list[bytes]) -> None:
    column = Payloads(parts)
    assert column.frame == b"".join(parts) and column.lengths == [len(part) for part in parts]
    for frame in (bytes(column.frame), memoryview(bytes(column.frame))):
        cut = Payloads.cut(frame, column.lengths)
        assert len(cut) == len(parts) and cut.frame is frame
        assert cut == column and list(cut) == parts and hash(cut) == hash(column)
        assert all(type(part) is bytes for part in cut)


@given(PARTS)
def test_views_are_the_parts(parts: list[bytes]) -> None:
    column = Payloads(parts)
    for frame in (column.frame, memoryview(column.frame)):
        assert list(Payloads.cut(frame, column.lengths).views()) == parts
    assert list(column.views()) == parts


def test_what_passes_through_is_not_touched() -> None:
    frame, lengths = b"abcd", [1, 3]
    column = Payloads.cut(frame, lengths)
    assert column.frame is frame and column.lengths is lengths and len(column) == 2
    assert column._parts is None


def test_is_a_sequence() -> None:
    column = Payloads([b"a", b"bc", b""])
    assert column[1] == b"bc" and list(column[1:]) == [b"bc", b""] and b"a" in column and column[-1] == b""
    with pytest.raises(IndexError):
        column[3]
    assert repr(column) == "Payloads([b'a', b'bc', b''])"
    assert column != [b"a", b"bc", b""] and column != Payloads([b"a"])
    assert not Payloads(()) and len(Payloads(())) == 0
