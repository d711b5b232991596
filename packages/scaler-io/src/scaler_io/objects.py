"""ObjectConnection: how clients and workers put, get and delete stored objects. Blocking, for any number of threads.

The connection belongs to a thread of its own, so that a Ctrl-C in a caller tears nothing, an idle process keeps its
connection alive, and the operations of several threads share it fairly: each one (a transfer) asks part by part, in
turn with the others, and together they have at most WINDOW_BYTES on the way. A small object waits behind a window of a
big one, never behind the whole.

    Every PutObject is answered by an ObjectStored, every GetObject by an ObjectPart. A broken connection is resumed
    without loss by the link; when the server does not know us any more, what was asked is asked again: a download
    goes on where it stands, an upload begins anew.
"""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

from scaler_io.links import LinkDown, LinkLost, LinkRefused, LinkUp, Uplink, UplinkEvent
from scaler_io.transfers import Buffer, Deletion, Download, Transfer, Upload
from scaler_io.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, HandshakeRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import Goodbye, Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_protocol.messages import DeleteObjects, Message, ObjectPart, ObjectStored
from scaler_protocol.objects import PART_BYTES, Reference, new_object_id

WINDOW_BYTES = 8 * PART_BYTES
_REQUEST_COST = 1024
"""What a request takes of the window beside its bytes."""
_CHECK_SECONDS = 1.0
"""How often a waiting thread looks up: on Windows nothing else lets a Ctrl-C through."""


