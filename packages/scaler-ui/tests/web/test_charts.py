"""Colours of charts."""

from __future__ import annotations

from colorsys import rgb_to_hsv
from itertools import combinations

from scaler_ui.model.task_stream import BARS, Bar, TaskStream
from scaler_ui.web.charts import OTHERS, PALETTE, _range, dots, drawn


def rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def test_no_function_has_the_red_of_failures_or_the_colour_of_another_one() -> None:
    for colour in PALETTE:
        hue, saturation, _ = rgb_to_hsv(*rgb(colour))
        assert min(hue, 1 - hue) > 10 / 360 and saturation > 0.15, f"{colour} is red or grey"
    for one, other in combinations((*PALETTE, OTHERS), 2):
        assert sum((a - b) ** 2 for a, b in zip(rgb(one), rgb(other), strict=True)) > 0.005, f"{one} is like {other}"


def test_a_browser_is_sent_little_of_long_names_and_nothing_of_hidden_functions() -> None:
    names = [f"{at}{'漢' * 3000}" for at in range(BARS)]
    bars: list[Bar] = [[0, 0, 1, name, "success", f"{at:x}", "w", 0, 1] for at, name in enumerate(names)]
    colours = dict.fromkeys(names, OTHERS)
    stream = TaskStream(["w"], bars, (0.0, 1.0), [[0, 0, 1, names[0], 0.5, "w"]], 1)
    assert sum(map(len, drawn(stream, colours, set()))) < 2000 * BARS
    blocks, rest = drawn(stream, colours, {names[0]})
    assert blocks.endswith(",[])") and rest.count('"success"') == BARS - 1


def test_a_value_without_neighbours_is_a_dot() -> None:
    line: list[list[float | None]] = [[1, 5.0], [2, None], [3, 6.0], [4, 7.0], [5, None], [6, 8.0]]
    assert dots(line) == [{"coord": [1, 5.0]}, {"coord": [6, 8.0]}] and dots([]) == dots(line[1:2]) == []


def test_without_a_scheduler_the_task_stream_has_no_times() -> None:
    assert _range((0.0, 0.0))["show"] is False
    assert _range((5.0, 65.0)) == {"min": 5000, "max": 65000, "show": True}
