"""ClientLife: a client's connection lasts as long as the client, or a future of it.

At its end the interpreter finishes the callbacks of calls that have ended, while clients are still connected. Then the
other calls are cancelled, and their callbacks are called (`scaler_client.io_thread`).
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

from scaler_client.waiters import due_callbacks

if TYPE_CHECKING:
    from scaler_client.io_thread import IoThread


class ClientLife:
    """Owner of a client's futures. The client and its futures hold it, the io thread does not: without it that ends.

    The io thread holds the futures of calls that are under way, so these keep the connection, too.
    """

    __slots__ = ("__weakref__", "call_soon", "cancel", "waiting")

    def __init__(self, io: IoThread) -> None:
        self.waiting: AbstractContextManager[object] = io.waiting
        self.cancel: Callable[[Sequence[int]], None] = io.cancel
        self.call_soon: Callable[[Callable[[], object]], None] = io.call_soon
        weakref.finalize(self, io.stop, 0).atexit = False
        _wait_at_exit()


@cache
def _wait_at_exit() -> None:
    """From now on, and only once: before finalizers, by which a local cluster ends, and before the io threads end."""
    atexit.register(due_callbacks.wait)
