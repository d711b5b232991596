"""The traceback in the payload of a RAISED outcome, for programs that must not unpickle untrusted bytes.

The payload is the pickle of `(exception, traceback as text)`. It ends with the length of that text, the text, and the
opcodes that build the pair. If the text is long (64 KiB), these opcodes have a separate pickle frame.
"""

from __future__ import annotations

from pickle import BINUNICODE, FRAME, MEMOIZE, SHORT_BINUNICODE, STOP, TUPLE2

_AFTER = STOP + TUPLE2 + MEMOIZE


def traceback_text(payload: bytes) -> str:
    """The text, or "" if the payload is not such a pickle."""
    end = len(payload.rstrip(_AFTER))
    frame = FRAME + (len(payload) - end).to_bytes(8, "little")
    if payload.endswith(frame, 0, end):
        end -= len(frame)
    for opcode, size in ((BINUNICODE, 4), (SHORT_BINUNICODE, 1)):
        at = payload.rfind(opcode, 0, end)
        while at >= 0:
            begin = at + 1 + size
            if int.from_bytes(payload[at + 1 : begin], "little") == end - begin:
                return payload[begin:end].decode("utf-8", "replace")
            at = payload.rfind(opcode, 0, at)
    return ""


def headline(text: str) -> str:
    """One line: the exception's type and message if the text is a traceback, else the first line."""
    lines = [line for line in text.splitlines() if line and not line[0].isspace()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
