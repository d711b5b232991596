"""Hashes, comparison and random numbers without OpenSSL."""

from __future__ import annotations

import hashlib

import pytest

from scaler_protocol.light_crypto import blake2b, compare_digest, random_below


def test_the_hash_is_that_of_hashlib() -> None:
    for options in ({"digest_size": 16}, {"digest_size": 32, "key": b"k" * 64, "person": b"scaler"}):
        assert blake2b(b"data", **options).digest() == hashlib.blake2b(b"data", **options).digest()


def test_bytes_are_compared() -> None:
    assert compare_digest(b"a" * 32, b"a" * 32)
    assert not compare_digest(b"a" * 32, b"a" * 31 + b"b")
    assert not compare_digest(b"a", b"ab")


@pytest.mark.parametrize("limit", [1, 2, 3, 2**24, 2**64])
def test_random_numbers_are_below_the_limit(limit: int) -> None:
    drawn = {random_below(limit) for _ in range(200)}
    assert all(0 <= number < limit for number in drawn)
    assert len(drawn) >= min(limit, 150)
