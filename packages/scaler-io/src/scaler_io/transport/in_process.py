"""Links that do not leave their process: messages are handed over, neither written nor sent.

What comes from outside and what comes from within arrive at the same listener. Each side has a descriptor, so that a
loop waits for it as for others; it is readable as long as something is there.
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
from scaler_io.transport.endpoint import TURN_MESSAGES, EpochDialer
from scaler_io.transport.zeromq import Dialer, Listener
from scaler_protocol.addresses import Address

if sys.platform != "linux":
    raise ImportError("servers of Scaler run on Linux only")

Item = TypeVar("Item")


class _Inbox(Generic[Item]):
    """What has come, and a descriptor that says whether there is any."""

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
    """A Listener that Dialers of its own process reach past the network, too; they must be closed before it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self.inbox: _Inbox[tuple[bytes, list[bytes]]] = _Inbox()
        self.connections: dict[bytes, InProcessConnection] = {}
        self._either = select.epoll()
        for descriptor in (super().fileno(), self.inbox.descriptor):
            self._either.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """The descriptor to wait on for messages."""
        return self._either.fileno()

    def readable(self) -> bool:
        """Whether a message is there; also re-arms the descriptor's edge."""
        return super().readable() or bool(self.inbox)

    def receive(self, limit: int = TURN_MESSAGES) -> list[tuple[bytes, list[bytes]]]:
        """Up to `limit` messages: the route each came by, and its frames."""
        return self.inbox.take(limit) or super().receive(limit)

    def send(self, route: bytes, frames: Frames) -> bool:
        """Whether the message was taken; False means there is no such route any more."""
        connection = self.connections.get(route)
        if connection is None:
            return super().send(route, frames)
        connection.inbox.put(list(frames))
        return True

    def cut(self, route: bytes) -> None:
        """Close a connection from outside, whatever is on its way; those from within have nothing unread for long."""
        if route not in self.connections:
            super().cut(route)

    def close(self) -> None:
        """Free the address."""
        self._either.close()
        self.inbox.close()
        super().close()


class InProcessConnection:
    """One epoch."""

    def __init__(self, listener: InProcessListener) -> None:
        self.inbox: _Inbox[list[bytes]] = _Inbox()
        self._listener = listener
        self._route = b"\x02" + secrets.token_bytes(15)
        listener.connections[self._route] = self

    def receive(self, limit: int) -> list[list[bytes]]:
        """Up to `limit` messages that have arrived."""
        return self.inbox.take(limit)

    def send(self, frames: Frames) -> bool:
        """Whether the message was taken: it always is."""
        self._listener.inbox.put((self._route, list(frames)))
        return True

    def lost(self) -> str | None:
        """Why the connection is gone: it never is."""
        return None

    def close(self, linger: float = 0.0) -> None:
        """Leave; what was sent has arrived."""
        del self._listener.connections[self._route]
        self.inbox.close()


class InProcessDialer(EpochDialer[InProcessConnection]):
    """An Uplink to a listener of the same process."""

    def __init__(self, listener: InProcessListener, uplink: Uplink) -> None:
        super().__init__(uplink)
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
"""To a listener anywhere."""
