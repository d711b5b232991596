"""How calls are to be run: what messages can not hold is refused where it is given."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_client.calls.task_options import TaskOptions
from scaler_protocol.codec import decode, encode
from scaler_protocol.messages import Group, Submit
from scaler_protocol.payloads import Payloads

ANYTHING = st.integers() | st.floats() | st.text(max_size=3) | st.decimals() | st.none() | st.booleans()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"priority": 0.5}, "priority is 0.5, not a whole number"),
        ({"priority": 2**31}, "priority is 2147483648, not"),
        ({"retries": 1.5}, "retries is 1.5, not"),
        ({"retries": -1}, "retries is -1, not"),
        ({"timeout": 2**70}, "task_timeout_seconds is 1180591620717411303424, not a number from 0 to"),
        ({"timeout": Decimal(1)}, "task_timeout_seconds is Decimal"),
        ({"timeout": float("nan")}, "task_timeout_seconds is nan"),
        ({"timeout": 0}, "more than 0 seconds, or None for the default of the cluster"),
        ({"timeout": -1}, "task_timeout_seconds is -1"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TaskOptions.of(None, False, **{"priority": 0, "retries": 0, "timeout": None, **given})


def test_numbers_of_other_libraries_are_as_good() -> None:
    options = TaskOptions.of({"gpu": np.int64(1)}, False, np.int64(3), np.uint8(2), np.float32(0.5))
    assert options == TaskOptions((("gpu", 1),), False, 3, 2, 0.5, False)
    assert [type(value) for value in (options.priority, options.retries, options.timeout_seconds)] == [int, int, float]


def test_speculate_is_true_or_false() -> None:
    with pytest.raises(TypeError, match="speculate"):
        TaskOptions.of(None, False, 0, 0, None, np.zeros(2))  # type: ignore[arg-type]
    assert TaskOptions.of(None, False, 0, 0, None, True).speculate


@given(priority=ANYTHING, retries=ANYTHING, timeout=ANYTHING)
def test_whatever_is_accepted_can_be_written(priority: Any, retries: Any, timeout: Any) -> None:
    try:
        options = TaskOptions.of(None, False, priority, retries, timeout)
    except ValueError:
        return
    group = Group(
        b"f" * 16, priority=options.priority, retries=options.retries, timeout_seconds=options.timeout_seconds
    )
    written = encode(Submit([group], [1], Payloads([b""])))
    submit = decode([bytes(frame) for frame in written])
    assert isinstance(submit, Submit) and submit.groups[0] == group
