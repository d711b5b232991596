"""The traceback in the payload of a RAISED outcome, for programs that must not unpickle untrusted bytes.

The payload is the pickle of `(exception, traceback as text)`. It ends with the length of that text, the text, and the
opcodes that build the pair. If the text is long (64 KiB), these opcodes have a separate pickle frame. Of a call in JSON
it is an object that has the text in its details.
"""

from __future__ import annotations

import json
import re
from pickle import BINUNICODE, FRAME, MEMOIZE, SHORT_BINUNICODE, STOP, TUPLE2
from typing import Final

from scaler_protocol.limits import shortened
from scaler_protocol.ranges import Text

LONGEST = 2**20
"""Bytes of the longest text that is found."""
_AFTER = STOP + TUPLE2 + MEMOIZE
_HEADS = ("Traceback (most recent call last):", "  + Exception Group Traceback (most recent call last):")
_IN_GROUP = "  | "
_HEADLINE: Final = Text(1000)
_TYPE = re.compile(r"(  \| )?[^\s:]+(: |:?$)")
"""How the text of an exception begins that was never raised, and is the cause of one that was."""
_CHAINED = ("another exception occurred:", "direct cause of the following exception:")


def traceback_text(payload: bytes) -> str:
    """The text, or "" if the payload has none."""
    if payload.startswith(b"{"):
        return _text_in_json(payload) if len(payload) <= LONGEST else ""
    end = len(payload.rstrip(_AFTER))
    frame = FRAME + (len(payload) - end).to_bytes(8, "little")
    if payload.endswith(frame, 0, end):
        end -= len(frame)
    begin = _begin_of_long(payload, end) or _begin_of_short(payload, end)
    return payload[begin:end].decode("utf-8", "replace") if begin else ""


def bounded(text: str) -> str:
    """A traceback that `traceback_text` finds: of a longer one the begin and the end."""
    half = LONGEST // 8  # a character has up to four bytes
    return text if len(text) <= 2 * half else f"{text[:half]}\n[…]\n{text[-half:]}"


def excerpt(text: str, most: int) -> str:
    """A traceback of at most so many characters, or the headline and the end of a longer one."""
    if len(text) <= most:
        return text
    return f"{shortened(headline(text), _HEADLINE)}\nTraceback, its end:\n{text[-most:]}"


def _text_in_json(payload: bytes) -> str:
    try:
        text = json.loads(payload)["details"]["traceback"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return text if isinstance(text, str) else ""


def _begin_of_long(payload: bytes, end: int) -> int:
    """Where a text begins whose length has four bytes; 0 if there is none.

    Of 256 possible lengths at a time three bytes are the same: searching for these bounds the time, whatever the bytes.
    """
    for length in range(0, min(end, LONGEST), 256):
        top = (length >> 8).to_bytes(3, "little")
        last = end - length
        at = payload.rfind(top, max(0, last - 258), last)
        while at >= 2:
            begin = at + 3
            if payload[at - 2 : at] == BINUNICODE + bytes([(end - begin) & 255]) and (end - begin) >> 8 == length >> 8:
                return begin
            at = payload.rfind(top, max(0, last - 258), at + 2)
    return 0


def _begin_of_short(payload: bytes, end: int) -> int:
    """Where a text begins whose length has one byte; 0 if there is none."""
    for begin in range(end, max(1, end - 256), -1):
        if payload[begin - 2 : begin] == SHORT_BINUNICODE + bytes([end - begin]):
            return begin
    return 0


def headline(text: str) -> str:
    """One line: the type and the first line of the message if the text is a traceback, else its first line.

    A line that ends with a colon goes on with the next one. Of chained tracebacks it is the last one's. Only the first
    MiB is looked at, in linear time.
    """
    lines = text[:LONGEST].splitlines()
    begin = next((at for at, line in enumerate(lines) if line), len(lines))
    if begin < len(lines) and (lines[begin].startswith(_HEADS) or _TYPE.match(lines[begin])):
        for at in range(begin + 3, len(lines)):
            if lines[at].startswith(_HEADS) and lines[at - 2].endswith(_CHAINED):
                begin = at
        begin += lines[begin].startswith(_HEADS)
    lines = [line.removeprefix(_IN_GROUP) for line in lines[begin:]]
    first = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    found = "".join(lines[first : first + 1])
    if found.rstrip().endswith(":"):  # the message begins with an empty line, or says in the next one what it is about
        return f"{found.rstrip()} {next(filter(None, map(str.strip, lines[first + 1 :])), '')}".rstrip()
    return found
