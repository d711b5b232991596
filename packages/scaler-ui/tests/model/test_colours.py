"""Which colours functions have in the task stream."""

from __future__ import annotations

from scaler_ui.model.colours import FunctionColours


def test_functions_have_different_colours_and_keep_them_while_they_are_shown() -> None:
    colours = FunctionColours(["blue", "green"], "grey")
    assert colours.of(["f", "g", "h"]) == {"f": "blue", "g": "green", "h": "grey"}
    assert colours.of(["h", "g"]) == {"h": "blue", "g": "green"}
    assert colours.of(["f", "h", "g"]) == {"f": "grey", "h": "blue", "g": "green"}
    assert colours.of([]) == {}