class _Traffic:
    """The thread that owns the connection of one process, until it is closed or the server is lost."""

    def __init__(self, address: Address, hello: Hello, timeout_seconds: float) -> None:
        self._address = address
        self._uplink = Uplink(hello, time.monotonic(), timeout_seconds=timeout_seconds)
        self._dialer = Dialer(address, self._uplink)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._lock = threading.RLock()  # a finalizer may delete objects in the middle of anything
        self._arrivals: deque[Transfer] = deque()
        self._timeout = timeout_seconds
        self._ended: ScalerError | None = None
        self._lost = ""
        """Why there has been no server for longer than the timeout, if so."""
        self._closing = False
        self._up = False
        self._turns: deque[Transfer] = deque()
        self._asked: dict[int, tuple[Transfer, int, int]] = {}
        self._on_the_way = 0
        self._numbers = 0
        self._thread = threading.Thread(target=self._run, name="scaler-objects", daemon=True)
        self._thread.start()

    def start(self, transfer: Transfer) -> bool:
        """Whether it was taken; False means that this connection has ended."""
        with self._lock:
            if self._ended is not None:
                return False
            transfer.since = time.monotonic()
            self._arrivals.append(transfer)
        self._signal()
        return True

    @property
    def ended(self) -> bool:
        """Whether nothing is taken any more."""
        return self._ended is not None

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
        try:
            while self._ended is None:
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
        for event in self._dialer.turn(now):
            self._handle(event)
        while self._arrivals:
            self._turns.append(self._arrivals.popleft())
        self._ask()
        for event in self._dialer.flush(now):
            self._handle(event)
        if self._lost and self._ended is None:
            self._give_up(now)
        if closing and self._ended is None:
            self._end(ClientQuitError(f"the connection to object storage server {self._address} was closed"))
            self._uplink.send(Goodbye())
        if self._ended is None and not self._dialer.readable() and not self._arrivals:
            self._dialer.wait(self._woken.fileno(), self._uplink.due() - now)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _handle(self, event: UplinkEvent) -> None:
        if isinstance(event, ObjectStored | ObjectPart):
            self._answered(event.request, event)
        elif isinstance(event, LinkUp):
            self._up, self._lost = True, ""
            if not event.resumed:
                self._ask_again()
        elif isinstance(event, LinkDown):
            self._up = False
        elif isinstance(event, LinkLost):
            self._lost = event.reason
        elif isinstance(event, LinkRefused):
            reasons = "; ".join(event.reasons)
            self._end(HandshakeRefusedError(f"object storage server {self._address} refused us: {reasons}"))

    def _ask(self) -> None:
        """Give every transfer its turn, as long as the window is open."""
        while self._up and self._turns and self._on_the_way < WINDOW_BYTES:
            transfer = self._turns.popleft()
            if transfer.over.is_set():
                continue
            if not transfer.count:
                transfer.over.set()
                continue
            index = transfer.asked
            transfer.asked += 1
            self._numbers += 1
            self._uplink.send(transfer.request(index, self._numbers))
            if transfer.over.is_set():
                continue
            cost = transfer.span(index) + _REQUEST_COST
            self._asked[self._numbers] = transfer, index, cost
            self._on_the_way += cost
            if transfer.asked < transfer.count:
                self._turns.append(transfer)

    def _answered(self, number: int, message: Message) -> None:
        if number not in self._asked:
            return  # of an earlier server
        transfer, index, cost = self._asked.pop(number)
        self._on_the_way -= cost
        if transfer.over.is_set():
            return
        try:
            transfer.answer(index, message)
        except ScalerError as error:
            transfer.fail(type(error)(f"{error} (object storage server {self._address})", **error.details))
            self._clean_up(transfer)
            return
        transfer.answered += 1
        if transfer.answered == transfer.count:
            transfer.over.set()

    def _clean_up(self, transfer: Transfer) -> None:
        """The parts of a failed upload are of no use."""
        if isinstance(transfer, Upload):
            self._turns.append(Deletion(DeleteObjects([transfer.reference.object], transfer.session)))

    def _give_up(self, now: float) -> None:
        """Nobody waits for a server for longer than the timeout; with the last of them this ends."""
        error = StorageLostError(f"object storage server {self._address}: {self._lost}")
        waiting = 0
        for transfer in [*(transfer for transfer, _, _ in self._asked.values()), *self._turns]:
            if not transfer.over.is_set() and now < transfer.since + self._timeout:
                waiting += 1
            else:
                _fail(transfer, error)
        with self._lock:
            if not waiting and not self._arrivals:
                self._end(error)

    def _ask_again(self) -> None:
        live = dict.fromkeys([*(transfer for transfer, _, _ in self._asked.values()), *self._turns])
        self._asked.clear()
        self._on_the_way = 0
        for transfer in live:
            transfer.restart()
        self._turns = deque(live)

    def _end(self, error: ScalerError) -> None:
        with self._lock:
            self._ended = error
        transfers = [*(transfer for transfer, _, _ in self._asked.values()), *self._turns, *self._arrivals]
        for held in (self._asked, self._turns, self._arrivals):
            held.clear()
        for transfer in transfers:
            _fail(transfer, error)


def _fail(transfer: Transfer, error: ScalerError) -> None:
    transfer.fail(type(error)(f"object {transfer.reference}: {error}" if transfer.reference.object else str(error)))


