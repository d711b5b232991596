"""Exceptions as bytes, with their tracebacks, however deep, and with their causes if these can be pickled."""

from __future__ import annotations

import builtins
import copyreg
import pickle
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from io import BytesIO
from types import FrameType, GetSetDescriptorType, MemberDescriptorType, TracebackType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final, cast

from scaler_client.payloads.classes import Pickler
from scaler_client.payloads.user_exceptions import Origin, attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN: Final = ("__file__", "__name__")
_OF_PYTHON: Final = tuple(
    {each.__reduce__ for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)}
)
"""The `__reduce__` of the classes of exceptions that Python itself has."""
_FIELD: Final = (GetSetDescriptorType, MemberDescriptorType)
_NOT_SENT: Final = frozenset({*vars(BaseException), "__weakref__", "obj"})
"""Fields that are sent otherwise, and the object whose attribute is missing, which may be anything."""
_UNSET: Final = object()
_TBLIB: Final = "tblib.pickling_support"
"""Libraries have it pickle all exceptions."""
_STUB: Final = compile("raise error", "", "exec")
_GROUP: Final = getattr(builtins, "BaseExceptionGroup", ())
"""Python 3.10 has no exception groups."""
_Code = tuple[str, str, int, dict[str, Any]]
"""A code object: its file, name and first line, and the globals of its frame that `traceback` uses."""


def dump_exception(error: BaseException, text: str) -> bytes:
    """The payload of a RAISED outcome: the pickle of the exception and its traceback as text.

    If its causes or frames cannot be pickled, the payload lacks them, and only `text` shows them. The payload is loaded
    once as a check. Raises the error of pickling or loading the exception alone.
    """
    try:
        return _dumped(error, text)
    except Exception:
        with _alone(error):
            return _dumped(error, text)


def _dumped(error: BaseException, text: str) -> bytes:
    file = BytesIO()
    _FailurePickler(file, 5).dump((error, text))
    payload = file.getvalue()
    pickle.loads(payload)
    return payload


@contextmanager
def _alone(error: BaseException) -> Iterator[None]:
    """A context in which the exception has no traceback, cause or context; they are restored: others may hold it."""
    origin = Origin.of(error)
    Origin().give(error)
    try:
        yield
    finally:
        origin.give(error)


class _FailurePickler(Pickler):
    """Pickles an exception with its Origin, and a traceback as columns.

    Frame by frame, each inside the one before, 400 frames would exceed the recursion limit.
    """

    def reducer_override(self, obj: Any) -> Any:
        if issubclass(type(obj), BaseException):
            return _reduced(obj)
        if type(obj) is not TracebackType:
            return super().reducer_override(obj)
        codes: dict[Any, int] = {}
        rows: list[tuple[int, int]] = []
        described: list[_Code] = []
        trace: TracebackType | None = obj
        while trace is not None:
            frame = trace.tb_frame
            number = codes.setdefault(frame.f_code, len(codes))
            if number == len(described):
                shown: dict[str, Any] = {name: frame.f_globals[name] for name in _SHOWN if name in frame.f_globals}
                code = frame.f_code
                described.append((code.co_filename, code.co_name, code.co_firstlineno, shown))
            rows.append((number, trace.tb_lineno))
            trace = trace.tb_next
        return restore_traceback, (described, rows)


def _reduced(error: BaseException) -> tuple[Any, ...]:
    """The reduction of an exception, as `__reduce__` returns it."""
    kind = type(error)
    registered = copyreg.dispatch_table.get(kind)
    if registered is not None and registered.__module__ == _TBLIB:
        registered = None
    reduced = registered(error) if registered is not None else error.__reduce_ex__(5)
    if not isinstance(reduced, tuple):
        raise pickle.PicklingError(f"{kind.__qualname__}.__reduce__ gave a {type(reduced).__name__}, not a tuple")
    make, args, state = (*reduced, None)[:3]
    if registered is None and kind.__reduce__ in _OF_PYTHON and type(kind.__init__) is not WrapperDescriptorType:
        # The parameters of an __init__ written in Python are unknown, so loading does not call it.
        make, args, state = make_bare, (kind, *_new_args(error)), _fields(error)
    origin, notes = Origin.of(error), attributes_of(error).get("__notes__")
    return make, args, (state, tuple(origin), notes), None, None, restore


def _new_args(error: BaseException) -> tuple[Any, ...]:
    """The arguments that `__new__` requires."""
    group = isinstance(error, _GROUP)
    return (error.message, error.exceptions) if group else ()  # type: ignore[attr-defined]


def _fields(error: BaseException) -> dict[str, Any]:
    """The state of an exception: its arguments and attributes, slots, and fields of Python's own classes."""
    fields = {"args": error.args, **attributes_of(error)}
    hidden = {*_NOT_SENT}
    for base in type(error).__mro__ if not isinstance(error, _GROUP) else ():  # fields of a group cannot be set
        of_python = base.__module__ == builtins.__name__
        own = of_python or "__slots__" in vars(base)
        for name, field in vars(base).items():
            if own and name not in hidden and type(field) in _FIELD:
                value = getattr(error, name, _UNSET)
                if value is not _UNSET and not (of_python and value is None):  # str() would show that it was set
                    fields[name] = value
        hidden.update(vars(base))
    return fields


def make_bare(kind: type[BaseException], *args: Any) -> BaseException:
    """An exception whose own `__init__` is not called."""
    return kind.__new__(kind, *args)


def restore(error: BaseException, state: tuple[Any, tuple[Any, ...], Any]) -> None:
    """Set the attributes of an exception, even if its class overrides `__setattr__`, and its origin."""
    own, origin, notes = state
    if own is not None and type(error).__setstate__ is not BaseException.__setstate__:
        error.__setstate__(own)
    elif own is not None:
        for name, value in own.items():
            BaseException.__setattr__(error, name, value)
    Origin(*origin).give(error)
    if notes is not None:
        attributes_of(error)["__notes__"] = notes


def restore_traceback(codes: Sequence[_Code], rows: Sequence[tuple[int, int]]) -> TracebackType | None:
    """The traceback with these frames: each row is a position in `codes` and a line number.

    It tells no columns of its lines, since the instructions of its frames are not those that have failed. They are
    there all the same, and on the right line, because IPython looks at them.
    """
    frames = {row: _frame(*codes[row[0]], line=row[1]) for row in {*rows}}
    trace = None
    for row in reversed(rows):
        trace = TracebackType(trace, frames[row], frames[row].f_lasti, row[1])
    try:
        return trace
    finally:
        del trace, frames  # a frame that is kept would keep this one


def _frame(file: str, name: str, first: int, shown: dict[str, Any], line: int) -> FrameType:
    """A frame that shows this line of this code."""
    code = _STUB.replace(co_filename=file, co_name=name, co_firstlineno=line)
    if sys.version_info >= (3, 11):
        code = code.replace(co_qualname=name, co_firstlineno=first, co_linetable=_line_table(line - first))
    try:
        exec(code, dict(shown))
    except NameError as error:
        return cast(Any, error).__traceback__.tb_next.tb_frame  # type: ignore[no-any-return]
    raise AssertionError("the stub raises NameError")


def _line_table(line: int) -> bytes:
    """All instructions of the stub are on this line, counted from the first, and in no column.

    Source: locations in CPython from 3.11 on: an entry without columns, and its line as signed variable-length integer.
    """
    number = -line << 1 | 1 if line < 0 else line << 1
    entry = [0xE7 + len(_STUB.co_code) // 2]
    while number > 63:
        entry.append(number & 63 | 64)
        number >>= 6
    return bytes([*entry, number])
