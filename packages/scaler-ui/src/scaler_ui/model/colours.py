"""Colours of functions in the task stream. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class FunctionColours:
    """Colours of functions: each has its own while there are some, and keeps it while it is shown."""

    def __init__(self, palette: Sequence[str], others: str) -> None:
        self.shown: dict[str, str] = {}
        self._palette = palette
        self._others = others

    def of(self, functions: Sequence[str]) -> dict[str, str]:
        """The colours of these functions; the first ones have precedence where colours are few."""
        kept = {name: colour for name in functions if (colour := self.shown.get(name, self._others)) != self._others}
        free = [colour for colour in self._palette if colour not in kept.values()][::-1]
        self.shown = {name: kept.get(name) or (free.pop() if free else self._others) for name in functions}
        return self.shown
