"""A client as a `concurrent.futures.Executor`."""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from weakref import WeakSet

from scaler_client.api.lazy_maps import BUFFERS, MapItem, SubmittedItems, outcomes_in_order
from scaler_client.futures.waiters import deadline
from scaler_client.parameters import check
from scaler_io.reentrant_lock import ReentrantLock

if TYPE_CHECKING:
    from scaler_client.futures.futures import ScalerFuture

T = TypeVar("T")
_CLOSED: Final = "cannot schedule new futures after shutdown"


class ClientExecutor(concurrent.futures.Executor):
    """A client as a `concurrent.futures.Executor`. Made by `Client.executor`.

    `map` yields results in order as they arrive. `shutdown` leaves the client connected.

    >>> with client.executor() as executor:
    ...     list(executor.map(pow, [2, 3], [3, 2]))
    [8, 9]
    """

    def __init__(self, submit_verbose: Callable[..., ScalerFuture[Any]], workers: Callable[[], int]) -> None:
        self._submit_verbose, self._workers = submit_verbose, workers
        self._lock = ReentrantLock()  # reentrant: a finalizer may submit during a submission
        self._futures: WeakSet[ScalerFuture[Any]] = WeakSet()  # the client keeps futures alive until they are done
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("an executor stays with its client: pass the client, and call its executor() there")

    @property
    def _max_workers(self) -> int:
        """Workers now: libraries read this of any executor to choose the size of their pieces."""
        return self._workers()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> ScalerFuture[T]:
        """Submit one call, as `Client.submit`.

        Args:
            fn: any callable.
            args, kwargs: its arguments.

        Raises:
            RuntimeError: the executor is shut down.
            TypeError: the function does not accept these arguments, or something cannot be serialized: then it may also
                be `pickle.PicklingError`, or what a `__reduce__` raises.
            ClientQuitError: the client is disconnected.

        >>> client.executor().submit(pow, 2, 10).result()
        1024
        """
        if self._closed:
            raise RuntimeError(_CLOSED)
        future = self._submit_verbose(fn, args, kwargs)  # may take long, or wait for another thread
        with self._lock:
            if not self._closed:
                self._futures.add(future)
                return future
        future.cancel()
        raise RuntimeError(_CLOSED)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Submit `fn(*row)` for each row of the iterables; returns an iterator of the results in order.

        Calls that have not ended are cancelled when the iterator is closed or raises. The exception of a failed item
        names it in a note.

        Args:
            fn: any callable.
            iterables: they end with the shortest one.
            timeout: seconds from the call of `map` until the last result.
            chunksize: without effect, as in `ThreadPoolExecutor`: calls travel together anyhow.
            buffersize: how many calls are submitted ahead of the result that is taken next; None for all of them, at
                once. With it the iterables may be endless.

        Raises:
            TimeoutError: the next result is not there in time.
            RuntimeError: the executor is shut down.
            TypeError, ValueError: something is not what it must be.

        >>> import itertools
        >>> squares = client.executor().map(pow, itertools.count(), itertools.repeat(2), buffersize=2)
        >>> [next(squares) for _ in range(4)]
        [0, 1, 4, 9]
        """
        if buffersize is not None:
            check("buffersize", buffersize, BUFFERS)
        rows = enumerate(zip(*iterables, strict=False))
        items = (MapItem(self.submit(fn, *row), number, row) for number, row in rows)
        # The iterator has not begun: as with other executors, the calls run although nobody takes their results.
        pending = deque(islice(items, buffersize))
        return outcomes_in_order(pending, SubmittedItems(items), until=deadline(timeout))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls; the client stays connected.

        Args:
            wait: whether to wait until all calls of this executor are done.
            cancel_futures: whether to cancel unfinished calls first.

        >>> client.executor().shutdown()
        """
        with self._lock:
            self._closed = True
            futures = [future for future in self._futures if not future.done()]
        if cancel_futures:
            for future in futures:
                future.cancel()
        if wait:
            concurrent.futures.wait(futures)
