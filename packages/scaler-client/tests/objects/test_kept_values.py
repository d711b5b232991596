"""Immutable arguments are kept as long as their objects, but only a budget of those that nobody else has."""

from __future__ import annotations

import gc

import pytest

from scaler_client.objects import kept_values
from scaler_client.objects.kept_values import KeptValue, KeptValues

SIZE = 1000


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> KeptValues:
    """Room for ten."""
    monkeypatch.setattr(kept_values, "KEPT_BYTES", 10 * SIZE)
    return KeptValues()


def keep(values: KeptValues, count: int) -> list[KeptValue]:
    """So many values that nobody else has."""
    return [values.keep(bytes(SIZE), SIZE) for _ in range(count)]


def alive(kept: list[KeptValue]) -> list[bool]:
    return [each.value is not None for each in kept]


def test_of_values_that_nobody_else_has_the_latest_are_kept(values: KeptValues) -> None:
    kept = keep(values, 30)
    assert alive(kept) == [False] * 20 + [True] * 10
    assert values.size == 10 * SIZE


def test_values_that_others_have_are_kept_and_those_behind_them_are_dropped(values: KeptValues) -> None:
    others: list[bytes | str] = [bytes(SIZE), "x" * SIZE]
    theirs = [values.keep(value, SIZE) for value in others]
    kept = keep(values, 30)
    assert [each.value for each in theirs] == others
    assert alive(kept).count(True) <= 10 and kept[-1].value is not None
    others.clear()
    keep(values, 30)
    assert alive(theirs) == [False, False]


def test_what_ends_makes_room(values: KeptValues) -> None:
    kept = keep(values, 9)
    for _ in range(100):
        keep(values, 1)
    gc.collect()
    assert all(alive(kept))
    kept.clear()
    last = keep(values, 1)
    assert values.size == SIZE and all(alive(last))
