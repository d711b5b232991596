"""The traceback in the payload of a RAISED outcome, for programs that must not unpickle what strangers wrote.

The payload is the pickle of `(exception, traceback as text)`. So it ends with that text, behind its length, and with
opcodes that make the pair; where the text is long (64 KiB) these are a frame of their own.
"""

from __future__ import annotations

from pickle import BINUNICODE, FRAME, MEMOIZE, SHORT_BINUNICODE, STOP, TUPLE2

_AFTER = STOP + TUPLE2 + MEMOIZE


def traceback_text(payload: bytes) -> str:
    """The text, or nothing where the payload is not such a pickle."""
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
    """What is said in one line: of a traceback type and message of the exception, of all else the first line."""
    lines = [line for line in text.splitlines() if line and not line[0].isspace()]
    if not lines:
        return ""
    return lines[-1] if lines[0].startswith("Traceback") else lines[0]
