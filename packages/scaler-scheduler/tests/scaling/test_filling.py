"""Bins are filled evenly, in whole units, within their room."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from scaler_scheduler.scaling.filling import Room, UnitBin, pour

AMOUNTS = st.floats(0, 500)
BINS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 200), st.integers(0, 20), st.integers(0, 2)), max_size=5)
"""Unit size, room, level, and which room is used."""


def made(bins: Sequence[tuple[int, int, int, int]]) -> list[UnitBin]:
    """Bins of which some share a room."""
    rooms = [Room(room) for _, room, _, _ in bins][:3]
    return [UnitBin(size, rooms[which % len(rooms)], level) for size, _, level, which in bins]


def poured_one_by_one(amount: float, bins: Sequence[UnitBin]) -> list[int]:
    """What is opened if each unit goes to the bin with the lowest level."""
    while amount > 1e-9:
        able = [chosen for chosen in bins if chosen.room.workers >= chosen.unit_size]
        if not able:
            break
        amount = min(able, key=lambda chosen: chosen.level).open(1, amount, ())
    return [chosen.opened for chosen in bins]


@given(AMOUNTS, BINS)
def test_units_opened_at_once_are_those_opened_one_by_one(
    amount: float, given_bins: Sequence[tuple[int, int, int, int]]
) -> None:
    bins = made(given_bins)
    pour(amount, dict.fromkeys(bins, ()))
    assert [chosen.opened for chosen in bins] == poured_one_by_one(amount, made(given_bins))


def test_bins_grow_evenly() -> None:
    bins = [UnitBin(1, Room(10), level) for level in (4, 0, 1)]
    assert pour(6, dict.fromkeys(bins, ())) == 0
    assert [chosen.opened for chosen in bins] == [0, 4, 2]


def test_open_units_are_used_first() -> None:
    chosen = UnitBin(4, Room(8))
    assert pour(1.5, {chosen: ()}) == 0 and chosen.opened == 4
    assert pour(2.5, {chosen: ()}) == 0 and chosen.opened == 4
    assert pour(0.5, {chosen: ()}) == 0 and chosen.opened == 8
    assert pour(6, {chosen: ()}) == 2.5


def test_an_error_of_rounding_opens_no_unit() -> None:
    chosen = UnitBin(1, Room(10))
    assert pour(0.1 * 3 / 0.1, {chosen: ()}) == 0
    assert chosen.opened == 3


@given(AMOUNTS, BINS)
def test_units_are_whole_and_rooms_are_kept(amount: float, given_bins: Sequence[tuple[int, int, int, int]]) -> None:
    bins = made(given_bins)
    before = {id(chosen.room): chosen.room.workers for chosen in bins}
    rest = pour(amount, dict.fromkeys(bins, ()))
    assert all(chosen.opened % chosen.unit_size == 0 and chosen.slack.workers >= 0 for chosen in bins)
    for room, workers in before.items():
        opened = sum(chosen.opened for chosen in bins if id(chosen.room) == room)
        assert 0 <= opened <= workers
    assert abs(sum(chosen.opened - chosen.slack.workers for chosen in bins) + rest - amount) < 1e-6
    assert rest == 0 or all(chosen.room.workers < chosen.unit_size for chosen in bins)


@given(AMOUNTS, AMOUNTS, BINS)
def test_more_opens_no_less(one: float, other: float, given_bins: Sequence[tuple[int, int, int, int]]) -> None:
    opened = []
    for amount in sorted((one, other)):
        bins = made(given_bins)
        pour(amount, dict.fromkeys(bins, ()))
        opened.append([chosen.opened for chosen in bins])
    assert all(less <= more for less, more in zip(*opened, strict=True))


def test_units_are_opened_until_there_is_enough_of_what_they_have_together() -> None:
    chosen = UnitBin(8, Room(80), quantities=(("license", 2),))
    assert pour(3, {chosen: (("license", 1),)}) == 0 and chosen.opened == 16
    assert pour(13, {chosen: ()}) == 0 and chosen.opened == 16, "workers that others leave"
    assert pour(1, {chosen: (("license", 2),)}) == 0 and chosen.opened == 24
