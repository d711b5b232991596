"""How columns are sorted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scaler_ui.model.columns import slice_of_order


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 45), st.integers(0, 45), st.booleans())
def test_a_slice_of_the_order_is_that_of_all_sorted(keys: list[int], start: int, count: int, descending: bool) -> None:
    found = slice_of_order(np.array(keys, np.uint8), start, start + count, descending=descending)
    in_order = sorted(range(len(keys)), key=lambda place: (keys[place], place), reverse=descending)
    assert list(found) == in_order[start : start + count]
