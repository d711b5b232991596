"""Multiplexer: the transfers of one connection to object storage, each in its turn, and what the answers mean.

The operations of several threads share a connection fairly: each one (a transfer) asks part by part, in turn with the
others, and together they have at most a window on the way. A small object waits behind a window of a big one, never
behind the whole; and where the window takes longer than AHEAD_SECONDS it is made smaller, down to one part. What is
written into segments is written slice by slice, for the same reason.

    Every PutObject is answered by an ObjectStored, every GetObject by an ObjectPart, AllocateObject by ObjectAllocated,
    SealObject by ObjectStored, MapObject by ObjectMapped, ListObjects by ObjectList. A broken connection is resumed
    without loss by the link; when the server does not know us any more, what was asked is asked again: a download goes
    on where it stands, an upload begins anew.

No thread, no socket, no clock: scaler_io.objects.connection_thread is its shell. Of IO there is what
scaler_io.objects.segments does.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from scaler_io.links.events import LinkDown, LinkRefused, LinkUp, UplinkEvent
from scaler_io.links.uplink import Uplink
from scaler_io.objects.mmaps import Mappings
from scaler_io.objects.operations import Deletion, Download, Operation, Upload
from scaler_io.objects.replica_server import ReplicaServer, Said
from scaler_protocol.errors import HandshakeRefusedError, ScalerError, StorageLostError
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import Message
from scaler_protocol.objects import PART_BYTES
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
"""How long what is on the way may take: heartbeats and small objects of this connection wait behind it."""
_BEATS = 1.5
"""Heartbeats of a server after which it is silent: one is on its way."""
_REQUEST_COST = 1024
"""What a request takes of the window beside its bytes."""
_SLICE_BYTES = 8 * 1024 * 1024
"""What is written into a segment before the connection is looked after."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked and is not answered yet; `ahead` is what was on the way then, itself included."""

    transfer: Operation
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
        """Why nothing is taken any more, if so."""
        self.lost = False
        """Whether the server was silent for longer than the timeout when we looked last."""
        self._uplink, self._server, self._timeout = uplink, server, timeout_seconds
        self._silence = timeout_seconds
        """How long the server may say nothing."""
        self.near: bool | None = None
        """Whether the server is on our host; None before it has said anything."""
        self._mappings, self._prove, self._live_in, self._welcomed = mappings, prove, live, welcomed
        self._replica_server = replica_server
        self._up = False
        self._turns: deque[Operation] = deque()
        self._copies: deque[Upload] = deque()
        """Uploads that are being written into segments."""
        self._directory = ""
        """Where the segments are, if we are on their host."""
        self._asked: dict[int, _Request] = {}
        self._on_the_way = 0
        self._window = WINDOW_BYTES
        self._numbers = 0

    def add(self, transfer: Operation) -> None:
        """One more, which gets its turn, or fails as all others did."""
        if self.ended is not None:
            _fail(transfer, self.ended)
            return
        if not self._up:
            self._uplink.connect_now()
        last = self._turns[-1] if self._turns else None
        if not (isinstance(transfer, Deletion) and isinstance(last, Deletion) and last.join(transfer)):
            self._turns.append(transfer)

    def handle(self, event: UplinkEvent, now: float) -> None:
        """Take what the link says."""
        if isinstance(event, ObjectStored | ObjectPart | ObjectAllocated | ObjectMapped | ObjectList):
            self._answered(event.request, event, now)
        elif isinstance(event, LinkUp):
            self._up = True
            self._silence = max(self._timeout, _BEATS * event.welcome.heartbeat_seconds)
            if not event.resumed:
                self._arrive(event.welcome)
                self._ask_again()
                if self._replica_server is not None and not self.near:
                    self._say(self._replica_server.announce(now))
        elif isinstance(event, LinkDown):
            self._up, self._silence = False, self._timeout
        elif isinstance(event, LinkRefused):
            reasons = "; ".join(event.reasons)
            self.end(HandshakeRefusedError(f"object storage server {self._server} refused us: {reasons}"))
        elif isinstance(event, FetchReplica) and self._replica_server is not None:
            self._say(self._replica_server.bring(event, now))
        elif isinstance(event, DropReplicas) and self._replica_server is not None:
            self._replica_server.drop(event)

    def ask(self, now: float) -> None:
        """Give pins back, and every transfer its turn, as long as the window is open."""
        if self._up and (unpin := self._mappings.returned()) is not None:
            self._uplink.send(unpin)
        if self._up and self._replica_server is not None and not self.near:
            self._say(self._replica_server.again(now))
        while self._up and self._turns and self._on_the_way < self._window:
            transfer = self._turns.popleft()
            if transfer.over.is_set():
                continue
            if not transfer.asked:
                transfer.begin(self._directory)
            if transfer.count:
                self._ask_next(transfer, now)
            else:
                transfer.finish()

    def _ask_next(self, transfer: Operation, now: float) -> None:
        index = transfer.asked
        transfer.asked += 1
        self._numbers += 1
        self._uplink.send(transfer.request(index, self._numbers))
        if transfer.over.is_set():
            return
        cost = transfer.cost(index) + _REQUEST_COST
        self._on_the_way += cost
        self._asked[self._numbers] = _Request(transfer, index, cost, self._on_the_way, now)
        if transfer.may_ask:
            self._turns.append(transfer)

    def copy(self, now: float) -> bool:
        """Write a slice of an object into its segment; False where there is none to be written."""
        if not self._copies:
            return False
        upload = self._copies.popleft()
        if upload.over.is_set():
            upload.close()
            return True
        try:
            upload.write(_SLICE_BYTES)
        except ScalerError as error:
            self._refuse(upload, error)
            return True
        if upload.writing:
            self._copies.append(upload)
        elif self._up:
            self._ask_next(upload, now)  # whatever is on the way: that may be waiting for the room of this one
        else:
            self._turns.append(upload)
        return True

    def _arrive(self, welcome: Welcome) -> None:
        """We begin anew with a server; if it is on this host it is to know."""
        token = self._prove(welcome.segment_directory)
        self._directory = welcome.segment_directory if token else ""
        self.near = bool(token)
        if token:
            lock_file = ""
            with contextlib.suppress(OSError):  # it may be full, or the server be gone again
                lock_file = self._live_in(self._directory)
            self._uplink.send(HostProof(token, lock_file))
        self._welcomed(welcome.incarnation)

    def _say(self, said: list[Said]) -> None:
        """What is held on our host comes before everything that may be about it."""
        for each in said:
            if not isinstance(each, Operation):
                self._uplink.send(each)
        self._turns.extendleft(reversed([each for each in said if isinstance(each, Operation)]))

    def _answered(self, number: int, message: Message, now: float) -> None:
        if number not in self._asked:
            self._pass_over(message)  # of an earlier server
            return
        request = self._asked.pop(number)
        transfer = request.transfer
        self._on_the_way -= request.cost
        if request.cost > PART_BYTES:
            self._window = window_after(request.ahead, now - request.since)
        if transfer.over.is_set():
            self._pass_over(message)
            return
        try:
            transfer.answer(request.index, message)
        except ScalerError as error:
            self._pass_over(message)
            self._refuse(transfer, error)
            return
        if transfer.over.is_set():
            self._pass_over(message)
            return
        if isinstance(transfer, Download) and transfer.mapping is not None and isinstance(message, ObjectMapped):
            transfer.mapping = self._mappings.keep(transfer.reference.object, transfer.mapping, message.pin)
        transfer.answered += 1
        if transfer.answered == transfer.count:
            transfer.finish()
        elif isinstance(transfer, Upload) and transfer.writing:
            self._copies.append(transfer)

    def _pass_over(self, message: Message) -> None:
        """Nobody wants this answer."""
        if isinstance(message, ObjectMapped) and message.found:
            self._mappings.give_back(message.pin)

    def _refuse(self, transfer: Operation, error: ScalerError) -> None:
        """A transfer is over; the parts of a failed upload are of no use."""
        transfer.finish(type(error)(f"{error} (object storage server {self._server})", **error.details))
        if isinstance(transfer, Upload) and not transfer.version:
            self.add(Deletion([transfer.reference.object], transfer.session))

    def give_up(self, now: float) -> None:
        """Nobody waits longer than the timeout for a server that is silent. Deletions do: nobody waits for them."""
        self.lost = now >= self._uplink.heard_at + self._silence
        if self.lost:
            trouble = "answer" if self._up else "connection"
            error = StorageLostError(f"object storage server {self._server}: no {trouble} for {self._timeout:g} s")
            for transfer in self._waited_for():
                if now >= transfer.since + self._timeout:
                    _fail(transfer, error)

    def due(self) -> float:
        """When to `give_up` something, or to look `again` at what is held, if the server says nothing before."""
        return min(
            self._fails_at(), self._replica_server.due() if self._up and self._replica_server is not None else math.inf
        )

    def _fails_at(self) -> float:
        if not self._asked and not self._turns and not self._copies:
            return math.inf
        if not self.lost:
            return self._uplink.heard_at + self._silence
        return min((transfer.since + self._timeout for transfer in self._waited_for()), default=math.inf)

    def _waited_for(self) -> list[Operation]:
        return [each for each in self._live() if not each.over.is_set() and not isinstance(each, Deletion)]

    def _ask_again(self) -> None:
        live = dict.fromkeys(self._live())
        self._asked.clear()
        self._copies.clear()
        self._on_the_way = 0
        for transfer in live:
            if isinstance(transfer, Upload) and transfer.version:
                _fail(transfer, StorageLostError("the server that knew it to be held here is gone"))
            else:
                transfer.restart()
        self._turns = deque(live)

    def _live(self) -> list[Operation]:
        """What was asked or is to be asked."""
        return [*(request.transfer for request in self._asked.values()), *self._turns, *self._copies]

    def end(self, error: ScalerError) -> None:
        """Nothing is taken any more, and what is here fails."""
        self.ended = error
        transfers = self._live()
        for held in (self._asked, self._turns, self._copies):
            held.clear()
        for transfer in transfers:
            _fail(transfer, error)


def window_after(ahead: int, seconds: float) -> int:
    """The window, in bytes, when an answer took so long behind `ahead` bytes."""
    if seconds * WINDOW_BYTES <= ahead * AHEAD_SECONDS:
        return WINDOW_BYTES
    return max(PART_BYTES, int(ahead * AHEAD_SECONDS / seconds))


def _fail(transfer: Operation, error: ScalerError) -> None:
    transfer.finish(type(error)(f"object {transfer.reference}: {error}" if transfer.reference.object else str(error)))
