"""Tracebacks are read out of pickles without unpickling them."""

from __future__ import annotations

import json
import pickle
import traceback
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.tracebacks import LONGEST, bounded, excerpt, headline, traceback_text


@given(st.text(st.characters(codec="utf-8"), max_size=700), st.sampled_from([4, 5]))
def test_the_text_behind_an_exception(text: str, protocol: int) -> None:
    text += "\n"
    assert traceback_text(pickle.dumps((ValueError("X" * 300), text), protocol)) == text


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("size", [255, 256, 2**16 - 1, 2**16, 2**16 + 1, 2**18])
def test_a_text_of_any_length(size: int, protocol: int) -> None:
    text = "X" * (size - 1) + "\n"
    for error in (ValueError("x"), ValueError("X" * 70_000)):
        assert traceback_text(pickle.dumps((error, text), protocol)) == text


def test_the_text_of_a_call_in_json() -> None:
    written = {"error": "ValueError", "message": "odd", "details": {"traceback": "Traceback…\nValueError: odd\n"}}
    assert traceback_text(json.dumps(written).encode()) == "Traceback…\nValueError: odd\n"


@pytest.mark.parametrize(
    "payload",
    [
        b"", b".", b"X", bytes(range(256)), pickle.dumps((1, 2)), b"X\x05\0\0\0ab.",
        b"{", b"{}", b'{"details": 1}', b'{"details": {"traceback": 1}}',
        b'{"details": {"traceback": "x"}}' + b" " * 2**20, b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_such_payload_has_none(payload: bytes) -> None:
    assert traceback_text(payload) == ""


@pytest.mark.parametrize("filling", [b"X", b"\0", b"X\1\0\0\0", b"\x01\x01\0"])
def test_no_payload_takes_long(filling: bytes) -> None:
    payload = filling * (5_000_000 // len(filling)) + b"\n\x86."
    calls = 0

    class Counted(bytes):
        def rfind(self, *arguments: Any) -> int:
            nonlocal calls
            calls += 1
            return super().rfind(*arguments)

    assert traceback_text(Counted(payload)) in ("", "\n") and calls < 500_000


def raised(statement: str) -> str:
    """The traceback that Python prints."""
    try:
        exec(statement)
    except BaseException:
        return traceback.format_exc()
    raise AssertionError(statement)


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("raise ValueError('first\\nsecond\\n\\nthird')", "ValueError: first"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("try:\n 1 / 0\nexcept Exception:\n raise KeyError('a\\nb')", "KeyError: 'a\\nb'"),
        ("try:\n 1 / 0\nexcept Exception as e:\n raise ValueError('a\\nb') from e", "ValueError: a"),
        ("raise ValueError('a') from KeyError('never raised')", "ValueError: a"),
        ("raise ValueError('a') from type('Remote', (Exception,), {})('\\n\"\"\"\\nTraceback …')", "ValueError: a"),
        ("raise ValueError('\\n\\n  first\\nsecond')", "ValueError: first"),
        ("raise ValueError('2 faults:\\n  price\\n  date')", "ValueError: 2 faults: price"),
        ("raise ValueError('\\n')", "ValueError:"),
        ("raise ValueError('x\\nTraceback (most recent call last):\\nKeyError: inner')", "ValueError: x"),
    ],
)
def test_the_headline_is_the_type_and_the_first_line_of_the_message(statement: str, line: str) -> None:
    assert headline(raised(statement)) == line


def test_the_headline_of_an_exception_with_notes_and_of_a_group() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no\na note\nanother one\n'
    assert headline(text) == "ValueError: no"
    group = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "a.py", line 1, in f\n'
        "  | ExceptionGroup: both (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | ValueError: one\n"
        "    +------------------------------------\n"
    )
    assert headline(group) == "ExceptionGroup: both (2 sub-exceptions)"


def test_the_headline_is_the_first_line_of_a_text_that_is_no_traceback() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: no\n  more of it\n'
    assert headline(text) == "ValueError: no" and headline("") == ""
    assert headline("it was killed; last words:\nFatal: x\ny") == "it was killed; last words: Fatal: x"
    assert headline("it was killed; last words:\n") == "it was killed; last words:"


@pytest.mark.parametrize("frames", [0, 100, 3000, 20_000])
@pytest.mark.parametrize("message", ["deep", "deep\n" * 20_000])
def test_the_headline_of_a_long_traceback(frames: int, message: str) -> None:
    frame = '  File "a.py", line 1, in f\n    f()\n'
    text = f"Traceback (most recent call last):\n{frame * frames}RecursionError: {message}\n"
    assert headline(text) == "RecursionError: deep"
    later = (
        f"{text}\nDuring handling of the above exception, another exception occurred:\n\n"
        f"Traceback (most recent call last):\n{frame}ValueError: later\n"
    )
    assert headline(later) == "ValueError: later"
    assert excerpt(text, 16_384).startswith(text[:10] if len(text) <= 16_384 else "RecursionError: deep\n")


@pytest.mark.parametrize("sign", ["x", "é", "\U0001f642"])
def test_a_bounded_text_is_found(sign: str) -> None:
    text = bounded(f"ValueError: {sign * LONGEST}\nits end\n")
    assert traceback_text(pickle.dumps((ValueError(sign * LONGEST), text), 5)) == text
    assert text.startswith("ValueError: ") and text.endswith("its end\n")
    assert bounded("short") == "short"
