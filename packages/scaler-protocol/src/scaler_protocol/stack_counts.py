"""What a message tells of the stacks of a profile. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final

from scaler_protocol.limits import STACKS

OTHERS: Final = "(other stacks)"
"""What stands for the stacks for which there is no room."""


def most_frequent(counts: Counter[str], room: int) -> Counter[str]:
    """The most frequent stacks, of so many bytes together, and how many samples the others have."""
    found: Counter[str] = Counter()
    others = counts.get(OTHERS, 0)
    for stack, count in counts.most_common():
        if stack == OTHERS:
            continue
        room -= len(stack.encode())
        if room >= 0 and len(found) < STACKS - 1:
            found[stack] = count
        else:
            others += count
    if others:
        found[OTHERS] = others
    return found
