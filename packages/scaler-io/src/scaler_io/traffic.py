"""Traffic: the thread that owns a process's connection to object storage.

It is a thread of its own, so that a Ctrl-C in a caller tears nothing, an idle process keeps its connection alive, and
the operations of several threads share it fairly: each one (a transfer) asks part by part, in turn with the others, and
together they have at most WINDOW_BYTES on the way. A small object waits behind a window of a big one, never behind the
whole. What is written into segments is written here, slice by slice, for the same reason.

    Every PutObject is answered by an ObjectStored, every GetObject by an ObjectPart, AllocateObject by ObjectAllocated,
    SealObject by ObjectStored, MapObject by ObjectMapped, ListObjects by ObjectList.
    A broken connection is resumed without loss by the link; when the server does not know us any more, what was
    asked is asked again: a download goes on where it stands, an upload begins anew.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from scaler_io.links import LinkDown, LinkLost, LinkRefused, LinkUp, Uplink, UplinkEvent
from scaler_io.mappings import Mappings
from scaler_io.segments import read_token
from scaler_io.transfers import Deletion, Download, Transfer, Upload
from scaler_io.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, HandshakeRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import Goodbye, Hello, Welcome
from scaler_protocol.messages import DeleteObjects, Message, ObjectPart, ObjectStored
from scaler_protocol.objects import PART_BYTES
from scaler_protocol.segments import HostProof, ObjectAllocated, ObjectMapped
from scaler_protocol.stock import ObjectList

WINDOW_BYTES = 8 * PART_BYTES
_REQUEST_COST = 1024
"""What a request takes of the window beside its bytes."""
_SLICE_BYTES = 8 * 1024 * 1024
"""What is written into a segment before the connection is looked after."""


class Traffic:
    """The thread that owns the connection of one process, until it is closed or the server is lost."""

    def __init__(
        self, address: Address, hello: Hello, timeout_seconds: float, welcomed: Callable[[int], object]
    ) -> None:
        """`welcomed` is told, on the thread, which incarnation of a server it is that knows nothing of us."""
        self._address = address
        self._welcomed = welcomed
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
        self._copies: deque[Upload] = deque()
        """Uploads that are being written into segments."""
        self._directory = ""
        """Where the segments are, if we are on their host."""
        self.mappings = Mappings(self._signal)
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
        if self._up and (unpin := self.mappings.returned()) is not None:
            self._uplink.send(unpin)
        self._ask()
        for event in self._dialer.flush(now):
            self._handle(event)
        copied = bool(self._copies)
        if copied:
            self._copy(self._copies.popleft())
        if self._lost and self._ended is None:
            self._give_up(now)
        if closing and self._ended is None:
            self._end(ClientQuitError(f"the connection to object storage server {self._address} was closed"))
            self._uplink.send(Goodbye())
        if self._ended is None and not copied and not self._dialer.readable() and not self._arrivals:
            self._dialer.wait(self._woken.fileno(), self._uplink.due() - now)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)

    def _handle(self, event: UplinkEvent) -> None:
        if isinstance(event, ObjectStored | ObjectPart | ObjectAllocated | ObjectMapped | ObjectList):
            self._answered(event.request, event)
        elif isinstance(event, LinkUp):
            self._up, self._lost = True, ""
            if not event.resumed:
                self._arrive(event.welcome)
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
            if not transfer.asked:
                transfer.begin(self._directory)
            if transfer.count:
                self._ask_next(transfer)
            else:
                transfer.finish()

    def _ask_next(self, transfer: Transfer) -> None:
        index = transfer.asked
        transfer.asked += 1
        self._numbers += 1
        self._uplink.send(transfer.request(index, self._numbers))
        if transfer.over.is_set():
            return
        cost = transfer.cost(index) + _REQUEST_COST
        self._asked[self._numbers] = transfer, index, cost
        self._on_the_way += cost
        if transfer.may_ask:
            self._turns.append(transfer)

    def _arrive(self, welcome: Welcome) -> None:
        """We begin anew with a server; if it is on this host it is to know."""
        token = read_token(welcome.segment_directory)
        self._directory = welcome.segment_directory if token else ""
        if token:
            self._uplink.send(HostProof(token))
        self._welcomed(welcome.incarnation)

    def _copy(self, upload: Upload) -> None:
        """Write a slice of an object into its segment."""
        if upload.over.is_set():
            upload.close()
            return
        try:
            upload.write(_SLICE_BYTES)
        except ScalerError as error:
            self._refuse(upload, error)
            return
        if upload.writing:
            self._copies.append(upload)
        elif self._up:
            self._ask_next(upload)  # whatever is on the way: that may be waiting for the room that this one holds
        else:
            self._turns.append(upload)

    def _answered(self, number: int, message: Message) -> None:
        if number not in self._asked:
            self._pass_over(message)  # of an earlier server
            return
        transfer, index, cost = self._asked.pop(number)
        self._on_the_way -= cost
        if transfer.over.is_set():
            self._pass_over(message)
            return
        try:
            transfer.answer(index, message)
        except ScalerError as error:
            self._pass_over(message)
            self._refuse(transfer, error)
            return
        if isinstance(transfer, Download) and transfer.mapping is not None and isinstance(message, ObjectMapped):
            transfer.mapping = self.mappings.keep(transfer.reference.object, transfer.mapping, message.pin)
        transfer.answered += 1
        if transfer.answered == transfer.count:
            transfer.finish()
        elif isinstance(transfer, Upload) and transfer.writing:
            self._copies.append(transfer)

    def _pass_over(self, message: Message) -> None:
        """Nobody wants this answer."""
        if isinstance(message, ObjectMapped) and message.found:
            self.mappings.give_back(message.pin)

    def _refuse(self, transfer: Transfer, error: ScalerError) -> None:
        """A transfer is over; the parts of a failed upload are of no use."""
        transfer.finish(type(error)(f"{error} (object storage server {self._address})", **error.details))
        if isinstance(transfer, Upload):
            self._turns.append(Deletion(DeleteObjects([transfer.reference.object], transfer.session)))

    def _give_up(self, now: float) -> None:
        """Nobody waits for a server for longer than the timeout; with the last of them this ends."""
        error = StorageLostError(f"object storage server {self._address}: {self._lost}")
        waiting = 0
        for transfer in self._live():
            if not transfer.over.is_set() and now < transfer.since + self._timeout:
                waiting += 1
            else:
                _fail(transfer, error)
        with self._lock:
            if not waiting and not self._arrivals:
                self._end(error)

    def _ask_again(self) -> None:
        live = dict.fromkeys(self._live())
        self._asked.clear()
        self._copies.clear()
        self._on_the_way = 0
        for transfer in live:
            transfer.restart()
        self._turns = deque(live)

    def _live(self) -> list[Transfer]:
        """What was asked or is to be asked."""
        return [*(transfer for transfer, _, _ in self._asked.values()), *self._turns, *self._copies]

    def _end(self, error: ScalerError) -> None:
        with self._lock:
            self._ended = error
        transfers = [*self._live(), *self._arrivals]
        for held in (self._asked, self._turns, self._copies, self._arrivals):
            held.clear()
        for transfer in transfers:
            _fail(transfer, error)


def _fail(transfer: Transfer, error: ScalerError) -> None:
    transfer.finish(type(error)(f"object {transfer.reference}: {error}" if transfer.reference.object else str(error)))
