"""Prefixes lines of output with their task and worker. Pure."""

from __future__ import annotations

from collections.abc import Callable


class PrefixedLines:
    """Sends text per stream with a prefix before each line; a line may arrive in pieces."""

    def __init__(self, prefix: str, send: Callable[[int, str], None]) -> None:
        self._prefix = prefix
        self._send = send
        self._open: set[int] = set()

    def send(self, stream: int, text: str) -> None:
        """Send a piece of text."""
        if not text:
            return
        head = "" if stream in self._open else self._prefix
        whole = text.endswith("\n")
        body = text[:-1] if whole else text
        (self._open.discard if whole else self._open.add)(stream)
        self._send(stream, head + body.replace("\n", f"\n{self._prefix}") + ("\n" if whole else ""))

    def end(self) -> None:
        """Terminate unfinished lines, since the next text belongs to another task."""
        for stream in self._open:
            self._send(stream, "\n")
