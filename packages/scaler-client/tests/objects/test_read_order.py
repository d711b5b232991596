"""ReadOrder: which results are likely to be read next."""

from __future__ import annotations

from scaler_client.objects.read_order import FOLLOWING_COUNT, ReadOrder
from scaler_protocol.objects import Reference

RESULTS = [Reference(number.to_bytes(16, "big"), 100_000) for number in range(50)]


def filled() -> ReadOrder:
    unread = ReadOrder()
    for result in (*RESULTS, RESULTS[0]):
        unread.add(result)
    return unread


def test_what_came_behind_is_read_next() -> None:
    unread = filled()
    assert unread.take(RESULTS[0]) == RESULTS[1 : 1 + FOLLOWING_COUNT]
    assert unread.take(RESULTS[2]) == RESULTS[3 : 3 + FOLLOWING_COUNT]
    assert unread.take(RESULTS[1]) == RESULTS[3 : 2 + FOLLOWING_COUNT]
    assert unread.take(RESULTS[48]) == RESULTS[49:] and unread.take(RESULTS[49]) == []


def test_what_is_not_unread_has_nothing_behind_it() -> None:
    unread = filled()
    unread.take(RESULTS[5])
    assert unread.take(RESULTS[5]) == [] and unread.take(Reference(b"?" * 16, 1)) == []
