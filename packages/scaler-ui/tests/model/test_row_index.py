"""Rows by id, against a dictionary."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from scaler_ui.model.row_index import RowIndex

TASKS = st.integers(0, 70) | st.integers(2**64 - 40, 2**64 - 1)


@given(st.lists(st.tuples(st.booleans(), TASKS, st.integers(0, 999_999))), st.dictionaries(TASKS, st.integers(0, 9)))
def test_it_is_as_a_dictionary(steps: list[tuple[bool, int, int]], others: dict[int, int]) -> None:
    index, rows = RowIndex(), dict[int, int]()
    for adds, task, row in steps:
        if adds:
            index[task] = rows[task] = row
        else:
            assert index.pop(task) == rows.pop(task, None)
        assert index.get(task) == rows.get(task) and len(index) == len(rows)
    assert dict(index.items()) == rows
    further = RowIndex()
    for task, row in others.items():
        further[task] = row
    index.update(further)
    assert dict(index.items()) == rows | others and len(index) == len(rows | others)


def test_tasks_of_one_client_take_little_memory_and_leave_none_behind() -> None:
    index, first = RowIndex(), 0x51A7 << 32
    tracemalloc.start()
    try:
        for task in range(first, first + 100_000):
            index[task] = task - first
        full = tracemalloc.get_traced_memory()[0]
        for task in range(first, first + 100_000):
            index.pop(task)
        empty = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert full < 1_500_000 and empty < 10_000
