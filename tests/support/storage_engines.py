"""The engine of object storage without its server: events in, messages out."""

from __future__ import annotations

from collections import Counter

import pytest

from scaler_io.links.effects import Log, Send
from scaler_io.links.events import HubEvent, PeerJoined
from scaler_protocol import objects
from scaler_protocol.handshake import Hello, Welcome
from scaler_protocol.messages import Message
from scaler_protocol.objects import host_proof
from scaler_protocol.storage import HostProof
from scaler_storage.engine import readers, reading, writing
from scaler_storage.engine.engine import StorageEngine
from scaler_storage.engine.segments import MemorySegments

PART = 4


def make_parts_small(patch: pytest.MonkeyPatch) -> None:
    """Objects are written and read in parts of PART bytes."""
    for module in (objects, readers, reading, writing):
        patch.setattr(module, "PART_BYTES", PART)


class EngineDriver:
    """An engine over segments in memory, which checks its invariants after each event, and a clock."""

    def __init__(
        self,
        memory_limit: int,
        shared_bytes: int,
        *,
        spills: bool = False,
        spill_limit: int | None = None,
    ) -> None:
        self.now = 0.0
        self.logs: list[str] = []
        self.segments = MemorySegments(shared_bytes=shared_bytes, directory="/segments", spills=spills)
        self.keys: dict[bytes, bytes] = {}
        """The keys that peers have proved; by default they have none."""
        self.unread: Counter[bytes] = Counter()
        """Bytes of answers that peers have not acknowledged; by default they do at once."""
        self.core = StorageEngine(
            99,
            self.segments,
            memory_limit,
            60.0,
            spill_limit,
            key_of=lambda peer: self.keys.get(peer, b""),
            unacknowledged=self.unread.__getitem__,
        )

    def admit(self, hello: Hello, *, resumed: bool = False) -> list[tuple[bytes, Message]]:
        """Admit a peer; return the messages that follow."""
        welcome = self.core.admit(hello)
        assert isinstance(welcome, Welcome) and welcome.segment_directory == "/segments"
        return self.tell(hello.identity, PeerJoined(hello, resumed))

    def proof(self, peer: bytes, lock_file: str = "") -> HostProof:
        """Prove that this peer is on the server's host."""
        return HostProof(host_proof(self.segments.token, self.segments.challenge, peer), lock_file)

    def tell(self, peer: bytes, event: HubEvent) -> list[tuple[bytes, Message]]:
        """The messages that follow from this event, with their receivers."""
        self.core.handle(peer, event, self.now)
        return self.settle()

    def later(self, seconds: float) -> list[tuple[bytes, Message]]:
        """The messages of the next `seconds`."""
        self.now += seconds
        return self.settle()

    def settle(self) -> list[tuple[bytes, Message]]:
        """The messages to send; log lines go to `logs`."""
        self.core.check()
        said = []
        for effect in self.core.settle(self.now):
            if isinstance(effect, Send):
                said.append((effect.to, effect.message))
            else:
                assert isinstance(effect, Log)
                self.logs.append(effect.text)
        self.core.check()
        return said
