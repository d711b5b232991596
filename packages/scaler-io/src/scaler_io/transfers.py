"""Transfers: one operation on a stored object each, as requests and answers. Pure, no IO."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from io import BytesIO
from itertools import accumulate

from scaler_protocol.errors import ObjectNotFoundError, ProtocolError, ScalerError, restore
from scaler_protocol.messages import DeleteObjects, GetObject, Message, ObjectPart, ObjectStored, PutObject
from scaler_protocol.objects import PART_BYTES, Reference, part_count
from scaler_protocol.payloads import Payloads

Buffer = bytes | bytearray | memoryview


class Transfer:
    """One operation: `count` requests, asked in order, and their answers, which come in order."""

    def __init__(self, reference: Reference, count: int) -> None:
        self.reference = reference
        self.count = count
        self.asked = 0
        self.answered = 0
        self.since = 0.0
        """When somebody began to wait for it."""
        self.over = threading.Event()
        self.error: ScalerError | None = None

    def request(self, index: int, number: int) -> Message:
        """The message that asks for part `index`."""
        raise NotImplementedError

    def answer(self, index: int, message: Message) -> None:
        """Take the answer for part `index`; raises the ScalerError that ends the transfer."""
        raise NotImplementedError

    def span(self, index: int) -> int:
        """The bytes of part `index`."""
        return max(0, min(PART_BYTES, self.reference.size - index * PART_BYTES))

    def fail(self, error: ScalerError) -> None:
        """End without success, unless it has ended."""
        if not self.over.is_set():
            self.error = error
            self.over.set()

    def restart(self) -> None:
        """Nothing that was asked and not answered will be answered."""
        self.asked = self.answered


class Upload(Transfer):
    """The parts of an object to the server."""

    def __init__(self, reference: Reference, buffers: Sequence[memoryview], session: int) -> None:
        super().__init__(reference, part_count(reference.size))
        self.session = session
        self._buffers = buffers
        self._ends = list(accumulate(map(len, buffers)))

    def request(self, index: int, number: int) -> Message:
        parts = Payloads.cut(self._part(index * PART_BYTES, self.span(index)), [self.span(index)])
        name, size = self.reference.object, self.reference.size
        return PutObject(name, size, parts, index * PART_BYTES, self.session, number)

    def _part(self, start: int, length: int) -> memoryview | bytes:
        """Bytes of the buffers as if they were one; copied only where they are not in one."""
        pieces = []
        at = bisect_right(self._ends, start)
        while length:
            buffer, begin = self._buffers[at], self._ends[at] - len(self._buffers[at])
            pieces.append(buffer[start - begin : start - begin + length])
            start, length, at = start + len(pieces[-1]), length - len(pieces[-1]), at + 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def answer(self, index: int, message: Message) -> None:
        if not isinstance(message, ObjectStored):
            raise ProtocolError(f"{type(message).__name__} is no answer to PutObject")
        if message.error:
            raise restore(message.error.encode())

    def restart(self) -> None:
        self.asked = self.answered = 0


class Download(Transfer):
    """The parts of an object from the server."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(reference, part_count(reference.size))
        # Half the time of joining at the end, and half the memory: it grows in place and gives itself away.
        self._file = BytesIO()

    def request(self, index: int, number: int) -> Message:
        return GetObject(self.reference.object, index * PART_BYTES, self.span(index), number)

    def answer(self, index: int, message: Message) -> None:
        if not isinstance(message, ObjectPart):
            raise ProtocolError(f"{type(message).__name__} is no answer to GetObject")
        if not message.found or message.size != self.reference.size:
            raise ObjectNotFoundError(f"there is no object {self.reference}")
        part = bytes(message.parts.frame)
        if len(part) != self.span(index):
            raise ProtocolError(f"part {index} of object {self.reference} came with {len(part):,} bytes")
        if self.count == 1:
            self._file = BytesIO(part)  # shares the bytes
        else:
            self._file.write(part)

    @property
    def payload(self) -> bytes:
        """What has come."""
        return self._file.getvalue()


class Deletion(Transfer):
    """A message that is not answered."""

    def __init__(self, message: DeleteObjects) -> None:
        super().__init__(Reference(b"", 0), 1)
        self._message = message

    def request(self, index: int, number: int) -> Message:
        self.over.set()
        return self._message
