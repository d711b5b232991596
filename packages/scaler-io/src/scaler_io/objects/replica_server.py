"""ReplicaServer: serves the objects that exist only on this host to an object storage server on another host.

It is told on the thread of its connection (scaler_io.objects.connection_thread) and answers with transfers, which take
turns with all others there. A new server, and one that had taken the host for lost, hears first of all what is held.
Only the server knows what need not be held any more: it says so, or is asked about what nobody has used for long
(`drop_unneeded`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from scaler_io.objects.operations import Operation, Registration, Upload
from scaler_io.objects.replicas import Replica, Replicas
from scaler_protocol.errors import ObjectRefusedError, ScalerError
from scaler_protocol.messages import Message
from scaler_protocol.objects import Reference
from scaler_protocol.storage import DropReplicas, FetchReplica, RegisterReplicaServer

LOGGER: Final = logging.getLogger("scaler")
AGAIN_SECONDS: Final = 1.0
"""After which it is tried again to read what there was no descriptor for, say."""
Said = Operation | Message
"""What is done, and told, about held objects."""
SURE_SECONDS: Final = 300.0
"""How long what the server knew is not asked about again."""


class ReplicaServer:
    """The voice of a host towards one server; `clock` as time.time, by which files are dated."""

    def __init__(self, files: Replicas, clock: Callable[[], float] = time.time) -> None:
        self._files, self._clock = files, clock
        self._sure: dict[Replica, float] = {}
        """When the server was asked about each, and knew it."""
        self._untold = False
        """Whether the server could not be told what is held."""
        self._failures = 0
        """How often it could not be told."""
        self._wanted: dict[FetchReplica, None] = {}
        """What it wants and could not be read yet."""
        self._again_at = math.inf
        self._complained = False

    def announce(self, now: float) -> list[Said]:
        """What to tell a server that knows nothing of us, before everything else; or `again` has it."""
        self._wanted.clear()
        return self._announce(now)

    def again(self, now: float) -> list[Said]:
        """What could not be read before, for want of descriptors, say, and can be now."""
        if now < self._again_at:
            return []
        self._again_at = math.inf
        said = self._announce(now) if self._untold else []
        for event in list(self._wanted):
            said += self.bring(event, now)
        return said

    def due(self) -> float:
        """When to try `again`."""
        return self._again_at

    def _announce(self, now: float) -> list[Said]:
        try:
            host = self._files.host
            holds = [Registration(held, host, self._heard) for _, held in self._files.list()]
        except OSError as error:
            self._untold = True
            self._failures += 1
            self._try_again(now, error)
            return []
        self._untold = self._complained = False
        if holds:
            LOGGER.info("%d objects are held on this host", len(holds))
        return [RegisterReplicaServer(host), *holds]

    def _try_again(self, now: float, error: OSError) -> None:
        self._again_at = now + AGAIN_SECONDS
        if not self._complained:
            self._complained = True
            LOGGER.warning("what is held on this host can not be read for now, and is tried again: %s", error)

    def _heard(self, hold: Registration, error: ScalerError | None) -> None:
        if isinstance(error, ObjectRefusedError):
            self._files.drop(hold.held)
        elif error is None and not hold.needed:
            self._files.release(hold.held)

    def bring(self, event: FetchReplica, now: float) -> list[Said]:
        """Somebody elsewhere wants an object: what to do, or to say where it is not here; or `again` has it."""
        reference = Reference(event.object, event.size)
        held = Replica(reference, event.version, event.session)
        try:
            mapping = self._files.map(held)
        except OSError as error:
            self._wanted[event] = None
            self._try_again(now, error)
            return []
        self._wanted.pop(event, None)
        self._complained = False
        if mapping is None:
            return [DropReplicas([event.object], [event.size], [event.session], [event.version])]

        def ended(error: ScalerError | None) -> None:
            if error is None:
                self._files.release(held)
            else:
                LOGGER.warning("object %s can not be brought to object storage: %s", reference, error)

        return [Upload(reference, [memoryview(mapping)], event.session, ended, event.version)]

    def drop(self, event: DropReplicas) -> None:
        """These are not needed any more."""
        for name, size, session, version in zip(
            event.objects, event.sizes, event.sessions, event.versions, strict=True
        ):
            self._files.drop(Replica(Reference(name, size), version, session))

    def drop_unneeded(self, unused_seconds: float, needed: Callable[[Replica], bool]) -> None:
        """Let go of what nobody has used for so long and the server knows nothing of; blocks as `needed` does.

        Raises OSError where files can not be looked at.
        """
        now, listed = self._clock(), self._files.list()
        self._sure = {held: self._sure[held] for _, held in listed if now - self._sure.get(held, 0.0) < SURE_SECONDS}
        for used, held in listed:
            if now - used < unused_seconds or held in self._sure:
                continue
            failures = self._failures
            if needed(held):
                self._sure[held] = now
            elif not self._untold and failures == self._failures:  # else the server may have heard nothing of it
                self._files.drop(held)
