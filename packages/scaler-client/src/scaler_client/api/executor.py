"""A client as a `concurrent.futures.Executor`."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar
from weakref import WeakSet

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
        self._lock = threading.RLock()  # reentrant: a finalizer may submit during a submission
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
