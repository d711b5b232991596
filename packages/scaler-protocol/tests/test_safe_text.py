"""Text of peers and tasks in logs, on terminals and in labels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_protocol.monitoring import MonitorStatus, TaskEvents
from scaler_protocol.safe_text import escaped, escaped_lines, escaped_message, escaped_output

HOSTILE = [
    ("line\n[ERROR]forged", r"line\n[ERROR]forged"),
    ("\x1b[2J\x9b31m", r"\x1b[2J\x9b31m"),
    ("a\u202egpj.exe", r"a\u202egpj.exe"),
    ("zero\u200bwidth\u2028line", r"zero\u200bwidth\u2028line"),
    ("bell\a\r\t", r"bell\x07\r\t"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_what_forges_or_steers_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(text=st.text())
def test_whatever_comes_can_be_printed_on_one_line(text: str) -> None:
    assert escaped(text).isprintable()
    assert all(line.isprintable() for line in escaped_lines(text).split("\n"))
    assert all(line.startswith("  ") for line in escaped_lines(text, "  ").split("\n")[1:])


def test_plain_text_stays_as_it_is() -> None:
    text = "größer als 5 漢字 \N{GRINNING FACE}"
    assert escaped(text) is text and escaped_lines(text) is text


def test_lines_of_a_traceback_stay_lines() -> None:
    assert escaped_lines("Traceback:\n\tat\x1b\r\nend") == "Traceback:\n        at\\x1b\nend"


@given(text=st.text())
def test_a_piece_of_output_keeps_where_its_lines_end(text: str) -> None:
    safe = escaped_output(text)
    assert all(line.isprintable() for line in safe.replace("\r", "\n").split("\n"))
    assert [sign for sign in safe if sign in "\r\n"] == [sign for sign in text if sign in "\r\n"]
    assert list(escaped_message(TaskEvents(printed=(text,))).printed) == [safe]


def test_every_text_of_a_monitor_message_is_made_safe() -> None:
    status = MonitorStatus(1, 2.0, address="\x1b", agent_names=("plain", "a\nb"), function_names=("f",))
    safe = escaped_message(status)
    assert (safe.address, list(safe.agent_names), safe.function_names) == (r"\x1b", ["plain", r"a\nb"], ("f",))
    events = escaped_message(TaskEvents(texts=("one\ntwo\x1b",), group_functions=("f\ng",), batches=b"\n"))
    assert list(events.texts) == ["one\ntwo\\x1b"] and list(events.group_functions) == [r"f\ng"]
    plain = MonitorStatus(1, 2.0, agent_names=("a",))
    assert escaped_message(plain) is plain
