"""Exceptions as bytes: with their tracebacks, however deep, and with their causes where those can be sent, too."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import contextmanager
from io import BytesIO
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

import cloudpickle
from tblib import Traceback, pickling_support

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHOWN: Final = ("__file__", "__name__")
_Code = tuple[str, str, dict[str, Any]]
"""File, name, and what of its globals decides how a frame is shown."""


def dump_exception(error: BaseException, text: str) -> bytes:
    """The payload of a RAISED outcome: the pickle of the exception and its traceback as text.

    Where causes or frames can not be sent the exception goes without them; `text` tells of them. Raises what pickling
    the exception alone raises, or loading it: what can not be read here can not be read there.
    """
    try:
        pickling_support.install(error)
        return _dumped(error, text)
    except Exception:
        with _alone(error):
            pickling_support.install(type(error))
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
    kept = error.__traceback__, error.__context__, error.__cause__, error.__suppress_context__
    error.__traceback__ = error.__context__ = error.__cause__ = None
    try:
        yield
    finally:
        error.__traceback__, error.__context__, error.__cause__, error.__suppress_context__ = kept


class _FailurePickler(cloudpickle.Pickler):
    """Writes tracebacks as columns. Frame within frame, as tblib does, 400 of them exceed the recursion limit."""

    def reducer_override(self, obj: Any) -> Any:
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
                shown: dict[str, Any] = {
                    name: frame.f_globals[name] for name in ("__file__", "__name__") if name in frame.f_globals
                }
                described.append((frame.f_code.co_filename, frame.f_code.co_name, shown))
            rows.append((number, trace.tb_lineno))
            trace = trace.tb_next
        return restore_traceback, (described, rows)


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
