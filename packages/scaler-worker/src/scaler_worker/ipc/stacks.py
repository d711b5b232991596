"""Stacks as text: frames from the outermost to the innermost, with semicolons between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

FRAMES: Final = 100
"""Frames of a stack; further ones are left out."""
FRAME_CHARACTERS: Final = 160
LEFT_OUT: Final = "…"


def frame_text(text: str) -> str:
    """A frame of a stack: one short line without semicolons."""
    text = " ".join(text.replace(";", ":").split())
    return text if len(text) <= FRAME_CHARACTERS else text[: FRAME_CHARACTERS - 1] + LEFT_OUT


def pack_stacks(counts: Mapping[str, int], room: int) -> bytes:
    """Lines of a count and a stack, the most frequent ones, as many as there is room for."""
    lines: list[bytes] = []
    for stack, count in sorted(counts.items(), key=lambda each: -each[1]):
        line = f"{count} {stack}\n".encode("utf-8", "replace")
        room -= len(line)
        if room < 0:
            break
        lines.append(line)
    return b"".join(lines)


def read_stacks(text: bytes) -> Iterable[tuple[str, int]]:
    """Stacks with their counts; what is no such line is left out, since a task may have written anything."""
    found: Counter[str] = Counter()
    for line in text.decode("utf-8", "replace").splitlines():
        count, _, stack = line.partition(" ")
        if stack and count.isascii() and count.isdigit() and len(count) < 10:
            found[stack] += int(count)
    return found.items()
