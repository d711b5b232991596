"""Which stacks of a profile a message names."""

from __future__ import annotations

from collections import Counter

from scaler_protocol.limits import STACKS
from scaler_protocol.stack_counts import OTHERS, most_frequent


def test_rarer_stacks_are_counted_together() -> None:
    counts = Counter({"a": 5, OTHERS: 4, "bb": 3, "c": 2})
    assert most_frequent(counts, 3) == {"a": 5, "bb": 3, OTHERS: 6}
    assert most_frequent(counts, 4) == {"a": 5, "bb": 3, "c": 2, OTHERS: 4}
    assert most_frequent(counts, 0) == {OTHERS: 14}
    assert most_frequent(Counter({"é": 1}), 1) == {OTHERS: 1}, "bytes are counted"
    assert not most_frequent(Counter(), 10)


def test_a_message_has_so_many_stacks_at_most() -> None:
    found = most_frequent(Counter({str(number): 1 for number in range(2 * STACKS)}), 10**6)
    assert len(found) == STACKS and found[OTHERS] == STACKS + 1
