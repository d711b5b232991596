"""Operations on stored objects, each as a sequence of requests and answers.

On the server's host, objects of SHARED_BYTES or more are written into segments and mapped. Smaller ones, and all
objects on other hosts, are sent in parts.
"""

from __future__ import annotations

import logging
import math
import mmap
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Final

from scaler_io.objects.host_cache import CachedFile
from scaler_io.objects.replicas import Replica
from scaler_io.objects.segments import Copying, SegmentWriter, map_segment
from scaler_io.thread_event import ThreadEvent
from scaler_protocol.errors import ObjectNotFoundError, ProtocolError, ScalerError, restore
from scaler_protocol.limits import DELETED_TOGETHER
from scaler_protocol.messages import Message
from scaler_protocol.objects import PART_BYTES, SHARED_BYTES, Reference, new_object_id, part_count
from scaler_protocol.payloads import Payloads
from scaler_protocol.storage import (
    AllocateObject,
    DeleteObjects,
    GetObject,
    ListObjects,
    MapObject,
    ObjectAllocated,
    ObjectList,
    ObjectMapped,
    ObjectPart,
    ObjectStored,
    PutObject,
    RegisterReplica,
    SealObject,
)

LOGGER: Final = logging.getLogger("scaler")
_CHECK_SECONDS: Final = 1.0
"""How long a thread waits at a time: on Windows only the return of a wait lets Ctrl-C through."""
Buffer = bytes | bytearray | memoryview
Pieces = Buffer | Sequence[Buffer]
"""The bytes of an object: one buffer, or several to be concatenated."""
PutEnded = Callable[[ScalerError | None], object]


def views_of(payload: Pieces) -> Sequence[memoryview]:
    """The bytes of an object as views, without empty ones."""
    buffers = [payload] if isinstance(payload, bytes | bytearray | memoryview) else payload
    views = [memoryview(buffer) for buffer in buffers]
    return [view.cast("B") for view in views if view.nbytes]


def reference_of(views: Sequence[memoryview], name: bytes = b"") -> Reference:
    """The reference of a new object with these bytes; its id is `name`, or random if that is empty."""
    return Reference(name or new_object_id(), sum(map(len, views)))


class Operation:
    """One operation: `count` requests, sent in order, and their answers, which arrive in order."""

    def __init__(self, reference: Reference, count: int) -> None:
        self.reference = reference
        self.count = count
        self.asked = 0
        self.answered = 0
        self.more = False
        """Whether further messages answer the last request."""
        self.since = 0.0
        """When the caller began to wait."""
        self.over = ThreadEvent()
        self.error: ScalerError | OSError | None = None

    def begin(self, directory: str) -> None:
        """Prepare to send the first request; `directory` is the segment directory, or "" on another host."""

    @property
    def may_ask(self) -> bool:
        """Whether the next request may be sent before the last one is answered."""
        return self.asked < self.count

    def request(self, index: int, number: int) -> Message:
        """The request for part `index`, with the request number `number`."""
        raise NotImplementedError

    def answer(self, index: int, message: Message) -> None:
        """Process the answer for part `index`; raises the ScalerError that ends the operation."""
        raise NotImplementedError

    def span(self, index: int) -> int:
        """The size of part `index` in bytes."""
        return max(0, min(PART_BYTES, self.reference.size - index * PART_BYTES))

    def cost(self, index: int) -> int:
        """The bytes that part `index` sends over the connection."""
        return self.span(index)

    def finish(self, error: ScalerError | None = None) -> None:
        """End the operation, with an error if it failed; does nothing if it has ended."""
        if not self.over.is_set():
            self.error = error
            self.over.set()

    def wait(self, deadline: float = math.inf) -> None:
        """Block until the operation has ended; raises its error. If this is interrupted, the operation is abandoned.

        Raises TimeoutError at the deadline (of time.monotonic); the operation then continues.
        """
        try:
            while not self.over.wait(min(_CHECK_SECONDS, deadline - time.monotonic())):
                if time.monotonic() >= deadline:
                    break
        except BaseException:
            self.over.set()
            raise
        if not self.over.is_set():
            raise TimeoutError(f"object {self.reference} did not arrive in time")
        if self.error is not None:
            raise self.error

    def restart(self) -> None:
        """Send the unanswered requests again: the server has lost them."""
        self.asked = self.answered


