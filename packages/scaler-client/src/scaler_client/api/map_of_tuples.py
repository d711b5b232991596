"""`map` over tuples: in the 1.x line a tuple held the arguments of a call, now it is one argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, TypeGuard

from scaler_client.payloads.signatures import CallCheck

_ADVICE: Final = "map() passes each item as one argument; for tuples of arguments use starmap()"

Run = Callable[[Iterable[tuple[Any, ...]]], list[Any]]
"""Runs one call for each row of arguments."""


def run_map(
    run: Run, run_rest: Run, check: CallCheck, iterables: Sequence[Iterable[Any]], rows: Iterator[tuple[Any, ...]]
) -> list[Any]:
    """The results of a `map` over these iterables, of which `rows` are drawn; to be called by `map` itself.

    `run` runs the first call of the old form, and `run_rest` all others.
    """
    if len(iterables) > 1:
        return run_rest(rows)
    if not _is_old_form(iterables[0]):
        return _run_items(run_rest, check, rows)
    return _run_old_form(run, run_rest, check, iterables[0])


def _is_old_form(items: Iterable[Any]) -> TypeGuard[Sequence[tuple[Any]]]:
    """Whether these are the arguments of `map` in the form of the 1.x line: a list or tuple of 1-tuples.

    A class derived from these may have a length and items of its own, which are not asked twice.
    """
    return type(items) in (list, tuple) and bool(items) and all(type(row) is tuple and len(row) == 1 for row in items)


def _run_old_form(run: Run, run_rest: Run, check: CallCheck, rows: Sequence[tuple[Any]]) -> list[Any]:
    """The results of a `map` over 1-tuples, which are unpacked if the first call raises TypeError with its tuple only.

    Warns the caller of `map` with a FutureWarning in any case. The first item is run at most twice.
    """
    _refuse_tuples(check)
    try:
        found = run([(rows[0],)])
    except TypeError as error:
        try:
            found = run(rows[:1])
        except TypeError:
            raise error from None  # unpacking the tuple does not help
        rest: Iterable[tuple[Any, ...]] = rows[1:]
        done = "unpacked, as calls with tuples fail"
    else:
        rest = [(item,) for item in rows[1:]]
        done = "passed as they are"
    warnings.warn(f"tuples of one are {done}: {_ADVICE}", FutureWarning, stacklevel=4)
    return found + run_rest(rest)


def _run_items(run: Run, check: CallCheck, rows: Iterator[tuple[Any, ...]]) -> list[Any]:
    """The results of a `map` over one iterable; a TypeError of calls with tuples recommends `starmap`."""
    first = list(islice(rows, 1))
    rows = chain(first, rows)
    if not first or type(first[0][0]) is not tuple:
        return run(rows)
    _refuse_tuples(check)
    try:
        return run(rows)
    except TypeError as error:
        if check.known or type(error) is not TypeError:
            raise
        raise TypeError(f"{error}; {_ADVICE}") from error  # the signature was unknown before the call


def _refuse_tuples(check: CallCheck) -> None:
    """Raise TypeError before anything is run if the function does not take one argument."""
    try:
        check.check(None)
    except TypeError as error:
        raise TypeError(f"{error}; {_ADVICE}") from None
