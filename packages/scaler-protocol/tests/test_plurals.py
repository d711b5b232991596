"""Numbers with their nouns."""

from __future__ import annotations

from scaler_protocol.plurals import counted


def test_only_one_has_no_s() -> None:
    assert [counted(number, "run") for number in (0, 1, 2, 1000)] == ["0 runs", "1 run", "2 runs", "1,000 runs"]
