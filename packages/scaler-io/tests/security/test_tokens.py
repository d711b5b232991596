"""Tokens are worth something to their holder only, for their session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scaler_io.security.tokens import TOKEN_BYTES, Purpose, SessionTokens

ADA, BOB = b"a" * 32, b"b" * 32
TOKENS = SessionTokens(b"s" * 32)
TOKEN = TOKENS.issue(Purpose.OWN, ADA, 5)


def test_a_token_is_valid_for_what_it_was_issued() -> None:
    assert len(TOKEN) == TOKEN_BYTES
    assert TOKENS.is_valid(TOKEN, Purpose.OWN, ADA, 5)
    assert SessionTokens(b"s" * 32).is_valid(TOKEN, Purpose.OWN, ADA, 5)


def test_a_token_is_worth_nothing_for_anything_else() -> None:
    assert not TOKENS.is_valid(TOKEN, Purpose.OWN, BOB, 5)
    assert not TOKENS.is_valid(TOKEN, Purpose.OWN, ADA, 6)
    assert not TOKENS.is_valid(TOKEN, Purpose.WORK, ADA, 5)
    assert not SessionTokens(b"t" * 32).is_valid(TOKEN, Purpose.OWN, ADA, 5)


@given(st.integers(0, TOKEN_BYTES * 8 - 1))
def test_no_bit_of_a_token_can_be_changed(bit: int) -> None:
    changed = bytearray(TOKEN)
    changed[bit // 8] ^= 1 << bit % 8
    assert not TOKENS.is_valid(bytes(changed), Purpose.OWN, ADA, 5)


@given(st.binary(max_size=2 * TOKEN_BYTES))
def test_what_nobody_has_issued_is_no_token(text: bytes) -> None:
    assert not TOKENS.is_valid(text, Purpose.OWN, ADA, 5)
