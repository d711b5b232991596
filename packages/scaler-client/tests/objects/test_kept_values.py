"""Immutable arguments are kept as long as their objects, but only a budget of those that nobody else has."""

from __future__ import annotations

import pytest

from scaler_client.objects import kept_values
from scaler_client.objects.handles import StoredObject
from scaler_client.objects.kept_values import KeptValues
from scaler_client.objects.rebuild import checksum
from scaler_client.payloads.pickles import dump
from scaler_protocol.buffers import Buffer
from scaler_protocol.objects import Reference, new_object_id

SIZE = 1000


class NoBackend:
    """Objects are not read here."""

    def fetch(self, reference: bytes, timeout: float = 0.0) -> Buffer:
        raise AssertionError(reference)

    def free(self, reference: bytes) -> None:
        """Nothing is stored."""


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> KeptValues:
    """Room for ten."""
    monkeypatch.setattr(kept_values, "KEPT_BYTES", 10 * SIZE)
    return KeptValues()


def keep(values: KeptValues, value: bytes | str) -> StoredObject:
    """The object of a value."""
    stored = StoredObject(NoBackend(), Reference(new_object_id(), SIZE).pack())
    values.keep(value, stored, dump, checksum(dump(value)))
    return stored


def keep_alone(values: KeptValues, count: int) -> list[StoredObject]:
    """The objects of so many values that nobody else has."""
    return [keep(values, bytes(SIZE)) for _ in range(count)]


def alive(objects: list[StoredObject]) -> list[bool]:
    return [stored.source is not None and stored.source.alive for stored in objects]


def test_of_values_that_nobody_else_has_the_latest_are_kept(values: KeptValues) -> None:
    objects = keep_alone(values, 30)
    assert alive(objects) == [False] * 20 + [True] * 10
    assert values.size == 10 * SIZE
    assert [stored.source for stored in objects[:20]] == [None] * 20
    source = objects[-1].source
    assert source is not None and source.payload() == dump(bytes(SIZE))


def test_values_that_others_have_are_kept_and_those_behind_them_are_dropped(values: KeptValues) -> None:
    others: list[bytes | str] = [bytes(SIZE), "x" * SIZE]
    theirs = [keep(values, value) for value in others]
    objects = keep_alone(values, 30)
    assert [values.find(value) for value in others] == theirs
    assert alive(objects).count(True) <= 10 and alive(objects)[-1]
    others.clear()
    keep_alone(values, 30)
    more = keep_alone(values, 30)
    assert alive(theirs) == [False, False] and alive(more)[-1]


def test_what_ends_makes_room(values: KeptValues) -> None:
    objects = keep_alone(values, 9)
    for _ in range(100):
        keep_alone(values, 1)
    assert all(alive(objects))
    objects.clear()
    last = keep_alone(values, 1)
    assert values.size == SIZE and all(alive(last))


def test_a_value_is_found_while_it_is_kept(values: KeptValues) -> None:
    value = bytes(SIZE)
    assert values.find(value) is None
    stored = keep(values, value)
    assert values.find(value) is stored and values.find(bytes(SIZE)) is None
    del stored
    assert values.find(value) is None


def test_a_value_that_is_put_again_has_its_new_object(values: KeptValues) -> None:
    value = bytes(SIZE)
    first = keep(values, value)
    values.forget_objects()
    assert values.find(value) is None and alive([first]) == [True]
    second = keep(values, value)
    assert values.find(value) is second and values.size == SIZE
    del first
    assert values.find(value) is second


def test_an_object_has_one_source_of_equal_values(values: KeptValues) -> None:
    value, equal = b"x" * SIZE, bytes(bytearray(b"x" * SIZE))
    stored = keep(values, value)
    source = stored.source
    values.keep(equal, stored, dump, checksum(dump(equal)))
    assert stored.source is source and values.find(value) is values.find(equal) is stored
    del value
    others = keep_alone(values, 30)
    assert all(alive(others[-5:]))
    del stored
    assert values.find(equal) is None