class Upload(Operation):
    """Sends an object to the server; `done` is called at its end, unless it is abandoned.

    A replica of this host has a `version`; with `keep` the host keeps it. With `copying`, copies of the buffers are
    sent.
    """

    def __init__(
        self,
        reference: Reference,
        buffers: Sequence[memoryview],
        session: int,
        done: PutEnded | None = None,
        version: int = 0,
        copying: Copying | None = None,
        *,
        keep: bool = False,
    ) -> None:
        super().__init__(reference, part_count(reference.size))
        self.session, self.version, self._keep = session, version, keep
        self._copying = copying
        self._buffers = buffers
        self._ends = list(accumulate(map(len, buffers)))
        self._done = done
        self._directory = self._segment = ""
        self._writer: SegmentWriter | None = None

    def begin(self, directory: str) -> None:
        self._directory = directory if self.reference.size >= SHARED_BYTES and not self.version else ""
        self.count = 2 if self._directory else part_count(self.reference.size)
        if self._copying is not None:
            self._copying.restart()

    @property
    def may_ask(self) -> bool:
        return super().may_ask and not (self._directory and self.asked > self.answered)

    @property
    def writing(self) -> bool:
        """Whether `write` has more bytes to write."""
        return self._writer is not None

    def write(self, limit: int) -> None:
        """Write about `limit` bytes into the segment; raises ScalerError."""
        if self._writer is not None and self._writer.write(limit):
            self.close()

    def close(self) -> None:
        """Stop writing into the segment."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def finish(self, error: ScalerError | None = None) -> None:
        if self.over.is_set():
            return
        self.close()
        super().finish(error)
        if self._done is not None:
            try:
                self._done(error)
            except Exception:
                LOGGER.exception("the callback for object %s failed", self.reference)

    def cost(self, index: int) -> int:
        return 0 if self._directory else self.span(index)

    def request(self, index: int, number: int) -> Message:
        if self._directory and index:
            return SealObject(self.reference.object, self._segment, number)
        if self._directory:
            return AllocateObject(self.reference.object, self.reference.size, self.session, number)
        part = self._part(index * PART_BYTES, self.span(index))
        if self._copying is not None:
            part = self._copying.copy(memoryview(part))
        parts = Payloads.cut(part, [self.span(index)])
        name, size = self.reference.object, self.reference.size
        return PutObject(name, size, parts, index * PART_BYTES, self.session, number, self.version, self._keep)

    def _part(self, start: int, length: int) -> memoryview | bytes:
        """A range of the concatenated buffers; copied only if it spans several."""
        pieces = []
        at = bisect_right(self._ends, start)
        while length:
            buffer, begin = self._buffers[at], self._ends[at] - len(self._buffers[at])
            pieces.append(buffer[start - begin : start - begin + length])
            start, length, at = start + len(pieces[-1]), length - len(pieces[-1]), at + 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def answer(self, index: int, message: Message) -> None:
        if self._directory and not index:
            self._allocated(message)
            return
        if not isinstance(message, ObjectStored):
            raise ProtocolError(f"{type(message).__name__} is not an answer to PutObject")
        if message.error:
            raise restore(message.error.encode())

    def _allocated(self, message: Message) -> None:
        if not isinstance(message, ObjectAllocated):
            raise ProtocolError(f"{type(message).__name__} is not an answer to AllocateObject")
        if message.error:
            raise restore(message.error.encode())
        self._segment = message.segment
        if self._segment:
            self._writer = SegmentWriter(self._directory, self._segment, self._buffers, self._copying)
        else:
            self.count = 1  # it is stored already

    def restart(self) -> None:
        self.close()
        self.asked = self.answered = 0


class Download(Operation):
    """Gets an object from the server: mapped if it `may_map` and the server is on this host, otherwise in parts.

    With `looking`, an object that would be sent in parts is not sent: the server only tells whether it exists. A part
    that comes before an earlier one is not used: the download then ends, and is not `whole`.
    """

    def __init__(self, reference: Reference, *, looking: bool = False, may_map: bool = True) -> None:
        super().__init__(reference, part_count(reference.size))
        self._joined = 0
        """How many parts have arrived in order."""
        # Takes half the time and memory of joining parts at the end: it grows in place and shares its bytes.
        self._file = BytesIO()
        self._directory = ""
        self.looking, self._may_map = looking, may_map
        self.mapping: mmap.mmap | None = None
        self.version = 0
        """The version of the object at the server; 0 if it is not known."""

    def begin(self, directory: str) -> None:
        self._directory = directory if self._may_map and self.reference.size >= SHARED_BYTES else ""
        self.count = 1 if self._directory or self.looking else part_count(self.reference.size)

    @property
    def looked(self) -> bool:
        """Whether the server has the object, but it was neither mapped nor sent."""
        return self.looking and self.mapping is None

    @property
    def whole(self) -> bool:
        """Whether all parts have arrived. Without an error they may not have.

        The object has another version, or there was no room, or the parts came in another order.
        """
        return self._joined == self.count

    def cost(self, index: int) -> int:
        return 0 if self._directory or self.looking else self.span(index)

    def request(self, index: int, number: int) -> Message:
        if self._directory:
            return MapObject(self.reference.object, self.reference.size, number)
        limit = 0 if self.looking else self.span(index)
        return GetObject(self.reference.object, index * PART_BYTES, limit, number)

    def answer(self, index: int, message: Message) -> None:
        if not isinstance(message, ObjectMapped if self._directory else ObjectPart):
            asked = "MapObject" if self._directory else "GetObject"
            raise ProtocolError(f"{type(message).__name__} is not an answer to {asked}")
        if message.error:
            raise restore(message.error.encode())
        if not message.found or (isinstance(message, ObjectPart) and message.size != self.reference.size):
            raise ObjectNotFoundError(f"there is no object {self.reference}")
        if isinstance(message, ObjectMapped):
            try:
                self.mapping = map_segment(self._directory, message.segment, self.reference.size)
                self._joined += 1
            except OSError as error:
                self.error = error
                self.over.set()
            return
        if self.version not in (0, message.version):
            self.finish()
            return
        self.version = message.version
        part = message.parts.frame
        if not self.looking and len(part) != self.span(index):
            raise ProtocolError(
                f"part {index} of object {self.reference} has {len(part):,} bytes, not {self.span(index):,}"
            )
        if index == self._joined:
            self._joined += 1
            if not self.looking:
                self._append(index, part)

    def _append(self, index: int, part: bytes | memoryview) -> None:
        if self.count == 1:
            self._file = BytesIO(bytes(part))  # shares the bytes
        else:
            self._file.write(part)

    def restart(self) -> None:
        self.asked = self.answered = self._joined

    @property
    def payload(self) -> bytes | memoryview:
        """The bytes of the object; a view of a mapped object keeps it mapped."""
        return self._file.getvalue() if self.mapping is None else memoryview(self.mapping)


class Look(Download):
    """Asks whether the server can read an object, and which version; the answer to this may be no."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(reference, looking=True, may_map=False)
        self.found = True

    def answer(self, index: int, message: Message) -> None:
        self.found = not isinstance(message, ObjectPart) or message.found or bool(message.error)
        if self.found:
            super().answer(index, message)


