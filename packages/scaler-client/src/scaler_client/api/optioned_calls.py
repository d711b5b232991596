"""Calls with options."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from scaler_client.api.lazy_maps import LazyMaps, columns
from scaler_client.futures.futures import ScalerFuture
from scaler_client.parameters import can_prefetch, flag, rows

T = TypeVar("T")
_Rows = Iterable[tuple[Any, ...]]


class OptionedCalls(LazyMaps):
    """Calls with the same options. Made by `Client.options`.

    >>> urgent = client.options(priority=1, retries=2)
    >>> urgent.submit(pow, 2, 10).result()
    1024
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]:
        """Submit one call with these options; otherwise as `Client.submit`.

        Args:
            fn: any callable.
            args, kwargs: its arguments.

        Raises:
            TypeError: the function does not accept these arguments, or something cannot be serialized.
            SubmitLimitError, ClientQuitError: as in `Client.submit`.

        >>> client.options(timeout=30).submit(max, [3, 1, 2], default=0).result()
        3
        """
        calls, options = self._calls, self._options
        callee = calls.find(fn, options.reserialize)
        callee.check.check(*args, **kwargs)
        return calls.send(calls.group_with(callee, options), args, kwargs, set() if options.reserialize else None)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> list[T]:
        """Wait for the results of the builtin `map(fn, *iterables)` with these options, as a list in order.

        Args:
            fn: a callable with as many parameters as there are iterables.
            iterables: the arguments; the shortest one ends the map.
            progress: whether to show a progress bar on standard error; needs tqdm.
            return_exceptions: whether an exception takes the place of its result, and nothing is cancelled; otherwise
                the first failure is raised, and the remaining calls are cancelled.

        Raises:
            TypeError, ImportError, SubmitLimitError, ClientQuitError: as in `Client.map`.

        >>> client.options(retries=1).map(pow, [2, 3], [3, 2])
        [8, 9]
        """
        return self._run(fn, columns("map()", iterables), can_prefetch(iterables), progress, return_exceptions)

    def starmap(
        self,
        fn: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        *,
        progress: bool = False,
        return_exceptions: bool = False,
    ) -> list[T]:
        """Wait for the results of `itertools.starmap(fn, iterable)` with these options, as a list in order.

        Args:
            fn: any callable.
            iterable: the arguments of each call, as an iterable.
            progress, return_exceptions: as in `map`.

        Raises:
            TypeError, ImportError, SubmitLimitError, ClientQuitError: as in `Client.map`.

        >>> client.options(priority=1).starmap(pow, [(2, 3), (3, 2)])
        [8, 9]
        """
        prefetchable = can_prefetch((iterable,)) and can_prefetch(iterable)
        return self._run(fn, rows("starmap()", iterable), prefetchable, progress, return_exceptions)

    def __reduce__(self) -> NoReturn:
        raise TypeError("calls with options stay with their client: pass the client, and call its options() there")

    def _run(
        self,
        fn: Callable[..., T],
        arguments: Iterable[tuple[Any, ...]],
        prefetchable: bool,
        progress: bool,
        exceptions: bool,
    ) -> list[T]:
        progress, exceptions = flag("progress", progress), flag("return_exceptions", exceptions)
        callee = self._calls.find(fn, self._options.reserialize)
        return self._calls.run(
            callee, arguments, self._options, progress, prefetchable=prefetchable, return_exceptions=exceptions
        )
