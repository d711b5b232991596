"""Multiplexer: the operations of one connection to object storage, which take turns, and the handling of the answers.

The operations of several threads share a connection fairly: they send their requests part by part, in turn, and at most
a window of bytes is in flight. So a small object waits for a window of a big one, never for the whole object. If a
window takes longer than AHEAD_SECONDS, it is made smaller, down to one part. Segments are written in slices for the
same reason.

    Every PutObject is answered by an ObjectStored, every GetObject by an ObjectPart, AllocateObject by ObjectAllocated,
    SealObject by ObjectStored, MapObject by ObjectMapped, ListObjects by ObjectLists. The link resumes a broken
    connection without loss. If the server has lost our state, the requests are sent again: a download continues after
    its last part, an upload starts over.

It has no thread, socket or clock: scaler_io.objects.connection_thread is its shell. Its only IO is that of
scaler_io.objects.segments.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from scaler_io.links.events import LinkDown, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.uplink import Uplink
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.operations import Deletion, Download, Operation, Upload
from scaler_io.objects.replica_server import Outgoing, ReplicaServer
from scaler_protocol.errors import HandshakeRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import Welcome
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Message
from scaler_protocol.objects import PART_BYTES, host_proof
from scaler_protocol.storage import (
    DropReplicas,
    FetchReplica,
    HostProof,
    ObjectAllocated,
    ObjectList,
    ObjectMapped,
    ObjectPart,
    ObjectStored,
)

LOGGER: Final = logging.getLogger("scaler")
WINDOW_BYTES = 8 * PART_BYTES
AHEAD_SECONDS = 0.25
"""How long the bytes in flight may take: heartbeats and small objects of this connection wait behind them."""
_HEARTBEATS = 1.5
"""Heartbeat intervals without a message after which the server is silent."""
_REQUEST_COST = 1024
"""Bytes of the window for a request, in addition to its part."""
_SLICE_BYTES = 8 * 1024 * 1024
"""Bytes that are written into a segment before the connection is served again."""


@dataclass(frozen=True, slots=True)
class _Request:
    """An unanswered request; `ahead` is the bytes that were in flight when it was sent, its own included."""

    operation: Operation
    index: int
    cost: int
    ahead: int
    since: float


class Multiplexer:
    """All operations of one connection, until it has `ended`.

    `prove` reads the token of a segment directory, `live` locks a liveness file in it and returns the file's name.
    `welcomed` is called with the incarnation of each server that has no state for this connection. `replica_server`
    serves this host's replicas where the server is on another host. While the server is lost the link keeps trying to
    connect, and operations fail after the timeout.
    """

    def __init__(
        self,
        uplink: Uplink,
        server: str,
        timeout_seconds: float,
        mappings: Mappings,
        prove: Callable[[str], bytes],
        live: Callable[[str], str],
        welcomed: Callable[[int], object],
        replica_server: ReplicaServer | None = None,
    ) -> None:
        self.ended: ScalerError | None = None
        """Why the connection has ended; None while it has not."""
        self.lost = False
        """Whether the server had been silent for longer than the timeout at the last check."""
        self._uplink, self._server, self._timeout = uplink, server, timeout_seconds
        self.near: bool | None = None
        """Whether the server is on this host; None before its first Welcome."""
        self._mappings, self._prove, self._live_in, self._welcomed = mappings, prove, live, welcomed
        self._replica_server = replica_server
        self._up = False
        self._queue: deque[Operation] = deque()
        self._writing: deque[Upload] = deque()
        """Uploads that are being written into segments."""
        self._directory = ""
        """The segment directory, if the server is on this host."""
        self._requests: dict[int, _Request] = {}
        self._in_flight = 0
        self._window = WINDOW_BYTES
        self._numbers = 0

    @property
    def _silence(self) -> float:
        """How long the server may be silent, in seconds."""
        return max(self._timeout, _HEARTBEATS * self._uplink.heartbeat_seconds) if self._up else self._timeout

    def add(self, operation: Operation) -> None:
        """Queue an operation; it fails at once if the connection has ended."""
        if self.ended is not None:
            _fail(operation, self.ended)
            return
        if not self._up:
            self._uplink.connect_now()
        last = self._queue[-1] if self._queue else None
        if not (isinstance(operation, Deletion) and isinstance(last, Deletion) and last.join(operation)):
            self._queue.append(operation)

    def handle(self, event: UplinkEvent, now: float) -> None:
        """Handle an event of the link."""
        if isinstance(event, ObjectStored | ObjectPart | ObjectAllocated | ObjectMapped | ObjectList):
            self._answered(event.request, event, now)
        elif isinstance(event, LinkUp):
            self._up = True
            if not event.resumed:
                self._begin(event.welcome)
                self._restart_operations()
                if self._replica_server is not None and not self.near:
                    self._put_first(self._replica_server.announce(now))
        elif isinstance(event, LinkDown):
            self._up = False
        elif isinstance(event, LinkRefused):
            reason = event.reason(self._server)
            self.end(HandshakeRefusedError(f"object storage server {self._server} refused the connection: {reason}"))
        elif isinstance(event, FetchReplica) and self._replica_server is not None:
            self._put_first(self._replica_server.bring(event, now))
        elif isinstance(event, DropReplicas) and self._replica_server is not None:
            self._replica_server.drop(event)

    def send_requests(self, now: float) -> None:
        """Release pins, and send the requests of each operation in turn while the window has room."""
        while self._up and (unpin := self._mappings.returned()) is not None:
            self._uplink.send(unpin)
        if self._up and self._replica_server is not None and not self.near:
            self._put_first(self._replica_server.retry(now))
        while self._up and self._queue and self._in_flight < self._window:
            operation = self._queue.popleft()
            if operation.over.is_set():
                continue
            if not operation.asked:
                operation.begin(self._directory)
            if operation.count:
                self._send_next(operation, now)
            else:
                operation.finish()

    def _send_next(self, operation: Operation, now: float) -> None:
        index = operation.asked
        operation.asked += 1
        self._numbers += 1
        self._uplink.send(operation.request(index, self._numbers))
        if operation.over.is_set():
            return
        cost = operation.cost(index) + _REQUEST_COST
        self._in_flight += cost
        self._requests[self._numbers] = _Request(operation, index, cost, self._in_flight, now)
        if operation.may_ask:
            self._queue.append(operation)

    def write_slice(self, now: float) -> bool:
        """Write a slice of an object into its segment; returns whether there was one to write."""
        if not self._writing:
            return False
        upload = self._writing.popleft()
        if upload.over.is_set():
            upload.close()
            return True
        try:
            upload.write(_SLICE_BYTES)
        except ScalerError as error:
            self._refuse(upload, error)
            return True
        if upload.writing:
            self._writing.append(upload)
        elif self._up:
            self._send_next(upload, now)  # even if the window is full: others may wait for the room of this one
        else:
            self._queue.append(upload)
        return True

    def _begin(self, welcome: Welcome) -> None:
        """Begin with a server that has no state for us; prove to it that we are on its host, if we are."""
        token = self._prove(welcome.segment_directory)
        self._directory = welcome.segment_directory if token else ""
        self.near = bool(token)
        if token:
            lock_file = ""
            with contextlib.suppress(OSError):  # the directory may be full, or removed with its server
                lock_file = self._live_in(self._directory)
            proof = host_proof(token, welcome.challenge, self._uplink.identity)
            self._uplink.send(HostProof(proof, lock_file))
        self._welcomed(welcome.incarnation)

    def _put_first(self, outgoing: list[Outgoing]) -> None:
        """Send what concerns this host's replicas before all operations that may depend on it."""
        for each in outgoing:
            if not isinstance(each, Operation):
                self._uplink.send(each)
        self._queue.extendleft(reversed([each for each in outgoing if isinstance(each, Operation)]))

    def _answered(self, number: int, message: Message, now: float) -> None:
        if number not in self._requests:
            self._discard(message)  # the request was sent to an earlier server
            return
        request = self._requests.pop(number)
        operation = request.operation
        self._in_flight -= request.cost
        if request.cost > PART_BYTES:
            self._window = window_after(request.ahead, now - request.since)
        if operation.over.is_set():
            self._discard(message)
            return
        try:
            operation.answer(request.index, message)
        except ScalerError as error:
            self._discard(message)
            self._refuse(operation, error)
            return
        if operation.over.is_set():
            self._discard(message)
            return
        if isinstance(operation, Download) and operation.mapping is not None and isinstance(message, ObjectMapped):
            operation.mapping = self._mappings.keep(operation.reference.object, operation.mapping, message.pin)
        if operation.more:
            self._requests[number] = request
            self._in_flight += request.cost
            return
        operation.answered += 1
        if operation.answered == operation.count:
            operation.finish()
        elif isinstance(operation, Upload) and operation.writing:
            self._writing.append(operation)

    def _discard(self, message: Message) -> None:
        """Release the pin of an answer that is not wanted any more."""
        if isinstance(message, ObjectMapped) and message.found:
            self._mappings.give_back(message.pin)

    def _refuse(self, operation: Operation, error: ScalerError) -> None:
        """Fail an operation; the server drops the parts of a failed upload."""
        operation.finish(type(error)(f"{error} (object storage server {self._server})", **error.details))
        if isinstance(operation, Upload) and not operation.version:
            self.add(Deletion([operation.reference.object], operation.session))

    def fail_overdue(self, now: float) -> None:
        """Fail operations that have waited for a silent server for the timeout; not deletions, which have no waiter."""
        self.lost = now >= self._uplink.heard_at + self._silence
        if self.lost:
            missing = "answer" if self._up else "connection"
            error = StorageLostError(f"object storage server {self._server}: no {missing} for {self._timeout:g} s")
            for operation in self._awaited():
                if now >= operation.since + self._timeout:
                    _fail(operation, error)

    def due(self) -> float:
        """When `fail_overdue` or `send_requests` must be called even if nothing arrives; infinity if never."""
        return min(
            self._fails_at(), self._replica_server.due() if self._up and self._replica_server is not None else math.inf
        )

    def _fails_at(self) -> float:
        if not self._requests and not self._queue and not self._writing:
            return math.inf
        if not self.lost:
            return self._uplink.heard_at + self._silence
        return min((operation.since + self._timeout for operation in self._awaited()), default=math.inf)

    def _awaited(self) -> list[Operation]:
        """The operations that a caller may wait for."""
        return [each for each in self._live() if not each.over.is_set() and not isinstance(each, Deletion)]

    def _restart_operations(self) -> None:
        """Queue all operations again for a server that has no state for us; uploads of replicas fail."""
        live = dict.fromkeys(self._live())
        self._requests.clear()
        self._writing.clear()
        self._in_flight = 0
        for operation in live:
            if isinstance(operation, Upload) and operation.version:
                _fail(operation, StorageLostError("the server that had registered this replica is gone"))
            else:
                operation.restart()
        self._queue = deque(live)

    def _live(self) -> list[Operation]:
        """The operations that have not ended: sent, queued or being written."""
        return [*(request.operation for request in self._requests.values()), *self._queue, *self._writing]

    def end(self, error: ScalerError) -> None:
        """End the connection: all operations fail with this error, also later ones."""
        self.ended = error
        operations = self._live()
        for waiting in (self._requests, self._queue, self._writing):
            waiting.clear()
        for operation in operations:
            _fail(operation, error)


def window_after(ahead: int, seconds: float) -> int:
    """The window in bytes, after an answer took `seconds` with `ahead` bytes in flight."""
    if seconds * WINDOW_BYTES <= ahead * AHEAD_SECONDS:
        return WINDOW_BYTES
    return max(PART_BYTES, int(ahead * AHEAD_SECONDS / seconds))


def _fail(operation: Operation, error: ScalerError) -> None:
    operation.finish(
        type(error)(f"object {operation.reference}: {error}" if operation.reference.object else str(error))
    )
