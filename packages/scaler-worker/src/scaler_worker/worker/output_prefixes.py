"""Lines of output behind a prefix that says whose they are. Pure."""

from __future__ import annotations

from collections.abc import Callable


class PrefixedLines:
    """Passes on text by stream, each line behind the prefix; a line may come in pieces."""

    def __init__(self, prefix: str, send: Callable[[int, str], None]) -> None:
        self._prefix = prefix
        self._send = send
        self._open: set[int] = set()

    def send(self, stream: int, text: str) -> None:
        """Pass on what was written."""
        if not text:
            return
        head = "" if stream in self._open else self._prefix
        whole = text.endswith("\n")
        body = text[:-1] if whole else text
        (self._open.discard if whole else self._open.add)(stream)
        self._send(stream, head + body.replace("\n", f"\n{self._prefix}") + ("\n" if whole else ""))

    def end(self) -> None:
        """End lines that are open: what comes next is somebody else's."""
        for stream in self._open:
            self._send(stream, "\n")
