"""StorageLink: runs operations on the connection thread of this process, which it starts when it is first needed."""

from __future__ import annotations

import math
import os
import platform
import time
import weakref
from collections.abc import Callable
from typing import Final

from scaler_io.objects.connection_thread import ConnectionThread
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.operations import Operation
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.security.keyring import Credentials
from scaler_io.thread_event import check_may_wait
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, StorageLostError
from scaler_protocol.handshake import Hello, Role, ServiceKind
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.objects import Reference

_LOOK_SECONDS: Final = 0.01
"""How often to look whether a silent server is back."""


class StorageLink:
    """The link of a session to its object storage server, with one connection thread per process. Thread-safe.

    The thread is started with the first operation, and again if it has ended or the process was forked: a fork shares
    only the session with its parent. An operation raises StorageLostError after waiting `timeout_seconds` for a
    silent server, and HandshakeRefusedError if the server refuses the handshake. A lost server is reconnected to.
    """

    def __init__(
        self,
        address: Address,
        *,
        session: int,
        key: bytes = b"",
        role: int = Role.CLIENT,
        timeout_seconds: float = 60.0,
        name: str = "",
        renewed: Callable[[], object] | None = None,
        replica_server: ReplicaServer | None = None,
        credentials: Credentials | None = None,
        token: Callable[[], bytes] = bytes,
    ) -> None:
        """`key` proves to the server that the session is ours; only this process and its forks have it.

        `token` is what the scheduler has told us to show to the server.

        `renewed` is called on the connection thread, and must not block, when the server's incarnation has changed.
        `replica_server` serves the replicas of this host if the server is on another one.
        """
        self.address = address
        self.session = session
        self.server = 0
        """The incarnation of the server that welcomed us last."""
        self.lock = ReentrantLock()
        """Held to start operations in one order. Reentrant: a finalizer may delete objects at any point."""
        self._key, self._role, self._name = key, role, name
        self._timeout = timeout_seconds
        self._renewed = renewed
        self._credentials, self._token = credentials, token
        self._credentials = credentials
        self._replica_server = replica_server
        self._closed = False
        self._thread: ConnectionThread | None = None
        self._inherited: list[ConnectionThread] = []
        """The threads of processes that this one was forked from: not used, and never garbage collected."""
        _LINKS.add(self)

    def forked(self) -> None:
        """Start anew in a fork, where no other thread exists."""
        self.lock = ReentrantLock()
        if self._thread is not None:
            self._inherited.append(self._thread)
        self._thread = None

    def fork(self) -> None:
        """This process is about to fork."""
        if (thread := self._thread) is not None:
            thread.mappings.mark_inherited()

    def _welcomed(self, server: int) -> None:
        before, self.server = self.server, server
        if self._renewed is not None and before not in (0, server):
            self._renewed()

    def open(self, deadline: float = math.inf) -> None:
        """Connect now: from here on the session's objects live until its client is gone. Raises as `run` does."""
        self.run(_connecting(), deadline)

    def open_soon(self) -> None:
        """As `open`, unless there is a connection; does not wait."""
        with self.lock:
            if self._thread is None or self._thread.ended or self._thread.lost:
                self.start(_connecting())

    @property
    def near(self) -> bool | None:
        """Whether the server is on this host; None before it has answered."""
        return thread.near if (thread := self._thread) is not None else None

    def is_near(self, deadline: float = math.inf) -> bool:
        """Whether the server is on this host; connects if that is not known. Raises as `run` does."""
        if self.near is None:
            self.open(deadline)
        return bool(self.near)

    @property
    def mappings(self) -> Mappings | None:
        """The objects that are mapped over the current connection; None before there is one."""
        return thread.mappings if (thread := self._thread) is not None else None

    def run(self, operation: Operation, deadline: float = math.inf) -> None:
        """Do an operation to its end; raises its error, or TimeoutError at the deadline (of time.monotonic)."""
        self.start(operation)
        operation.wait(deadline)

    def start(self, operation: Operation) -> None:
        """Begin an operation; does not wait. Raises ClientQuitError after `close`."""
        with self.lock:
            if self._closed:
                raise ClientQuitError(f"the connection to object storage server {self.address} is closed")
            if self._thread is None or not self._thread.start(operation):
                self._thread = ConnectionThread(
                    self.address,
                    self._hello(),
                    self._timeout,
                    self._welcomed,
                    self._replica_server,
                    operation,
                    self._credentials,
                )

    def start_if_open(self, operation: Operation) -> None:
        """As `start`, unless the connection has ended."""
        with self.lock:
            if self._thread is None or not self._thread.ended:
                self.start(operation)

    def _hello(self) -> Hello:
        return Hello(
            self._role,
            new_identity(),
            new_incarnation(),
            session=self.session,
            session_key=self._key,
            name=self._name,
            host=platform.node(),
            service=ServiceKind.STORAGE,
            session_token=self._token(),
        )

    def check_server(self, patience: float = 0.0) -> None:
        """Raise StorageLostError if the server has been silent for longer than an operation waits for it.

        The server is given `patience` seconds to come back.
        """
        until = time.monotonic() + patience
        if self._silent and patience:
            self.open_soon()
        while self._silent:
            check_may_wait()
            if time.monotonic() >= until:
                raise StorageLostError(
                    f"object storage server {self.address} has been silent for more than {self._timeout:g} s"
                )
            time.sleep(_LOOK_SECONDS)

    @property
    def _silent(self) -> bool:
        return (thread := self._thread) is not None and thread.lost

    def close(self) -> None:
        """Send Goodbye and end the thread; operations in other threads fail. A client's objects end with it."""
        with self.lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()


def _connecting() -> Operation:
    """An operation without requests: it ends when the server has welcomed us."""
    return Operation(Reference(b"", 0), 0)


_LINKS: Final[weakref.WeakSet[StorageLink]] = weakref.WeakSet()


def _before_fork() -> None:
    for link in list(_LINKS):
        link.fork()


def _after_fork() -> None:
    for link in list(_LINKS):
        link.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