class ObjectConnection:
    """Stored objects as seen by a client or a worker; connects when it is first used.

    Blocking and thread-safe. A forked process connects for itself and shares nothing but the session. Without a
    connection for `timeout_seconds` an operation raises StorageLostError; a server that will not have us is
    HandshakeRefusedError.
    """

    def __init__(
        self,
        address: Address,
        *,
        session: int,
        role: int = Role.CLIENT,
        timeout_seconds: float = 60.0,
        name: str = "",
    ) -> None:
        self.address = address
        self.session = session
        self._role = role
        self._timeout = timeout_seconds
        self._name = name
        self._closed = False
        self._inherited: list[_Traffic] = []
        self._traffic: _Traffic | None = None
        self._forked()
        _CONNECTIONS.add(self)

    def _forked(self) -> None:
        """Begin anew: nobody else of this process can be in here."""
        self._lock = threading.RLock()
        if self._traffic is not None:
            self._inherited.append(self._traffic)  # never to be touched, not even by the garbage collector
        self._traffic = None

    def open(self) -> None:
        """Connect now: from here on the session's objects live until its client is gone."""
        self._run(Transfer(Reference(b"", 0), 0))

    def open_soon(self) -> None:
        """As `open`, unless there is a connection; does not wait."""
        with self._lock:
            if self._traffic is None or self._traffic.ended:
                self._start(Transfer(Reference(b"", 0), 0))

    def put(self, payload: Buffer | Sequence[Buffer], *, session: int = 0, name: bytes = b"") -> Reference:
        """Store bytes, or several buffers as one object, in our session or another that a worker works for.

        The object's id is random unless it is to have this `name`, which must be new and as hard to guess.
        Nothing may change the buffers before this returns. Raises ObjectRefusedError, of which StorageFullError is one.
        """
        buffers = [payload] if isinstance(payload, bytes | bytearray | memoryview) else payload
        return self._put([self._upload(buffers, session, name)])[0]

    def put_each(self, payloads: Sequence[Buffer], *, session: int = 0) -> list[Reference]:
        """Store every one of these as an object, or, where that fails, none; otherwise as `put`."""
        return self._put([self._upload([payload], session) for payload in payloads])

    def _upload(self, buffers: Sequence[Buffer], session: int, name: bytes = b"") -> Upload:
        views = [memoryview(buffer) for buffer in buffers]
        views = [view.cast("B") for view in views if view.nbytes]
        return Upload(Reference(name or new_object_id(), sum(map(len, views))), views, session or self.session)

    def _put(self, uploads: Sequence[Upload]) -> list[Reference]:
        references = [upload.reference for upload in uploads]
        try:
            for upload in uploads:
                self._start(upload)
            for upload in uploads:
                self._await(upload)
        except BaseException:
            for upload in uploads:
                upload.over.set()
            # Interrupted, or one of many refused: the server has not dropped what it has of the others.
            with contextlib.suppress(ClientQuitError):
                self.delete(references, session=uploads[0].session)
            raise
        return references

    def get(self, reference: Reference) -> bytes:
        """The bytes of an object, of whatever session; raises ObjectNotFoundError at once where there is none."""
        download = Download(reference)
        self._run(download)
        return download.payload

    def delete(self, references: Sequence[Reference], *, session: int = 0) -> None:
        """Free objects of the session, in order with what this thread asks next; does not wait.

        Where the server is lost nothing is done: objects go with their session.
        """
        names = [reference.object for reference in references]
        with self._lock:
            if names and (self._traffic is None or not self._traffic.ended):
                self._start(Deletion(DeleteObjects(names, session or self.session)))

    def clear(self) -> None:
        """Free all objects of our session; does not wait."""
        self._start(Deletion(DeleteObjects((), self.session)))

    def close(self) -> None:
        """Say goodbye; a client's objects are freed with its session. Operations in other threads raise."""
        with self._lock:
            self._closed = True
            traffic, self._traffic = self._traffic, None
        if traffic is not None:
            traffic.close()

    def _run(self, transfer: Transfer) -> None:
        try:
            self._start(transfer)
            self._await(transfer)
        except BaseException:
            transfer.over.set()
            raise

    @staticmethod
    def _await(transfer: Transfer) -> None:
        while not transfer.over.wait(_CHECK_SECONDS):
            pass
        if transfer.error is not None:
            raise transfer.error

    def _start(self, transfer: Transfer) -> None:
        with self._lock:
            if self._closed:
                raise ClientQuitError(f"the connection to object storage server {self.address} is closed")
            if self._traffic is None or not self._traffic.start(transfer):
                hello = Hello(
                    self._role,
                    new_identity(),
                    new_incarnation(),
                    session=self.session,
                    name=self._name,
                    host=platform.node(),
                    pid=os.getpid(),
                )
                self._traffic = _Traffic(self.address, hello, self._timeout)
                self._traffic.start(transfer)


_CONNECTIONS: Final[weakref.WeakSet[ObjectConnection]] = weakref.WeakSet()


def _after_fork() -> None:
    for connection in _CONNECTIONS:
        connection._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
