"""ClientLife: a client's connection lasts as long as the client or any of its futures.

When the interpreter ends it first waits until the callbacks of all calls that have ended were called; clients are still
connected then. After that `scaler_client.runtime.io_thread` cancels the other calls, calls their callbacks and
disconnects.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from scaler_client.futures.waiters import due_callbacks

if TYPE_CHECKING:
    from scaler_client.core.records import CallGroup, Dependency
    from scaler_client.futures.futures import ScalerFuture
    from scaler_client.runtime.io_thread import IoThread


class ClientLife:
    """The owner of a client's futures: when nothing refers to it any more its io thread is stopped.

    The client and its futures refer to it. The io thread does not, but it refers to the futures of calls that are under
    way, so the connection lasts until those have ended, too.
    """

    __slots__ = ("__weakref__", "_submit", "call_soon", "cancel", "waiting")

    def __init__(self, io: IoThread, *, waits: bool) -> None:
        """`waits` is whether calls wait for room."""
        self.waiting: AbstractContextManager[object] = io.waiting
        self.cancel: Callable[[Sequence[int]], None] = io.cancel
        self.call_soon: Callable[[Callable[[], object]], None] = io.call_soon
        self._submit = partial(io.submit_for, block=waits)
        weakref.finalize(self, io.stop, 0).atexit = False
        _register_wait_at_exit()

    def submit_again(self, group: CallGroup, call: bytes, needs: Sequence[Dependency]) -> ScalerFuture[Any]:
        """Submit a call as a new task."""
        return self._submit(self, group, call, needs)


@cache
def _register_wait_at_exit() -> None:
    """Have the interpreter wait for callbacks when it ends; registers once, however often it is called.

    Exit handlers run in reverse order. This one is registered when the first client is made, so it runs before the
    handler of `scaler_client.runtime.io_thread`, which ends all clients, and before that of weakref.finalize, which
    ends local clusters.
    """
    atexit.register(due_callbacks.wait)
