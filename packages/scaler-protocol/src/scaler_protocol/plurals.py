"""Numbers with their nouns, for log lines and reasons."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number and its noun, with an s unless the number is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
