"""Capabilities: canonical form, text, and what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaler_protocol.capabilities import PRESENT, capabilities, missing, parse_capabilities
from scaler_protocol.errors import CapabilityError


def test_equal_sets_are_equal_values() -> None:
    assert capabilities({"b": 1, "a": -1}) == capabilities({"a": -1, "b": 1}) == (("a", -1), ("b", 1))
    assert capabilities(None) == capabilities({}) == ()
    assert [type(value) for _, value in capabilities({"a": np.int64(3)})] == [int]


@pytest.mark.parametrize(
    "given",
    [
        {"": 1}, {1: 1}, {"a\udc80": 1}, {"a" * 257: 1},
        {"a": "1"}, {"a": 1.0}, {"a": True}, {"a": None}, {"a": -2}, {"a": 2**63},
        {f"a{i}": 1 for i in range(257)},
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(given: dict[Any, Any]) -> None:
    with pytest.raises(CapabilityError, match=r"the name of a capability is|capability a=|257 capabilities are given"):
        capabilities(given)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("gpu", {"gpu": PRESENT}),
        ("gpu=1,linux", {"gpu": 1, "linux": PRESENT}),
        (" gpu = 2 , linux ,", {"gpu": 2, "linux": PRESENT}),
        ("gpu=-1", {"gpu": -1}),
        ("memory=0", {"memory": 0}),
    ],
)
def test_text(text: str, found: dict[str, int]) -> None:
    assert parse_capabilities(text) == found


@pytest.mark.parametrize("value", [-2, 2**63])
def test_a_quantity_that_is_too_small_or_too_big_is_told_the_limits(value: int) -> None:
    """It is a whole number already."""
    with pytest.raises(CapabilityError, match=r"from 0 to 9,223,372,036,854,775,807, or -1 for presence alone"):
        capabilities({"a": value})


@pytest.mark.parametrize("text", ["gpu=", "gpu=x", "gpu=1.5", "=1", " =1", "gpu,gpu=1", "gpu ,gpu", "gpu=-2"])
def test_text_that_is_none(text: str) -> None:
    with pytest.raises(CapabilityError, match="capability"):
        parse_capabilities(text)


@pytest.mark.parametrize(
    ("required", "offered", "lacks"),
    [
        ({}, {}, []),
        ({}, {"gpu": 1}, []),
        ({"gpu": 1}, {"gpu": 1}, []),
        ({"gpu": 1}, {"gpu": 2}, []),
        ({"gpu": 2}, {"gpu": 1}, ["gpu=2"]),
        ({"gpu": 2}, {"gpu": PRESENT}, []),
        ({"gpu": PRESENT}, {"gpu": 0}, []),
        ({"gpu": 0}, {"gpu": 0}, []),
        ({"gpu": 0}, {}, ["gpu=0"]),
        ({"gpu": PRESENT, "linux": PRESENT}, {}, ["gpu", "linux"]),
        ({"gpu": 1, "linux": PRESENT}, {"linux": 3}, ["gpu=1"]),
    ],
)
def test_missing(required: dict[str, int], offered: dict[str, int], lacks: list[str]) -> None:
    assert missing(capabilities(required), offered) == lacks
