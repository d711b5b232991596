"""Byte planes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.byte_planes import EXPANDED, RECORDS, fault_of_planes, from_planes, record_count, to_planes


def test_planes_that_are_equal_in_all_records_take_one_byte() -> None:
    records = b"".join(number.to_bytes(8, "little") for number in range(0x0A000000, 0x0A000000 + 1000))
    planes = to_planes(records, 8)
    assert len(planes) == 4 + 1 + 2 * 1000 + 6
    assert planes[:5] == b"\xe8\x03\x00\x00\x03"
    assert planes[5:1005] == bytes(number % 256 for number in range(1000))
    assert planes[-6:] == bytes((0, 10, 0, 0, 0, 0))


@given(st.integers(1, 20), st.data())
def test_records_come_back(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 5))
    columns = [data.draw(st.binary(min_size=count, max_size=count) | st.just(bytes(count))) for _ in range(size)]
    records = bytes(byte for record in zip(*columns, strict=True) for byte in record)
    planes = to_planes(records, size)
    assert from_planes(planes, size) == records and record_count(planes) == count
    assert not fault_of_planes(planes, size)


@given(st.binary(max_size=30), st.integers(1, 20))
def test_bytes_without_a_fault_are_planes(data: bytes, size: int) -> None:
    if not fault_of_planes(data, size):
        assert len(from_planes(data, size)) == size * record_count(data)


def test_a_small_message_does_not_become_a_big_one() -> None:
    """A real one: the ids of a million tasks, and the equal profiles of tasks that never ran."""
    ids = b"".join(number.to_bytes(8, "little") for number in range(5 << 32, (5 << 32) + 1_000_000))
    assert not fault_of_planes(to_planes(ids, 8), 8)
    assert not fault_of_planes(to_planes(bytes(44 * 700_000), 44), 44)
    for size, most in ((1, RECORDS), (8, EXPANDED // 8), (44, EXPANDED // 44)):
        for count, fits in ((most, True), (most + 1, False)):
            planes = count.to_bytes(4, "little") + bytes(-(-size // 8)) + bytes(size)
            assert (fault_of_planes(planes, size) == "") is fits, (size, count)
    varied = (2**23).to_bytes(4, "little") + bytes([0b11]) + bytes(2 * 2**23 + 6)
    assert not fault_of_planes(varied, 8), "it has a quarter of the bytes"
