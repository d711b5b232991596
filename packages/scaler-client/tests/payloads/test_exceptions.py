"""Exceptions as bytes: deep tracebacks, long chains, and causes that can not be sent."""

from __future__ import annotations

import copyreg
import dis
import linecache
import re
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.ultratb import VerboseTB
from tblib import pickling_support

from scaler_client.futures.results import RemoteTracebackError, load_failure
from scaler_client.payloads.exceptions import dump_exception
from scaler_client.payloads.user_exceptions import Origin, add_note, attributes_of, formatted, headline
from scaler_protocol.messages import Status
from scaler_protocol.tracebacks import traceback_text
from support.odd_exceptions import ODD, fail_oddly


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("odd"), "ValueError: odd"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(""), "KeyboardInterrupt"),
    ],
)
def test_the_headline_of_an_exception_has_a_colon_before_a_message_only(error: BaseException, line: str) -> None:
    assert headline(error) == line


def deep(frames: int) -> None:
    """Raises after so many calls of itself."""
    if not frames:
        raise ValueError("deep")
    deep(frames - 1)


def forever() -> None:
    forever()


def chained(length: int) -> None:
    """Raises an exception with so many causes."""
    error: Exception = KeyError(0)
    for number in range(length):
        above = ValueError(number)
        above.__cause__, error = error, above
    raise error


class UnsendableError(Exception):
    """Holds what nobody can send."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def caused() -> None:
    try:
        raise UnsendableError("cause")
    except UnsendableError as error:
        raise ValueError("effect") from error


def raised(fn: Callable[..., object], *args: Any) -> tuple[Exception, BaseException]:
    """What a function raises, and what a client gets of that."""
    try:
        fn(*args)
    except Exception as error:
        text = formatted(error)
        payload = dump_exception(error, text)
        assert traceback_text(payload) == text or len(text) > 2**16
        loaded, trace = load_failure(Status.RAISED, payload)
        return error, loaded.with_traceback(trace)
    raise AssertionError("nothing was raised")


def frames_of(error: BaseException) -> list[tuple[str, str, int | None]]:
    """File, name and line of each frame."""
    return [(frame.filename, frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("frames", [0, 400, 900])
def test_an_exception_from_the_depth_keeps_all_its_frames(frames: int) -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + frames)  # the tests themselves are some calls deep
    try:
        error, loaded = raised(deep, frames)
    finally:
        sys.setrecursionlimit(limit)
    assert type(loaded) is ValueError and loaded.args == ("deep",)
    assert frames_of(loaded) == frames_of(error) and len(frames_of(error)) == frames + 2


def test_a_recursion_error_is_one() -> None:
    error, loaded = raised(forever)
    assert type(loaded) is RecursionError and loaded.args == error.args
    assert frames_of(loaded) == frames_of(error)


def test_causes_come_along() -> None:
    _, loaded = raised(chained, 20)
    for number in reversed(range(20)):
        assert type(loaded) is ValueError and loaded.args == (number,)
        assert loaded.__cause__ is not None
        loaded = loaded.__cause__
    assert type(loaded) is KeyError


@pytest.mark.parametrize(("fn", "args"), [(chained, (20_000,)), (caused, ())])
def test_an_exception_whose_causes_can_not_be_sent_comes_alone(fn: Any, args: tuple[Any, ...]) -> None:
    error, loaded = raised(fn, *args)
    assert type(loaded) is ValueError and loaded.args == error.args
    assert isinstance(loaded.__cause__, RemoteTracebackError) and "direct cause" in str(loaded.__cause__)
    assert error.__cause__ is not None and error.__traceback__ is not None, "who holds it finds it as it was"


def test_what_can_not_be_sent_even_alone() -> None:
    with pytest.raises(TypeError, match="pickle"):
        raised(lambda: (_ for _ in ()).throw(UnsendableError("alone")))


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("installed", [False, True])
def test_exceptions_come_whatever_their_classes_make_of_attributes(
    monkeypatch: pytest.MonkeyPatch, name: str, installed: bool
) -> None:
    if installed:  # as libraries do
        monkeypatch.setitem(copyreg.dispatch_table, type(ODD[name]()), pickling_support.pickle_exception)
    error, loaded = raised(fail_oddly, name)
    assert type(loaded) is type(error) and loaded.args == error.args
    assert attributes_of(loaded) == attributes_of(error)
    trace = Origin.of(loaded).traceback
    assert trace is not None and trace.tb_frame.f_code.co_name == "raised"


@pytest.mark.parametrize("name", ODD)
def test_notes_can_be_added_to_any_exception(name: str) -> None:
    error = ODD[name]()
    add_note(error, "first")
    add_note(error, "second")
    assert attributes_of(error)["__notes__"] == ["first", "second"]


class CountedError(OSError):
    """Is made of something else than its arguments."""

    def __init__(self, count: int) -> None:
        super().__init__(count, "counted")
        self.times = count


class RegisteredError(Exception):
    """Its pickle is registered."""


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (lambda: SyntaxError("bad", ("f.py", 3, 4, "text")), ("msg", "filename", "lineno", "text")),
        (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), ("encoding", "object", "reason")),
        (lambda: FileNotFoundError(2, "gone", "path"), ("errno", "strerror", "filename")),
        (lambda: CountedError(4), ("errno", "strerror", "times")),
        (lambda: ImportError("no", name="n", path="p"), ("name", "path")),
    ],
)
def test_the_fields_of_exceptions_come_along(make: Callable[[], Exception], fields: tuple[str, ...]) -> None:
    def fail() -> None:
        raise make()

    error, loaded = raised(fail)
    assert type(loaded) is type(error) and str(loaded) == str(error)
    assert [getattr(loaded, name) for name in fields] == [getattr(error, name) for name in fields]


def test_a_registered_way_to_pickle_an_exception_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(copyreg.dispatch_table, RegisteredError, lambda error: (RegisteredError, ("registered",)))

    def fail() -> None:
        raise RegisteredError("raised")

    _, loaded = raised(fail)
    assert loaded.args == ("registered",)


def test_how_users_pickle_exceptions_is_left_alone() -> None:
    before = dict(copyreg.dispatch_table)
    raised(deep, 0)
    assert copyreg.dispatch_table == before


def test_exceptions_that_led_to_each_other_come_so() -> None:
    def fail() -> None:
        first, second = ValueError("first"), KeyError("second")
        first.__context__, second.__context__ = second, first
        raise first

    _, loaded = raised(fail)
    context = loaded.__context__
    assert type(context) is KeyError and context.__context__ is loaded


class CodecError(UnicodeDecodeError):
    """Has an `__init__` of its own; its text comes from fields that are not its arguments."""

    def __init__(self, file: str, data: bytes) -> None:
        super().__init__("utf-8", data, 0, 1, "not a table")
        self.file = file


class LostModuleError(ImportError):
    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}", name=name, path="/somewhere")


class SlottedError(Exception):
    """As NumPy's AxisError: its text comes from slots, some of which are None, or not set."""

    __slots__ = ("code", "prefix", "unset")

    def __init__(self, code: int) -> None:
        super().__init__("slotted")
        self.code = code
        self.prefix = None

    def __str__(self) -> str:
        return f"{self.prefix or 'code'} {self.code}"


