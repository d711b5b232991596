"""Ids."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol import ids
from scaler_protocol.ids import (
    COUNTER_BITS,
    LAST_COUNT,
    SPARE_INCARNATIONS,
    first_run,
    first_task,
    function_id,
    named_function_id,
    new_identity,
    new_incarnation,
    new_session,
    session_of,
)


@given(st.integers(1, 2**32 - 1), st.integers(0, LAST_COUNT))
def test_a_task_knows_its_session(session: int, count: int) -> None:
    task = first_task(session) + count
    assert session_of(task) == session and task < 2**64


@given(st.integers(1, 2**24 - 1), st.integers(1, 2**24 - 1))
def test_runs_of_two_incarnations_never_meet(one: int, other: int) -> None:
    last = first_run(one) + 2**COUNTER_BITS - 1
    assert first_run(one) >> COUNTER_BITS == last >> COUNTER_BITS == one and last < 2**64
    assert one == other or not first_run(one) <= first_run(other) <= last


def test_a_counter_of_runs_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "random_below", lambda limit: limit - 1)
    most = SPARE_INCARNATIONS * 2**COUNTER_BITS
    assert first_run(new_incarnation()) + most < 2**64 and most > 100_000 * 86400 * 365 * 50


def test_random_ids() -> None:
    for make, bits in ((new_session, 32), (new_incarnation, 24)):
        made = {make() for _ in range(200)}
        assert len(made) > 190 and all(0 < number < 2**bits for number in made)
    assert len({new_identity() for _ in range(50)}) == 50 and len(new_identity()) == 16


def test_a_function_is_known_by_its_bytes() -> None:
    assert function_id(b"f") == blake2b(b"\0f", digest_size=16).digest() != function_id(b"g")


def test_a_body_a_name_and_a_reference_of_the_same_bytes_are_three_functions() -> None:
    same = "operator:neg"
    ids = {function_id(same.encode()), function_id(same.encode(), stored=True), named_function_id(same)}
    assert len(ids) == 3 and all(len(each) == 16 for each in ids)
    for head in ("\0", "\1", "\2"):
        assert not ids & {function_id((head + same).encode()), named_function_id(head + same)}
