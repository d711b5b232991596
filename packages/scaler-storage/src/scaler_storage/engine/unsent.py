"""Unsent: what becomes of a message that could not be written, so that nobody waits for it. Pure, no IO.

Who waits for an answer gets one without content, which says that the true one is lost, as with a connection: the server
has done what was asked, and who asks again finds it so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from scaler_protocol.errors import StorageLostError, describe
from scaler_protocol.messages import Message
from scaler_protocol.storage import (
    BringObject,
    DropObjects,
    ObjectAllocated,
    ObjectList,
    ObjectMapped,
    ObjectPart,
    ObjectStored,
    UnpinObjects,
)
from scaler_storage.engine.reading import Reading
from scaler_storage.engine.state import StorageState
from scaler_storage.engine.writing import Writing

AGAIN_SECONDS: Final = 1.0
"""After which an answer is tried again for which there was, say, no memory."""
_LOST: Final = StorageLostError("the object storage server could not write its answer; its log says why")
_ERROR: Final = describe(_LOST).decode()


class Unsent:
    """Ends what a message was about."""

    def __init__(self, state: StorageState, writing: Writing, reading: Reading) -> None:
        self._state, self._writing, self._reading = state, writing, reading
        self._owed: deque[tuple[float, bytes, Message]] = deque()
        """Answers to be sent, when and to whom, the earliest first."""
        self._handlers: dict[type[Any], Callable[[bytes, Any], Message | None]] = {
            ObjectStored: lambda peer, unsent: ObjectStored(unsent.object, unsent.request, _ERROR),
            ObjectAllocated: self._allocated,
            ObjectPart: lambda peer, unsent: ObjectPart(unsent.object, False, request=unsent.request, error=_ERROR),
            ObjectMapped: self._mapped,
            ObjectList: lambda peer, unsent: ObjectList((), unsent.request),
            BringObject: self._bring,
            DropObjects: self._drop,
        }

    def failed(self, peer: bytes, unsent: Message) -> None:
        """A peer will never have this message; whoever else is not told asks again by himself."""
        handler = self._handlers.get(type(unsent))
        if handler is None or peer not in self._state.peers:
            return
        answer = handler(peer, unsent)
        if answer == unsent:
            self._owed.append((self._state.now + AGAIN_SECONDS, peer, answer))
        elif answer is not None:
            self._state.send(peer, answer)

    def look(self) -> None:
        """Try again what even without content could not be written."""
        while self._owed and self._owed[0][0] <= self._state.now:
            _, peer, answer = self._owed.popleft()
            self._state.send(peer, answer)

    def due(self) -> float | None:
        """When to look again."""
        return self._owed[0][0] if self._owed else None

    def _allocated(self, peer: bytes, unsent: ObjectAllocated) -> Message:
        if unsent.segment:
            self._writing.drop_upload(peer, self._state.peers[peer], unsent.object)
        return ObjectAllocated(unsent.object, request=unsent.request, error=_ERROR)

    def _mapped(self, peer: bytes, unsent: ObjectMapped) -> Message:
        if unsent.found:
            self._reading.unpin(peer, UnpinObjects([unsent.pin]))
        return ObjectMapped(unsent.object, False, request=unsent.request, error=_ERROR)

    def _bring(self, peer: bytes, unsent: BringObject) -> None:
        record = self._state.objects.get(unsent.object)
        if record is not None and record.asked == peer:
            record.asked = b""
            self._state.refuse_readers(record, _LOST)

    def _drop(self, peer: bytes, unsent: DropObjects) -> None:
        """The host hears when it says that it holds them."""
        for name, session, edition in zip(unsent.objects, unsent.sessions, unsent.editions, strict=True):
            self._state.miss(name, session, edition)
