"""ConnectionThread: the thread that owns a process's connection to object storage.

The connection has its own thread, so that Ctrl-C in a caller interrupts no operation and an idle process keeps its
connection. scaler_io.objects.multiplexer decides what is sent in which order.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from scaler_io.links.uplink import Uplink
from scaler_io.objects.file_locks import LIVENESS_LOCKS
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.multiplexer import Multiplexer
from scaler_io.objects.operations import Operation
from scaler_io.objects.replica_server import ReplicaServer
from scaler_io.objects.segments import read_token
from scaler_io.reentrant_lock import ReentrantLock
from scaler_io.security.keyring import Credentials
from scaler_io.thread_event import never_wait_here
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, ScalerError, StorageLostError
from scaler_protocol.handshake import Goodbye, Hello


class ConnectionThread:
    """The thread that owns the connection of one process, until it is closed or the server refuses the connection.

    It goes on connecting to a lost server: the server keeps a session's objects only while the session's owner is
    connected, even if the owner does not use them for hours.
    """

    def __init__(
        self,
        address: Address,
        hello: Hello,
        timeout_seconds: float,
        welcomed: Callable[[int], object],
        replica_server: ReplicaServer | None,
        first: Operation,
        credentials: Credentials | None,
    ) -> None:
        """`welcomed` is called on the thread with the incarnation of each server that has no state for us.

        The `first` operation is accepted in any case, however soon the connection ends. Raises StorageLostError if no
        thread can be started.
        """
        self._address = address
        self._uplink = Uplink(hello, time.monotonic(), timeout_seconds=timeout_seconds)
        self._dialer = Dialer(address, self._uplink, credentials=credentials)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._lock = ReentrantLock()  # reentrant: a finalizer may delete objects at any point
        first.since = time.monotonic()
        self._arrivals = deque([first])
        self._closing = False
        self.mappings = Mappings(self._signal)
        self._multiplexer = Multiplexer(
            self._uplink,
            str(address),
            timeout_seconds,
            self.mappings,
            read_token,
            LIVENESS_LOCKS.name,
            welcomed,
            replica_server,
        )
        self._thread = threading.Thread(target=self._run, name="scaler-objects", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._dialer.close()
            self._wake.close()
            self._woken.close()
            raise StorageLostError(f"object storage server {address}: {error}; see ulimit -u and pids.max") from None

    def start(self, operation: Operation) -> bool:
        """Begin an operation; False if this connection has ended."""
        with self._lock:
            if self.ended:
                return False
            operation.since = time.monotonic()
            self._arrivals.append(operation)
        self._signal()
        return True

    @property
    def ended(self) -> bool:
        """Whether the connection has ended for good."""
        return self._multiplexer.ended is not None

    @property
    def near(self) -> bool | None:
        """Whether the server is on this host; None if that is not known."""
        return self._multiplexer.near

    @property
    def lost(self) -> bool:
        """Whether the server has been silent for longer than an operation waits for it."""
        return self._multiplexer.lost

    def close(self) -> None:
        """Send the queued messages and Goodbye, fail the unanswered operations, end the thread."""
        self._closing = True
        self._signal()
        self._thread.join()

    def _signal(self) -> None:
        # The socket may be full, then the thread will wake up; or closed, then the thread has ended.
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    # --- on the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        never_wait_here()
        try:
            while not self.ended:
                self._turn(time.monotonic())
        except BaseException as error:
            self._end(StorageLostError(f"object storage server {self._address}: {error!r}"))
            raise
        finally:
            self._dialer.close()
            with self._lock:
                self._wake.close()
            self._woken.close()

    def _turn(self, now: float) -> None:
        closing = self._closing
        multiplexer = self._multiplexer
        for event in self._dialer.turn(now):
            multiplexer.handle(event, now)
        self._add_arrivals()
        multiplexer.send_requests(now)
        for event in self._dialer.flush(now):
            multiplexer.handle(event, now)
        written = multiplexer.write_slice(now)
        multiplexer.fail_overdue(now)
        if closing and not self.ended:
            self._end(ClientQuitError(f"the connection to object storage server {self._address} was closed"))
            self._uplink.send(Goodbye())
        if self.ended:
            with self._lock:  # fail what was added meanwhile
                self._add_arrivals()
        elif not written and not self._dialer.readable() and not self._arrivals:
            self._dialer.wait(self._woken.fileno(), min(self._uplink.due(), multiplexer.due()) - now)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _add_arrivals(self) -> None:
        while self._arrivals:
            self._multiplexer.add(self._arrivals.popleft())

    def _end(self, error: ScalerError) -> None:
        with self._lock:
            self._add_arrivals()
            self._multiplexer.end(error)
