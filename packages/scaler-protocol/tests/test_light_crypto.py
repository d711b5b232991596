"""Hashes and random numbers without OpenSSL."""

from __future__ import annotations

import hashlib

import pytest

from scaler_protocol.light_crypto import blake2b, random_below


def test_the_hash_is_that_of_hashlib() -> None:
    for options in ({"digest_size": 16}, {"digest_size": 32, "key": b"k" * 64, "person": b"scaler"}):
        assert blake2b(b"data", **options).digest() == hashlib.blake2b(b"data", **options).digest()


@pytest.mark.parametrize("limit", [1, 2, 3, 2**24, 2**64])
def test_random_numbers_are_below_the_limit(limit: int) -> None:
    drawn = {random_below(limit) for _ in range(200)}
    assert all(0 <= number < limit for number in drawn)
    assert len(drawn) >= min(limit, 150)
