"""`await` of a future, and `asyncio.wait`: the thread that settles the future notifies its event loop.

This does not go through the callback thread, so callbacks that block delay no coroutine. An outcome that was received
inline is loaded in the loop; one in object storage is fetched and loaded by a thread of the loop's default executor.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T", covariant=True)


class AwaitedFuture(Protocol[T]):
    """The methods of a future that an event loop needs."""

    def result(self) -> T:
        """The result, once the future is done; raises what the call raised."""

    def cancel(self) -> bool:
        """Cancel the call."""

    def _add_waiter(self, waiter: object) -> bool:
        """Add a waiter of concurrent.futures; False if the future is done already."""

    def _remove_waiter(self, waiter: object) -> None:
        """Remove a waiter."""

    def _is_stored(self) -> bool:
        """Whether the outcome is in object storage and not fetched yet."""


class _LoopWaiter:
    """Calls `fn(future)` in the running event loop; it has the interface of the waiters of concurrent.futures."""

    __slots__ = ("_loop", "fn")

    def __init__(self, fn: Callable[[Any], object]) -> None:
        self.fn, self._loop = fn, asyncio.get_running_loop()

    def add_result(self, future: AwaitedFuture[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._call, future)

    add_exception = add_cancelled = add_result

    def _call(self, future: AwaitedFuture[Any]) -> None:
        self.fn(future)


class LoopCallback(_LoopWaiter):
    """A done callback that asyncio has added, such as that of `asyncio.wait`: for its loop's thread only.

    It may ask for the outcome without waiting, and so may the coroutine that it wakes.
    """

    __slots__ = ()

    def _call(self, future: AwaitedFuture[Any]) -> None:
        if future._is_stored():
            self._loop.run_in_executor(None, _load, future).add_done_callback(lambda _: self.fn(future))
        else:
            self.fn(future)


async def outcome_of(future: AwaitedFuture[T]) -> T:
    """The result of a future, or its exception; asyncio turns a StopIteration into a RuntimeError.

    A wait that is cancelled cancels the future.
    """
    error: BaseException | None = None
    try:
        await _end_of(future)
        if future._is_stored():
            error = await asyncio.get_running_loop().run_in_executor(None, _load, future)
    except asyncio.CancelledError:
        future.cancel()
        raise
    try:
        if error is not None:
            raise error
        return future.result()
    except concurrent.futures.CancelledError as cancelled:
        raise asyncio.CancelledError(*cancelled.args) from None
    finally:
        future = error = None  # type: ignore[assignment]  # what is raised holds this frame


async def _end_of(future: AwaitedFuture[Any]) -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(_: object) -> None:
        if not ended.done():
            ended.set_result(None)

    waiter = _LoopWaiter(end)
    if future._add_waiter(waiter):
        try:
            await ended
        finally:
            future._remove_waiter(waiter)


def _load(future: AwaitedFuture[Any]) -> BaseException | None:
    """Load the outcome; returns what that raises, as not every exception can be passed on by futures of event loops."""
    try:
        future.result()
    except BaseException as error:
        return error
    return None
