"""HostObjects: the objects that the processes of a host share if the server is on another host.

They fetch an object once (scaler_io.objects.host_cache) and keep the objects that they make as replicas
(scaler_io.objects.replicas).
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Iterable
from typing import Final

from scaler_io.objects.host_cache import CachedFile, HostCache
from scaler_io.objects.operations import CacheFill, Deletion, Download, Registration, Upload
from scaler_io.objects.replicas import Replica, Replicas
from scaler_io.objects.storage_link import StorageLink
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ClientQuitError, ObjectNotFoundError, ObjectRefusedError, ScalerError
from scaler_protocol.objects import Reference

_LOOK_SECONDS: Final = 0.005
"""Between two checks whether another process has fetched an object."""
_STALLED_SECONDS: Final = 5.0
"""A fetch by another process is given up if it makes no progress for twice as long while the server answers us."""


class HostObjects:
    """The cache of a host as one of its processes uses it, for the objects of one server."""

    def __init__(self, cache: HostCache, address: Address, link: StorageLink) -> None:
        self._cache, self._files = cache, Replicas(cache.directory, address)
        self._link = link

    def fetch(self, reference: Reference, version: int, deadline: float) -> mmap.mmap | None:
        """Map a version of an object from the cache, after this or another process has fetched it.

        None if the cache has no room, or the object has another version now. Raises TimeoutError at the deadline; the
        next fetch continues where this one ended.
        """
        while (file := self._cache.open(reference, version)) is not None:
            with contextlib.closing(file):
                if not self._lock(file, reference, deadline):
                    file.remove()
                if file.removed:
                    continue
                if not file.complete and not self._grow(file, reference, version, deadline):
                    file.remove()
                    return None
                if (mapping := file.map()) is not None:
                    return mapping
        return None

    def _lock(self, file: CachedFile, reference: Reference, deadline: float) -> bool:
        """Wait until the file is complete or no other process is writing it; False if the other one is stalled."""
        filled, since, asked = file.filled, time.monotonic(), False
        while not file.lock():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"object {reference} is still being fetched by another process of this host")
            time.sleep(_LOOK_SECONDS)
            if file.filled != filled:
                filled, since, asked = file.filled, time.monotonic(), False
            elif time.monotonic() > since + _STALLED_SECONDS:
                if asked:
                    return False
                # Raises an error if the object is deleted or the server cannot be reached.
                self._link.run(Download(reference, looking=True), deadline)
                since, asked = time.monotonic(), True
        return True

    def _grow(self, file: CachedFile, reference: Reference, version: int, deadline: float) -> bool:
        """Fetch the missing part of a file; False if that is impossible."""
        if not self._cache.make_room(file, self.upload_replicas):
            return False
        growth = CacheFill(reference, version, file)
        try:
            self._link.run(growth, deadline)
        except ObjectNotFoundError:
            file.remove()
            raise
        return growth.whole

    def keep(self, replica: Replica, views: Iterable[memoryview]) -> bool:
        """Keep an object as a replica on this host and register it; False if it must be uploaded instead."""
        files = self._files
        file = self._cache.write(replica.reference, replica.version, views, self.upload_replicas)
        if file is None:
            return False
        registration = Registration(replica, b"")
        try:
            with contextlib.closing(file):
                files.add(file, replica)
                registration = Registration(replica, files.host)
                self._link.run(registration)
        except ObjectRefusedError:
            return False  # no process serves this host's replicas
        except ScalerError:
            self._abandon(replica)
            raise
        except OSError:
            return False
        except BaseException:
            self._abandon(replica)
            raise
        finally:
            if not registration.needed:
                files.drop(replica)
        return True

    def _abandon(self, replica: Replica) -> None:
        """Have the server forget an object that could not be kept."""
        with contextlib.suppress(ClientQuitError):
            self._link.start_if_open(Deletion([replica.reference.object], replica.session))

    def upload_replicas(self, excess: int) -> bool:
        """Upload replicas of about `excess` bytes, so that their files may be removed; the longest unused one first."""
        files = self._files
        with files.upload_lock() as locked:
            for _, replica in files.list() if locked else ():
                try:
                    mapping = files.map(replica)
                    if excess <= 0 or mapping is None:
                        continue
                    self._link.run(
                        Upload(replica.reference, [memoryview(mapping)], replica.session, version=replica.version)
                    )
                except (ScalerError, OSError):  # the server is full or restarted, or the file cannot be read: keep all
                    return False
                files.release(replica)
                excess -= replica.reference.size
        return excess <= 0
