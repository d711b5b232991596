"""Lazy maps: calls that are submitted as their results are taken."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeVar, cast

from scaler_client.api.submitter import CallSubmitter
from scaler_client.calls.task_options import TaskOptions
from scaler_client.futures.futures import ScalerFuture
from scaler_client.parameters import check, flag, items
from scaler_client.payloads.user_exceptions import note_item
from scaler_protocol.ranges import Whole

T = TypeVar("T")
BUFFER: Final = 1_000
"""Calls of a lazy map that are submitted ahead of the result that is taken next."""
BUFFERS: Final = Whole(1, 2**31 - 1)
_Row = tuple[Any, ...]


class LazyMaps:
    """The lazy maps of a client, or of its calls with options."""

    def __init__(self, calls: CallSubmitter, options: TaskOptions) -> None:
        self._calls, self._options = calls, options

    def imap(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        buffersize: int = BUFFER,
        return_exceptions: bool = False,
    ) -> Iterator[T]:
        """Yield the results of the builtin `map(fn, *iterables)` in order, lazily.

        The first `buffersize` calls are submitted at once, and another one with each result that is taken. So endless
        iterables may be mapped. A failure is raised in its place, with a note of its item; this, or closing the
        iterator, cancels the calls that are under way. What an iterable raises comes after the results of the items
        before. `client.options(…).imap` has options.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            buffersize: how many calls are submitted ahead of the result that is taken next.
            return_exceptions: whether an exception takes the place of its result.

        Raises:
            ValueError, TypeError: a parameter or a call is invalid.
            SubmitLimitError, ClientQuitError: as in `Client.submit`.

        >>> import itertools
        >>> squares = client.imap(pow, itertools.count(), itertools.repeat(2), buffersize=10)
        >>> [next(squares) for _ in range(4)]
        [0, 1, 4, 9]
        """
        check("buffersize", buffersize, BUFFERS)
        submitted = self._submitted(fn, columns("imap()", iterables))
        return _begun(_in_order(submitted, buffersize, flag("return_exceptions", return_exceptions)))

    def imap_unordered(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        buffersize: int = BUFFER,
        return_exceptions: bool = False,
    ) -> Iterator[T]:
        """Yield the results of the builtin `map(fn, *iterables)` as they come, lazily; otherwise as `imap`.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            buffersize: how many calls are under way at most.
            return_exceptions: whether an exception takes the place of its result.

        Raises:
            ValueError, TypeError: a parameter or a call is invalid.
            SubmitLimitError, ClientQuitError: as in `Client.submit`.

        >>> sorted(client.imap_unordered(pow, [2, 3], [3, 2]))
        [8, 9]
        """
        check("buffersize", buffersize, BUFFERS)
        submitted = self._submitted(fn, columns("imap_unordered()", iterables))
        return _begun(_as_they_come(self._calls, submitted, buffersize, flag("return_exceptions", return_exceptions)))

    def _submitted(self, fn: Callable[..., T], arguments: Iterable[_Row]) -> SubmittedItems:
        return SubmittedItems(self._submit(fn, arguments))

    def _submit(self, fn: Callable[..., T], arguments: Iterable[_Row]) -> Iterator[MapItem]:
        calls, options = self._calls, self._options
        callee = calls.find(fn, options.reserialize)
        group, reserialized = calls.group_with(callee, options), set[int]() if options.reserialize else None
        for number, row in enumerate(arguments):
            callee.check.check(*row)
            yield MapItem(calls.send(group, row, {}, reserialized), number, row)


class MapItem(NamedTuple):
    """A call of a lazy map."""

    future: ScalerFuture[Any]
    number: int
    row: _Row

    def outcome(self, return_exceptions: bool, until: float = math.inf) -> Any:
        """The result, waited for until then; raises or returns the failure, which names the item."""
        timeout = None if math.isinf(until) else max(0.0, until - time.monotonic())
        try:
            return self.future.result(timeout)
        except (Exception, CancelledError) as error:
            if return_exceptions:
                return error
            note_item(error, self.number, self.row)
            raise


def columns(name: str, iterables: Iterable[Iterable[Any]]) -> Iterator[_Row]:
    """The rows of a map; raises TypeError for what cannot be iterated over."""
    found = [items(f"iterable {at} of {name}", column) for at, column in enumerate(iterables, 1)]
    if not found:
        raise TypeError(f"{name} takes a function and at least one iterable")
    return zip(*found, strict=False)


class SubmittedItems:
    """The calls of a lazy map, submitted as they are taken. What ends them early is raised after their outcomes."""

    def __init__(self, submitted: Iterator[MapItem]) -> None:
        self._submitted = submitted
        self._error: Exception | None = None

    def take(self, count: int) -> Iterator[MapItem]:
        """Submit up to so many calls."""
        try:
            yield from islice(self._submitted, count)
        except Exception as error:
            self._error = error

    def check(self) -> None:
        """Raise what an iterable has raised, or the submission of a call."""
        if self._error is not None:
            raise self._error


def outcomes_in_order(
    pending: deque[MapItem],
    submitted: SubmittedItems,
    return_exceptions: bool = False,
    until: float = math.inf,
) -> Iterator[Any]:
    """Yield the outcomes of the pending calls in order, and submit another call for each.

    Raises TimeoutError if the next outcome is not there at `until` (time.monotonic).
    """
    try:
        while pending:
            outcome = pending[0].outcome(return_exceptions, until)
            del pending[0]
            pending.extend(submitted.take(1))
            yield outcome
        submitted.check()
    finally:
        _cancel(pending)


def _in_order(submitted: SubmittedItems, ahead: int, return_exceptions: bool) -> Iterator[Any]:
    """Submit the first calls, and yield None; then yield the outcomes in order."""
    pending = deque[MapItem]()
    try:
        pending.extend(submitted.take(ahead))
        if not pending:
            submitted.check()
        yield None
        yield from outcomes_in_order(pending, submitted, return_exceptions)
    finally:
        _cancel(pending)


def _as_they_come(
    calls: CallSubmitter, submitted: SubmittedItems, ahead: int, return_exceptions: bool
) -> Iterator[Any]:
    """Submit the first calls, and yield None; then yield each outcome as it comes, and submit another call for it."""
    ready: SimpleQueue[Future[Any]] = SimpleQueue()
    pending: dict[Future[Any], MapItem] = {}
    put = cast("Callable[[Future[Any]], object]", ready.put)

    def submit(count: int) -> None:
        for item in submitted.take(count):
            pending[item.future] = item
            item.future.add_done_callback(put)

    try:
        submit(ahead)
        if not pending:
            submitted.check()
        yield None
        while pending:
            with calls.waiting:
                future = ready.get()
            outcome = pending.pop(future).outcome(return_exceptions)
            submit(1)
            yield outcome
        submitted.check()
    finally:
        _cancel(pending.values())


def _begun(outcomes: Iterator[Any]) -> Iterator[Any]:
    """Have the first calls submitted; whenever the iterator is closed from now on, or goes, it cancels its calls."""
    next(outcomes)
    return outcomes


def _cancel(pending: Iterable[MapItem]) -> None:
    for item in pending:
        item.future.cancel()
