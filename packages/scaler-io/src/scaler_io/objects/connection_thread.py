"""ConnectionThread: the thread that owns a process's connection to object storage.

It is a thread of its own, so that a Ctrl-C in a caller tears nothing and an idle process keeps its connection alive.
What it does in which order is decided by scaler_io.objects.multiplexer.
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
from scaler_io.once_event import never_wait_here
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, ScalerError, StorageLostError
from scaler_protocol.handshake import Goodbye, Hello


class ConnectionThread:
    """The thread that owns the connection of one process, until it is closed or the server refuses us.

    A server that is lost is looked for again and again: it keeps a session's objects only as long as the session's
    owner is there, who may not want any of them for hours.
    """

    def __init__(
        self,
        address: Address,
        hello: Hello,
        timeout_seconds: float,
        welcomed: Callable[[int], object],
        replica_server: ReplicaServer | None,
        first: Operation,
    ) -> None:
        """`welcomed` is told, on the thread, which incarnation of a server it is that knows nothing of us.

        The `first` transfer is taken in any case, however soon the connection ends.
        """
        self._address = address
        self._uplink = Uplink(hello, time.monotonic(), timeout_seconds=timeout_seconds)
        self._dialer = Dialer(address, self._uplink)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._lock = threading.RLock()  # a finalizer may delete objects in the middle of anything
        first.since = time.monotonic()
        self._arrivals = deque([first])
        self._closing = False
        self.mappings = Mappings(self._signal)
        self._conveyor = Multiplexer(
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
        self._thread.start()

    def start(self, transfer: Operation) -> bool:
        """Whether it was taken; False means that this connection has ended."""
        with self._lock:
            if self.ended:
                return False
            transfer.since = time.monotonic()
            self._arrivals.append(transfer)
        self._signal()
        return True

    @property
    def ended(self) -> bool:
        """Whether nothing is taken any more."""
        return self._conveyor.ended is not None

    @property
    def near(self) -> bool | None:
        """Whether the server is on this host, if that is known."""
        return self._conveyor.near

    @property
    def lost(self) -> bool:
        """Whether the server has been silent for longer than an operation waits for it."""
        return self._conveyor.lost

    def close(self) -> None:
        """Say what is waiting to be said, fail what waits for an answer, leave."""
        self._closing = True
        self._signal()
        self._thread.join()

    def _signal(self) -> None:
        # It may be full, so the thread will wake; or closed, and there is no thread.
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
        conveyor = self._conveyor
        for event in self._dialer.turn(now):
            conveyor.handle(event, now)
        self._take_arrivals()
        conveyor.ask(now)
        for event in self._dialer.flush(now):
            conveyor.handle(event, now)
        copied = conveyor.copy(now)
        conveyor.give_up(now)
        if closing and not self.ended:
            self._end(ClientQuitError(f"the connection to object storage server {self._address} was closed"))
            self._uplink.send(Goodbye())
        if self.ended:
            with self._lock:  # what came while it ended
                self._take_arrivals()
        elif not copied and not self._dialer.readable() and not self._arrivals:
            self._dialer.wait(self._woken.fileno(), min(self._uplink.due(), conveyor.due()) - now)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _take_arrivals(self) -> None:
        while self._arrivals:
            self._conveyor.add(self._arrivals.popleft())

    def _end(self, error: ScalerError) -> None:
        with self._lock:
            self._take_arrivals()
            self._conveyor.end(error)
