"""Send failures: what replaces a message that could not be encoded or written, so that no peer waits for it.

A peer that waits for an answer gets an error without content, as if its connection had been lost: the request was
executed, and the peer repeats it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from scaler_protocol.errors import StorageLostError, describe
from scaler_protocol.messages import Message
from scaler_protocol.storage import (
    FetchReplica,
    ObjectAllocated,
    ObjectList,
    ObjectMapped,
    ObjectPart,
    ObjectStored,
    UnpinObjects,
)
from scaler_storage.engine.reading import Reading
from scaler_storage.engine.state import StorageState

AGAIN_SECONDS: Final = 1.0
"""Delay, in seconds, before an answer without content is sent again."""
_LOST: Final = StorageLostError("the object storage server could not write its answer; its log says why")
_ERROR: Final = describe(_LOST).decode()


class SendFailures:
    """Undoes or answers the requests behind messages that were not sent."""

    def __init__(self, state: StorageState, reading: Reading) -> None:
        self._state, self._reading = state, reading
        self._pending: deque[tuple[float, bytes, Message]] = deque()
        """Answers to send again, as (time, peer, answer), the earliest first."""
        self._handlers: dict[type[Any], Callable[[bytes, Any], Message | None]] = {
            ObjectStored: lambda peer, unsent: ObjectStored(unsent.object, unsent.request, _ERROR),
            ObjectAllocated: self._allocated,
            ObjectPart: lambda peer, unsent: ObjectPart(unsent.object, False, request=unsent.request, error=_ERROR),
            ObjectMapped: self._mapped,
            ObjectList: lambda peer, unsent: ObjectList((), unsent.request),
            FetchReplica: self._bring,
        }

    def failed(self, peer: bytes, unsent: Message) -> None:
        """Replace a message that a peer will not receive; peers repeat all other requests on their own."""
        handler = self._handlers.get(type(unsent))
        if handler is None or peer not in self._state.peers:
            return
        answer = handler(peer, unsent)
        if answer == unsent:
            self._pending.append((self._state.now + AGAIN_SECONDS, peer, answer))
        elif answer is not None:
            self._state.send(peer, answer)

    def resend(self) -> None:
        """Send due answers again."""
        while self._pending and self._pending[0][0] <= self._state.now:
            _, peer, answer = self._pending.popleft()
            self._state.send(peer, answer)

    def due(self) -> float | None:
        """When `resend` has something to do, or None."""
        return self._pending[0][0] if self._pending else None

    def _allocated(self, peer: bytes, unsent: ObjectAllocated) -> Message:
        if unsent.segment:
            self._state.drop_upload(peer, unsent.object)
        return ObjectAllocated(unsent.object, request=unsent.request, error=_ERROR)

    def _mapped(self, peer: bytes, unsent: ObjectMapped) -> Message:
        if unsent.found:
            self._reading.unpin(peer, UnpinObjects([unsent.pin]))
        return ObjectMapped(unsent.object, False, request=unsent.request, error=_ERROR)

    def _bring(self, peer: bytes, unsent: FetchReplica) -> None:
        record = self._state.objects.get(unsent.object)
        if record is not None and record.fetching_from == peer:
            record.fetching_from = b""
            self._state.refuse_readers(record, _LOST)
