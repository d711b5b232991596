"""Links within one process: messages are passed as objects, neither encoded nor sent.

One listener receives from other processes and from its own. Each side has a descriptor, so that an event loop can wait
for it; it is readable as long as a message is there.
"""

from __future__ import annotations

import os
import secrets
import select
import sys
from collections import deque
from typing import Generic, TypeVar

from scaler_io.links.streams import Frames
from scaler_io.links.uplink import Uplink
from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.keyring import ANYONE, Principal
from scaler_io.transport.endpoint import TURN_MESSAGES, EpochDialer
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

Item = TypeVar("Item")


class _Inbox(Generic[Item]):
    """A queue with a descriptor that is readable while the queue is not empty."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __bool__(self) -> bool:
        return bool(self._items)

    def put(self, item: Item) -> None:
        if not self._items:
            os.eventfd_write(self.descriptor, 1)
        self._items.append(item)

    def take(self, limit: int) -> list[Item]:
        items = self._items
        if not items:
            return []
        taken = [items.popleft() for _ in range(min(limit, len(items)))]
        if not items:
            os.eventfd_read(self.descriptor)
        return taken

    def close(self) -> None:
        os.close(self.descriptor)


class InProcessListener(Listener):
    """A Listener that dialers of its own process reach without the network; close them before it.

    `holder` is whose key they use elsewhere: they prove none here.
    """

    def __init__(self, address: Address, keys: AuthorizedKeys | None = None, holder: Principal = ANYONE) -> None:
        super().__init__(address, keys)
        self._holder = holder
        self.inbox: _Inbox[tuple[bytes, list[bytes]]] = _Inbox()
        self.connections: dict[bytes, InProcessConnection] = {}
        self._epoll = select.epoll()
        for descriptor in (super().fileno(), self.inbox.descriptor):
            self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._epoll.fileno()

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return super().readable() or bool(self.inbox)

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages, each as route and frames."""
        return self.inbox.take(limit) or super().receive(limit)

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was accepted; False if the route is gone."""
        connection = self.connections.get(route)
        if connection is None:
            return super().send(route, frames)
        connection.inbox.put(list(frames))
        return True

    def principal(self, route: bytes) -> Principal:
        """Who has sent what came from this route."""
        return self._holder if route in self.connections else super().principal(route)

    def cut(self, route: bytes) -> None:
        """Close a connection of another process, even if messages are on their way; ignored for our own process."""
        if route not in self.connections:
            super().cut(route)

    def close(self) -> None:
        """Free the address."""
        self._epoll.close()
        self.inbox.close()
        super().close()


class InProcessConnection:
    """The connection of one epoch."""

    def __init__(self, listener: InProcessListener) -> None:
        self.inbox: _Inbox[list[bytes]] = _Inbox()
        self._listener = listener
        self._route = b"\x02" + secrets.token_bytes(15)
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
        self.inbox.close()


class InProcessDialer(EpochDialer[InProcessConnection]):
    """Connects an Uplink to a listener of the same process."""

    def __init__(self, listener: InProcessListener, uplink: Uplink) -> None:
        super().__init__(uplink, listener.address)
        self._listener = listener

    def _connect(self, epoch: int) -> InProcessConnection:
        return InProcessConnection(self._listener)

    def readable(self) -> bool:
        """Whether a message is there."""
        return self._connection is not None and bool(self._connection.inbox)

    def filenos(self) -> tuple[int, ...]:
        """The descriptor to wait on; it changes with every epoch."""
        return () if self._connection is None else (self._connection.inbox.descriptor,)


AnyDialer = Dialer | InProcessDialer
