"""ReplicaServer: serves the replicas on this host to an object storage server on another host.

It is called on the connection thread (scaler_io.objects.connection_thread) and answers with operations, which take
turns with all others of the connection. A new server, and one that had given up the host, first receives the list of
replicas. Only the server knows which replicas are still needed: it tells when they are not, or is asked about those
that were not used for long (`drop_unneeded`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from scaler_io.objects.operations import Operation, Registration, Upload
from scaler_io.objects.replicas import Replica, Replicas
from scaler_protocol.errors import ObjectRefusedError, ScalerError, StorageFullError
from scaler_protocol.messages import Message
from scaler_protocol.objects import Reference
from scaler_protocol.plurals import counted
from scaler_protocol.storage import DropReplicas, FetchReplica, RegisterReplicaServer

LOGGER: Final = logging.getLogger("scaler")
RETRY_SECONDS: Final = 1.0
"""Between two attempts to read files, for example while no descriptor is left."""
Outgoing = Operation | Message
"""An operation or a message about replicas, for the server."""
CONFIRMED_SECONDS: Final = 300.0
"""How long a replica that the server needs is not asked about again."""


class ReplicaServer:
    """Serves the replicas of a host to one server."""

    def __init__(self, files: Replicas, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._clock = files, clock
        self._unused: dict[Replica, tuple[float, float]] = {}
        """The time of the last use of each replica, and since when it is the same: the clock of files may jump."""
        self._confirmed: dict[Replica, float] = {}
        """When the server last confirmed each replica."""
        self._unannounced = False
        """Whether the server could not be sent the list of replicas."""
        self._failures = 0
        """How often it could not."""
        self._wanted: dict[FetchReplica, None] = {}
        """The server's requests for replicas that could not be read yet."""
        self._retry_at = math.inf
        self._logged = False

    def announce(self, now: float) -> list[Outgoing]:
        """The list of replicas, which a server without state for us receives first; empty if `retry` must send it."""
        self._wanted.clear()
        return self._announce(now)

    def retry(self, now: float) -> list[Outgoing]:
        """Read again what could not be read before, if it is time."""
        if now < self._retry_at:
            return []
        self._retry_at = math.inf
        outgoing = self._announce(now) if self._unannounced else []
        for event in list(self._wanted):
            outgoing += self.bring(event, now)
        return outgoing

    def due(self) -> float:
        """When to call `retry`; infinity if never."""
        return self._retry_at

    def _announce(self, now: float) -> list[Outgoing]:
        try:
            host = self._files.host
            registrations = [Registration(replica, host, self._registered) for _, replica in self._files.list()]
        except OSError as error:
            self._unannounced = True
            self._failures += 1
            self._retry_later(now, error)
            return []
        self._unannounced = self._logged = False
        if registrations:
            LOGGER.info("this host keeps %s", counted(len(registrations), "replica"))
        return [RegisterReplicaServer(host), *registrations]

    def _retry_later(self, now: float, error: OSError) -> None:
        self._retry_at = now + RETRY_SECONDS
        if not self._logged:
            self._logged = True
            LOGGER.warning("the replicas on this host cannot be read, will try again: %s", error)

    def _registered(self, registration: Registration, error: ScalerError | None) -> None:
        if isinstance(error, ObjectRefusedError):
            self._files.drop(registration.replica)
        elif error is None and not registration.needed:
            self._files.release(registration.replica)

    def bring(self, event: FetchReplica, now: float) -> list[Outgoing]:
        """Upload a replica that the server requests, or report that it is lost; `retry` uploads it if it fails."""
        reference = Reference(event.object, event.size)
        replica = Replica(reference, event.version, event.session)
        try:
            mapping = self._files.map(replica)
        except OSError as error:
            self._wanted[event] = None
            self._retry_later(now, error)
            return []
        self._wanted.pop(event, None)
        self._logged = False
        if mapping is None:
            return [DropReplicas([event.object], [event.size], [event.session], [event.version])]

        def ended(error: ScalerError | None) -> None:
            if error is None and not event.keep:
                self._files.release(replica)
            elif error is not None:
                LOGGER.log(
                    logging.DEBUG if event.keep else logging.WARNING,
                    "object %s could not be uploaded to object storage: %s",
                    reference,
                    error,
                )

        return [Upload(reference, [memoryview(mapping)], event.session, ended, event.version, keep=event.keep)]

    def count(self) -> int:
        """How many objects this host holds that the server does not; raises OSError."""
        return len(self._files.list())

    def hand_over(self, run: Callable[[Upload], None]) -> int:
        """Upload all replicas, as this host is about to leave; returns for how many there was no room.

        `run` blocks until an upload has ended, and raises its error. Raises ScalerError, or OSError if files cannot be
        read.
        """
        handed, left = 0, 0
        for _, replica in self._files.list():
            mapping = self._files.map(replica)
            if mapping is None:
                continue
            try:
                run(Upload(replica.reference, [memoryview(mapping)], replica.session, None, replica.version))
            except StorageFullError:  # a smaller one may still fit
                left += 1
                continue
            except ObjectRefusedError as error:  # it is another host's by now, or nobody's
                LOGGER.debug("object %s is not handed over: %s", replica.reference, error)
                continue
            self._files.release(replica)
            handed += 1
        if handed:
            LOGGER.info("handed %s over to object storage", counted(handed, "object"))
        return left

    def drop(self, event: DropReplicas) -> None:
        """Remove replicas that the server does not need any more."""
        for name, size, session, version in zip(
            event.objects, event.sizes, event.sessions, event.versions, strict=True
        ):
            self._files.drop(Replica(Reference(name, size), version, session))

    def drop_unneeded(self, unused_seconds: float, needed: Callable[[Replica], bool]) -> None:
        """Remove replicas that were not used for this time and that the server does not need; blocks as `needed` does.

        The time counts from the first call that finds a replica. Raises OSError if files cannot be read.
        """
        now, listed = self._clock(), self._files.list()
        before = self._unused
        self._unused = {
            replica: found if (found := before.get(replica, (used, now)))[0] == used else (used, now)
            for used, replica in listed
        }
        self._confirmed = {
            replica: self._confirmed[replica]
            for _, replica in listed
            if now - self._confirmed.get(replica, -math.inf) < CONFIRMED_SECONDS
        }
        for replica, (_, since) in self._unused.items():
            if now - since < unused_seconds or replica in self._confirmed:
                continue
            failures = self._failures
            if needed(replica):
                self._confirmed[replica] = now
            elif not self._unannounced and failures == self._failures:  # otherwise the server may not know the replica
                self._files.drop(replica)
