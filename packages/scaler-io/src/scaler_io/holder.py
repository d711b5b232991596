"""Holder: speaks for a host, so that object storage elsewhere can have what the host holds when somebody wants it.

It is told on the thread of its connection (scaler_io.traffic) and answers with transfers, which take turns with all
others there. A new server, and one that had taken the host for lost, hears first of all what is held. Only the server
knows what need not be held any more: it says so, or is asked about what nobody has used for long (`drop_unneeded`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from scaler_io.held_files import HeldFiles, HeldObject
from scaler_io.transfers import Hold, Transfer, Upload
from scaler_protocol.errors import ObjectRefusedError, ScalerError
from scaler_protocol.messages import Message
from scaler_protocol.objects import Reference
from scaler_protocol.storage import BringObject, DropObjects, SpeakForHost

LOGGER: Final = logging.getLogger("scaler")
SURE_SECONDS: Final = 300.0
"""How long what the server knew is not asked about again."""


class Holder:
    """The voice of a host towards one server; `clock` as time.time, by which files are dated."""

    def __init__(self, files: HeldFiles, clock: Callable[[], float] = time.time) -> None:
        self._files, self._clock = files, clock
        self._sure: dict[HeldObject, float] = {}
        """When the server was asked about each, and knew it."""

    def announce(self) -> tuple[Message, list[Transfer]]:
        """What to tell a server before everything else; raises OSError where the host's directory is gone."""
        host = self._files.host
        holds: list[Transfer] = [Hold(held, host, self._heard) for _, held in self._files.list()]
        if holds:
            LOGGER.info("%d objects are held on this host", len(holds))
        return SpeakForHost(host), holds

    def _heard(self, hold: Hold, error: ScalerError | None) -> None:
        if isinstance(error, ObjectRefusedError):
            self._files.drop(hold.held)
        elif error is None and not hold.needed:
            self._files.release(hold.held)

    def bring(self, event: BringObject) -> Transfer | Message:
        """Somebody elsewhere wants an object: what to do, or to say where it is not here."""
        reference = Reference(event.object, event.size)
        held = HeldObject(reference, event.edition, event.session)
        mapping = self._files.map(held)
        if mapping is None:
            return DropObjects([event.object], [event.size], [event.session], [event.edition])

        def ended(error: ScalerError | None) -> None:
            if error is None:
                self._files.release(held)
            else:
                LOGGER.warning("object %s can not be brought to object storage: %s", reference, error)

        return Upload(reference, [memoryview(mapping)], event.session, ended, event.edition)

    def drop(self, event: DropObjects) -> None:
        """These are not needed any more."""
        for name, size, session, edition in zip(
            event.objects, event.sizes, event.sessions, event.editions, strict=True
        ):
            self._files.drop(HeldObject(Reference(name, size), edition, session))

    def drop_unneeded(self, unused_seconds: float, needed: Callable[[HeldObject], bool]) -> None:
        """Let go of what nobody has used for so long and the server knows nothing of; blocks as `needed` does."""
        now, listed = self._clock(), self._files.list()
        self._sure = {held: self._sure[held] for _, held in listed if now - self._sure.get(held, 0.0) < SURE_SECONDS}
        for used, held in listed:
            if now - used < unused_seconds or held in self._sure:
                continue
            if needed(held):
                self._sure[held] = now
            else:
                self._files.drop(held)