class NamedFileError(OSError):
    """Replaces a field of Python's class."""

    filename = property(lambda self: "mine")

    def __init__(self) -> None:
        super().__init__(2, "gone", "file")


def test_fields_of_classes_written_in_c_come_along() -> None:
    def fail(error: Exception) -> None:
        raise error

    error, loaded = raised(fail, CodecError("a.csv", b"\xff"))
    assert isinstance(loaded, CodecError) and str(loaded) == str(error) != ""
    assert (loaded.file, loaded.object, loaded.reason) == ("a.csv", b"\xff", "not a table")
    _, loaded = raised(fail, LostModuleError("prices"))
    assert isinstance(loaded, LostModuleError) and (loaded.name, loaded.path) == ("prices", "/somewhere")
    _, loaded = raised(fail, SlottedError(7))
    assert isinstance(loaded, SlottedError) and str(loaded) == "code 7" and not hasattr(loaded, "unset")
    _, loaded = raised(fail, NamedFileError())
    assert isinstance(loaded, NamedFileError) and (loaded.errno, loaded.filename) == (2, "mine")


def test_lines_of_a_traceback_are_not_underlined_in_the_wrong_place() -> None:
    _, loaded = raised(lambda: [0][len("abc")])
    lines = traceback.format_tb(loaded.__traceback__)
    assert any('[0][len("abc")]' in line for line in lines)
    assert not any("^" in line for line in lines[1:]), lines


@pytest.mark.parametrize("lines", [0, 31, 32, 5000])
def test_ipython_shows_what_a_task_raised(lines: int) -> None:
    """Also a function in a cell, whose source it takes from the first line of the code on."""
    cell: dict[str, Any] = {}
    text = "def in_a_cell():\n" + "    x = 1\n" * lines + "    return 1 / 0\n"
    linecache.cache["cell"] = len(text), None, text.splitlines(keepends=True), "cell"
    exec(compile(text, "cell", "exec"), cell)
    _, loaded = raised(cell["in_a_cell"])
    trace = loaded.__traceback__
    while trace is not None:
        instructions = {each.offset for each in dis.get_instructions(trace.tb_frame.f_code)}
        assert trace.tb_lasti in instructions, "IPython would look for it, and never end"
        assert trace.tb_frame.f_lineno == trace.tb_lineno
        trace = trace.tb_next
    shown = re.sub(r"\x1b\[[0-9;]*m", "", VerboseTB().text(type(loaded), loaded, loaded.__traceback__))
    assert "in in_a_cell" in shown and "ZeroDivisionError: division by zero" in shown
    if sys.version_info >= (3, 11):
        assert re.search(rf"-> {lines + 2} +return 1 / 0", shown), shown
