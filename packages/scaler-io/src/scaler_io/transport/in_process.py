"""Links within one process: messages are passed as objects, neither encoded nor sent.

One listener receives from other processes, over the network and Unix sockets, and from its own. No descriptor tells of
a message from the own process: who waits for one is called.
"""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

from scaler_io.links.streams import Frames
from scaler_io.links.uplink import Uplink
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import ANYONE, Principal
from scaler_io.transport.endpoint import LINGER_SECONDS, TURN_MESSAGES, EpochDialer
from scaler_io.transport.local_sockets import LocalSockets
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

LOGGER: Final = logging.getLogger("scaler")
Item = TypeVar("Item")


def _ignore() -> None:
    """Nobody waits yet."""


class _Inbox(Generic[Item]):
    """A queue that calls `arrived` when it is no longer empty."""

    def __init__(self, arrived: Callable[[], object]) -> None:
        self.arrived = arrived
        self.items: deque[Item] = deque()

    def put(self, item: Item) -> None:
        items = self.items
        items.append(item)
        if len(items) == 1:
            self.arrived()

    def take(self, limit: int) -> list[Item]:
        items = self.items
        if not items:
            return []
        if len(items) <= limit:
            taken = list(items)
            items.clear()
            return taken
        return [items.popleft() for _ in range(limit)]


class InProcessListener(Listener):
    """A Listener that dialers of its own process reach without the network; close them before it.

    `holder` is whose key they use elsewhere: they prove none here. `local` is the path at which programs of this user
    are served as well, and the holder of the key that they use elsewhere.
    """

    def __init__(
        self,
        address: Address,
        keys: AuthorizedKeys | None = None,
        holder: Principal = ANYONE,
        local: tuple[Path, Principal] | None = None,
    ) -> None:
        super().__init__(address, keys)
        self._holder = holder
        self._local: LocalSockets | None = None
        self._is_networks_turn = False
        self._user = local[1] if local is not None else ANYONE
        self.inbox: _Inbox[tuple[bytes, list[bytes]]] = _Inbox(_ignore)
        self.connections: dict[bytes, InProcessConnection] = {}
        if local is not None:
            self._listen_at(local[0])

    def _listen_at(self, path: Path) -> None:
        inbox = self.inbox
        try:
            self._local = LocalSockets(
                path, lambda route, frames: inbox.put((route, frames)), lambda: bool(inbox.items)
            )
        except OSError as error:
            LOGGER.info("no Unix socket at %s, programs of this host use the network: %s", path, error)
            return
        self.watched = (*self.watched, self._local)

    def call_on_arrival(self, arrived: Callable[[], object]) -> None:
        """Call this when there is a message of which no descriptor tells: from this process."""
        self.inbox.arrived = arrived

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return super().readable() or bool(self.inbox.items)

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages, each as route and frames; the network and the others take turns if both have some."""
        self._is_networks_turn = self._was_readable and not self._is_networks_turn
        if self._is_networks_turn and (received := super().receive(limit)):
            return received
        return self.inbox.take(limit) or super().receive(limit)

    def revoked(self) -> set[bytes]:
        """Keys that are accepted no longer since the last call; their connections are closed."""
        keys = super().revoked()
        if self._local is not None and self._user.key in keys:
            self._local.revoke()
        return keys

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was accepted; False if the route is gone."""
        connection = self.connections.get(route)
        if connection is None:
            if self._local is not None and self._is_local(route):
                return self._local.send(route, frames)
            return super().send(route, frames)
        connection.inbox.put(list(frames))
        return True

    def principal(self, route: bytes) -> Principal:
        """Who has sent what came from this route."""
        if route in self.connections:
            return self._holder
        return self._user if self._is_local(route) else super().principal(route)

    def _is_local(self, route: bytes) -> bool:
        return self._local is not None and route in self._local.routes

    def cut(self, route: bytes) -> None:
        """Close a connection of another process, even if messages are on their way; ignored for our own process."""
        if self._local is not None and self._is_local(route):
            self._local.cut(route)
        elif route not in self.connections:
            super().cut(route)

    def close_greedy(self, seconds: float, has_peer: Callable[[bytes], bool] | None) -> float:
        """As of Listener; connections of Unix sockets are closed if they have had no peer for long."""
        if self._local is not None and has_peer is not None:
            self._local.close_strangers(seconds, has_peer)
        return super().close_greedy(seconds, has_peer)

    def close(self) -> None:
        """Free the addresses, after at most LINGER_SECONDS each for sending the last messages."""
        if self._local is not None:
            self._local.close(LINGER_SECONDS)
        super().close()


class InProcessConnection:
    """The connection of one epoch."""

    def __init__(self, listener: InProcessListener, arrived: Callable[[], object]) -> None:
        self.inbox: _Inbox[list[bytes]] = _Inbox(arrived)
        self._listener = listener
        self._route = b"\x02" + os.urandom(15)
        listener.connections[self._route] = self

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""
        return self.inbox.take(limit)

    def send(self, frames: Frames) -> bool:
        """Send a message; always True."""
        self._listener.inbox.put((self._route, list(frames)))
        return True

    def lost(self) -> str | None:
        """None: a connection within one process does not break."""
        return None

    def close(self, linger: float = 0.0) -> None:
        """Close the connection; all messages have arrived."""
        del self._listener.connections[self._route]


class InProcessDialer(EpochDialer[InProcessConnection]):
    """Connects an Uplink to a listener of the same process."""

    def __init__(self, listener: InProcessListener, uplink: Uplink) -> None:
        super().__init__(uplink, listener.address)
        self._listener = listener
        self._arrived: Callable[[], object] = _ignore

    def _connect(self, epoch: int) -> InProcessConnection:
        return InProcessConnection(self._listener, self._arrived)

    def call_on_arrival(self, arrived: Callable[[], object]) -> None:
        """Call this when there is a message, of which no descriptor tells; set it before the first turn."""
        self._arrived = arrived

    def readable(self) -> bool:
        """Whether a message is there."""
        return self._connection is not None and bool(self._connection.inbox.items)

    def filenos(self) -> tuple[int, ...]:
        """None: whoever waits is called."""
        return ()


AnyDialer = Dialer | InProcessDialer
