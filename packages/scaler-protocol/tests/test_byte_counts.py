"""Numbers of bytes as people write them."""

from __future__ import annotations

import pytest

from scaler_protocol.byte_counts import parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0), ("4000000000", 4 * 10**9), ("12 B", 12), ("4GB", 4 * 10**9), ("4g", 4 * 10**9), ("512MiB", 2**29),
        ("512 Mi", 2**29), ("1.5kB", 1500), ("1.5 KiB", 1536), ("2TiB", 2**41), ("9007199254740993", 2**53 + 1),
    ],
)  # fmt: skip
def test_a_unit_may_follow(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "4 apples", "-1", "1e9", "nan", "4GBB", "4 G B", "\u0661GB", "i", "4i"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes, like 4000000000, 4GB or 512MiB"):
        parse_bytes(text)
