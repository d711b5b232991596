"""Figures with their units."""

import pytest

from scaler_protocol.units import duration, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (130 << 20, "130.0 MiB"),
        (3 << 40, "3.0 TiB"),
        (3 << 51, "6,144.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 μs"), (85e-6, "85 μs"), (7e-4, "0.7 ms"), (2.5, "2.5 s"), (725.2, "12 min 5 s"), (12_000, "3 h 20 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
