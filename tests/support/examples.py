"""How many random examples a test draws."""

from __future__ import annotations

from hypothesis import settings

_SOAK = 20


def examples(few: int) -> int:
    """So `few` where the examples are the same each time, and many more where new ones are looked for (`make soak`)."""
    return few if settings.default is not None and settings.default.derandomize else _SOAK * few
