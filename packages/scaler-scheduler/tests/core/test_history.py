"""History: what is remembered for monitors that subscribe late."""

from __future__ import annotations

from collections import Counter

from scaler_scheduler.core.history import SharedRing


def test_who_has_more_loses_its_oldest_first() -> None:
    ring: SharedRing[tuple[str, int]] = SharedRing(10, 1000)
    for number in range(4):
        ring.add("few", ("few", number), 10)
    for number in range(100):
        ring.add("many", ("many", number), 10)
    assert list(ring) == [*(("few", number) for number in range(4)), *(("many", number) for number in range(94, 100))]
    for number in range(100):
        ring.add("third", ("third", number), 10)
    assert sorted(Counter(owner for owner, _ in ring).values()) == [3, 3, 4]


def test_bytes_are_bounded_and_a_long_entry_goes_alone() -> None:
    ring: SharedRing[int] = SharedRing(10, 1000)
    for number in range(50):
        ring.add("one", number, 400)
    assert list(ring) == [48, 49]
    ring.add("one", 50, 2000)
    assert list(ring) == []
    ring.add("two", 51, 1)
    assert list(ring) == [51]
