"""`map` over tuples. In the 1.x line a tuple was the arguments of one call; now it is one argument."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, TypeGuard

from scaler_client.payloads.signatures import CallCheck

_ADVICE: Final = "map() passes each item as one argument; for tuples of arguments use starmap()"

Run = Callable[[Iterable[tuple[Any, ...]]], list[Any]]
"""Runs a call for each of these rows of arguments."""


def is_old_form(items: Iterable[Any]) -> TypeGuard[Sequence[tuple[Any]]]:
    """Whether it is a list or tuple of 1-tuples: how arguments were given to `map` in the 1.x line."""
    return (
        isinstance(items, list | tuple) and bool(items) and all(type(row) is tuple and len(row) == 1 for row in items)
    )


def run_old_form(run: Run, run_rest: Run, check: CallCheck, rows: Sequence[tuple[Any]]) -> list[Any]:
    """The results for 1-tuples as items. All are unpacked where the first call raises TypeError unless it is unpacked.

    Either way there is a FutureWarning for the caller of `map`. The first item is run twice at most.
    """
    _refuse_tuples(check)
    try:
        found = run([(rows[0],)])
    except TypeError as error:
        try:
            found = run(rows[:1])
        except TypeError:
            raise error from None  # it has nothing to do with tuples
        rest: Iterable[tuple[Any, ...]] = rows[1:]
        done = "unpacked, as calls with tuples fail"
    else:
        rest = [(item,) for item in rows[1:]]
        done = "passed as they are"
    warnings.warn(f"tuples of one are {done}: {_ADVICE}", FutureWarning, stacklevel=3)
    return found + run_rest(rest)


def run_items(run: Run, check: CallCheck, items: Iterator[Any]) -> list[Any]:
    """The results of a `map` over one iterable; a TypeError for calls that do not take a tuple says what does."""
    first = list(islice(items, 1))
    rows = zip(chain(first, items), strict=False)
    if not first or type(first[0]) is not tuple:
        return run(rows)
    _refuse_tuples(check)
    try:
        return run(rows)
    except TypeError as error:
        if check.known or type(error) is not TypeError:
            raise
        raise TypeError(f"{error}; {_ADVICE}") from error  # nobody knew what the function takes


def _refuse_tuples(check: CallCheck) -> None:
    """Raise the TypeError of calls that do not take one argument, before anything is run."""
    try:
        check.check(None)
    except TypeError as error:
        raise TypeError(f"{error}; {_ADVICE}") from None
