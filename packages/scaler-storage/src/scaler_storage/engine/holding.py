"""Holding: what other hosts have made and keep until somebody elsewhere wants it. Pure, no IO.

    HoldObject ──▶ HELD ──somebody wants it──▶ asked of one who speaks for the host ──PutObject──▶ in memory
                    │    └─────────── the host needs room: PutObject ───────────────────────────────▶
                    └──nobody speaks for the host──▶ out of reach: not found, until somebody does again

A held object is an object, with a session and an edition, but takes no memory here. What is deleted, or was put here by
other means, its host is told to drop; one that nobody speaks for just then is told when it says that it holds it still.
"""

from __future__ import annotations

import logging

from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Role
from scaler_protocol.storage import BringObject, DropObjects, SpeakForHost
from scaler_storage.engine.records import ObjectRecord, PeerRecord
from scaler_storage.engine.state import StorageState

ASKING_SECONDS = 2.0
"""How long one who was asked for an object has to begin."""
_HOST_BYTES = 16
"""A host is at least as hard to guess as an object."""


class Holding:
    """Who speaks for which host, and what is asked of whom."""

    def __init__(self, state: StorageState) -> None:
        self._state = state
        self._asked: dict[bytes, float] = {}
        """When each object was asked for, the earliest first; some have come since."""

    def speak(self, peer: bytes, event: SpeakForHost) -> None:
        """A peer can be asked for what is held on its host; raises ProtocolError for one that can not be."""
        record = self._state.peers[peer]
        if record.role != Role.AGENT or len(event.host) < _HOST_BYTES or record.host not in (b"", event.host):
            raise ProtocolError(f"role {record.role} speaks for a host of {len(event.host)} bytes")
        record.host = event.host
        self._state.voices.setdefault(event.host, {})[peer] = None

    def ask(self, name: bytes, record: ObjectRecord) -> None:
        """Have an object brought that somebody waits for, by another one than last; by nobody: it is not found."""
        voices = self._state.voices.get(record.host, {})
        record.asked = voice = next((voice for voice in voices if voice != record.asked), record.asked)
        if voice:
            voices[voice] = voices.pop(voice)  # in turn
            self._asked.pop(name, None)
            self._asked[name] = self._state.now
            self._state.send(voice, BringObject(name, record.size, record.session, record.edition))
        else:
            self._state.refuse_readers(record)

    def look(self) -> None:
        """Ask another one for what has not begun to come: the first may be dead, which its link takes long to say."""
        state = self._state
        while (due := self.due()) is not None and due <= state.now:
            name = next(iter(self._asked))
            del self._asked[name]
            record = state.objects.get(name)
            if record is not None and record.asked:
                if (record.asked, name) in state.uploads or len(state.voices[record.host]) == 1:
                    self._asked[name] = state.now
                else:
                    self.ask(name, record)

    def due(self) -> float | None:
        """When to look again."""
        return next(iter(self._asked.values())) + ASKING_SECONDS if self._asked else None

    def leave(self, peer: bytes, record: PeerRecord) -> None:
        """Somebody is gone: what was asked of it is asked of another one who speaks for its host."""
        host, record.host = record.host, b""
        if not host:
            return
        del self._state.voices[host][peer]
        if not self._state.voices[host]:
            del self._state.voices[host]
            self._state.log(logging.WARNING, "nobody speaks for a host any more: objects that it holds are not found")
        for name, wanted in self._state.objects.items():
            if wanted.asked == peer:
                wanted.asked = b""
                self.ask(name, wanted)

    def dropped(self, peer: bytes, event: DropObjects) -> None:
        """A host has these no more."""
        host = self._state.peers[peer].host
        for name, edition in zip(event.objects, event.editions, strict=True):
            record = self._state.objects.get(name)
            if host and record is not None and (record.host, record.edition) == (host, edition):
                self._state.log(logging.ERROR, f"object {name.hex()} is lost: the host that held it has it no more")
                self._state.unhold(name, record, drop=False)
                self._state.free(name)

    def tell_hosts(self) -> None:
        """Say what need not be held any more, to somebody on each host."""
        for host, rows in self._state.dropped.items():
            voice = next(iter(self._state.voices.get(host, ())), None)
            if voice is not None:
                self._state.send(voice, DropObjects(*zip(*rows, strict=True)))
                continue
            for name, _, session, edition in rows:
                self._state.miss(name, session, edition)
        self._state.dropped.clear()

    def check(self) -> None:
        """Assert the invariants."""
        state = self._state
        voices = {(host, peer) for host, peers in state.voices.items() for peer in peers}
        assert voices == {(record.host, peer) for peer, record in state.peers.items() if record.host}
        assert all(state.voices.values())
        held = [record for record in state.objects.values() if record.host]
        assert (state.held, state.held_bytes) == (len(held), sum(record.size for record in held))
        for record in held:
            assert record.segment is None and not (record.here or record.ticket or record.pins)
            assert bool(record.asked) == bool(record.waiting)
        for record in state.objects.values():
            assert not record.asked or record.asked in state.voices[record.host]
