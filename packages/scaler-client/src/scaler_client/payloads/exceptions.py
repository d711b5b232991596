"""Exceptions as bytes: with their tracebacks, however deep, and with their causes where those can be sent, too."""

from __future__ import annotations

import builtins
import copyreg
import pickle
from collections.abc import Sequence
from contextlib import contextmanager
from io import BytesIO
from types import SimpleNamespace, TracebackType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any, Final, cast

from tblib import Traceback, pickling_support

from scaler_client.payloads.classes import Pickler
from scaler_client.payloads.user_exceptions import Origin, attributes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN: Final = ("__file__", "__name__")
_PLAIN_REDUCE: Final = (BaseException.__reduce__, OSError.__reduce__)
_OS_FIELDS: Final = ("errno", "strerror", "filename", "filename2")
_GROUP: Final = getattr(builtins, "BaseExceptionGroup", ())
"""Python 3.10 has none."""
_Code = tuple[str, str, dict[str, Any]]
"""File, name, and what of its globals decides how a frame is shown."""


def dump_exception(error: BaseException, text: str) -> bytes:
    """The payload of a RAISED outcome: the pickle of the exception and its traceback as text.

    If its causes or frames cannot be pickled, the exception is sent without them; `text` still shows them. Raises what
    pickling the exception alone raises, or what loading it raises: a payload that cannot be loaded here is not sent.
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
    """The exception without those that led to it, which somebody may hold besides us."""
    origin = Origin.of(error)
    Origin().give(error)
    try:
        yield
    finally:
        origin.give(error)


class _FailurePickler(Pickler):
    """Writes exceptions with where they come from, and tracebacks as columns.

    Frame within frame, as tblib does, 400 of them exceed the recursion limit.
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
                described.append((frame.f_code.co_filename, frame.f_code.co_name, shown))
            rows.append((number, trace.tb_lineno))
            trace = trace.tb_next
        return restore_traceback, (described, rows)


def _reduced(error: BaseException) -> tuple[Any, ...]:
    """How to make the exception again."""
    kind = type(error)
    registered = copyreg.dispatch_table.get(kind)
    if registered is pickling_support.pickle_exception:  # which libraries install for all exceptions
        registered = None
    reduced = registered(error) if registered is not None else error.__reduce_ex__(5)
    if not isinstance(reduced, tuple):
        raise pickle.PicklingError(f"{kind.__qualname__}.__reduce__ gave a {type(reduced).__name__}, not a tuple")
    make, args, state = (*reduced, None)[:3]
    if registered is None and kind.__reduce__ in _PLAIN_REDUCE and type(kind.__init__) is not WrapperDescriptorType:
        # What an __init__ written in Python takes is not known: it is made without.
        make, args, state = make_bare, (kind, *_new_args(error)), _fields(error)
    origin, notes = Origin.of(error), attributes_of(error).get("__notes__")
    return make, args, (state, tuple(origin), notes), None, None, restore


def _new_args(error: BaseException) -> tuple[Any, ...]:
    """The arguments that `__new__` requires."""
    group = isinstance(error, _GROUP)
    return (error.message, error.exceptions) if group else ()  # type: ignore[attr-defined]


def _fields(error: BaseException) -> dict[str, Any]:
    fields = {"args": error.args, **attributes_of(error)}
    for name in _OS_FIELDS if isinstance(error, OSError) else ():
        if (value := getattr(error, name, None)) is not None:  # None would be shown
            fields[name] = value
    return fields


def make_bare(kind: type[BaseException], *args: Any) -> BaseException:
    """An exception whose own `__init__` is not called."""
    return kind.__new__(kind, *args)


def restore(error: BaseException, state: tuple[Any, tuple[Any, ...], Any]) -> None:
    """Give an exception its attributes, whether its class lets them be set or not, and its origin."""
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
    """The traceback whose frames are these: the number of the code, and the line."""
    made = [
        SimpleNamespace(f_code=SimpleNamespace(co_filename=file, co_name=name), f_globals=shown, f_locals={})
        for file, name, shown in codes
    ]
    trace: Any = None
    for number, line in reversed(rows):
        trace = SimpleNamespace(tb_frame=made[number], tb_lineno=line, tb_next=trace)
    # No name for it here: its frames lead back to this one, and what they hold would live until the next collection.
    return cast("TracebackType | None", Traceback.as_traceback(trace))
