"""Colours of charts."""

from __future__ import annotations

from colorsys import rgb_to_hsv
from itertools import combinations

from scaler_ui.web.charts import OTHERS, PALETTE


def rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def test_no_function_has_the_red_of_failures_or_the_colour_of_another_one() -> None:
    for colour in PALETTE:
        hue, saturation, _ = rgb_to_hsv(*rgb(colour))
        assert min(hue, 1 - hue) > 10 / 360 and saturation > 0.15, f"{colour} is red or grey"
    for one, other in combinations((*PALETTE, OTHERS), 2):
        assert sum((a - b) ** 2 for a, b in zip(rgb(one), rgb(other), strict=True)) > 0.005, f"{one} is like {other}"