class CacheFill(Download):
    """Gets an object from the server into a file of the host's cache, beginning where the file ends."""

    def __init__(self, reference: Reference, version: int, file: CachedFile) -> None:
        super().__init__(reference)
        self.version = version
        self._into = file
        self.asked = self.answered = self._joined = file.filled // PART_BYTES

    def begin(self, directory: str) -> None:
        """Nothing to prepare: it continues where the file ends, in parts."""

    def _append(self, index: int, part: bytes | memoryview) -> None:
        try:
            self._into.append(index * PART_BYTES, part)
        except OSError:
            self.finish()


class Registration(Operation):
    """Registers a replica on this host with the server; `done` is called with this operation when it has ended."""

    def __init__(
        self, replica: Replica, host: bytes, done: Callable[[Registration, ScalerError | None], object] | None = None
    ) -> None:
        super().__init__(replica.reference, 1)
        self.replica, self._host, self._done = replica, host, done
        self.needed = False
        """Whether the server has no other copy of this object."""

    def request(self, index: int, number: int) -> Message:
        replica = self.replica
        return RegisterReplica(
            replica.reference.object, replica.reference.size, replica.session, replica.version, self._host, number
        )

    def cost(self, index: int) -> int:
        return 0

    def answer(self, index: int, message: Message) -> None:
        if not isinstance(message, ObjectStored):
            raise ProtocolError(f"{type(message).__name__} is not an answer to RegisterReplica")
        if message.error:
            raise restore(message.error.encode())
        self.needed = message.version == self.replica.version

    def finish(self, error: ScalerError | None = None) -> None:
        if not self.over.is_set():
            super().finish(error)
            if self._done is not None:
                self._done(self, error)


class Listing(Operation):
    """Lists the complete objects of our session."""

    def __init__(self) -> None:
        super().__init__(Reference(b"", 0), 1)
        self.objects: list[bytes] = []

    def request(self, index: int, number: int) -> Message:
        return ListObjects(number)

    def answer(self, index: int, message: Message) -> None:
        if not isinstance(message, ObjectList):
            raise ProtocolError(f"{type(message).__name__} is not an answer to ListObjects")
        self.objects += message.objects
        self.more = message.left > 0

    def restart(self) -> None:
        super().restart()
        self.objects.clear()


class Deletion(Operation):
    """Deletes objects of a session, or all if none is named; the server does not answer."""

    def __init__(self, names: Sequence[bytes], session: int) -> None:
        super().__init__(Reference(b"", 0), 1)
        self._names, self._session = list(names), session

    def join(self, other: Deletion) -> bool:
        """Add the deletion that follows to this message; returns whether that is possible."""
        if self._session != other._session or not self._names or not other._names:
            return False
        if len(self._names) + len(other._names) > DELETED_TOGETHER:
            return False
        self._names += other._names
        return True

    def request(self, index: int, number: int) -> Message:
        self.finish()
        return DeleteObjects(self._names, self._session)
