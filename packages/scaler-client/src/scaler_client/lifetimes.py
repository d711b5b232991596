"""ClientLife: a client's connection lasts as long as the client, or a future of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

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
