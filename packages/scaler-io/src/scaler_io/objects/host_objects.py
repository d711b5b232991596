"""HostObjects: what the processes of a host that is not the server's share: they fetch an object once, and keep what
they make (scaler_io.objects.host_cache, scaler_io.objects.replicas)."""

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
"""How often to look whether another process has fetched what we want."""
_STILL_SECONDS: Final = 5.0
"""A fetch of another process that stands still twice as long, while the server answers us, is not waited for."""


class HostObjects:
    """The cache of a host as one of its processes uses it, for the objects of the server at an address."""

    def __init__(self, cache: HostCache, address: Address, link: StorageLink) -> None:
        self._cache, self._files = cache, Replicas(cache.directory, address)
        self._link = link

    def fetch(self, reference: Reference, version: int, deadline: float) -> mmap.mmap | None:
        """A version of an object from the cache, fetched into it by us or another process.

        None where that has no room, or there is another version by now. Raises TimeoutError; the next one goes on
        where we stood.
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
        """Wait until the file is complete or nobody else is writing it; False where nothing happens to it."""
        filled, since, asked = file.filled, time.monotonic(), False
        while not file.hold():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"object {reference} is still being fetched by another process of this host")
            time.sleep(_LOOK_SECONDS)
            if file.filled != filled:
                filled, since, asked = file.filled, time.monotonic(), False
            elif time.monotonic() > since + _STILL_SECONDS:
                if asked:
                    return False
                # It may be deleted, or the server be out of reach.
                self._link.run(Download(reference, looking=True), deadline)
                since, asked = time.monotonic(), True
        return True

    def _grow(self, file: CachedFile, reference: Reference, version: int, deadline: float) -> bool:
        """Fetch what is missing in a file; False where that can not be."""
        if not self._cache.make_room(file, self.give):
            return False
        growth = CacheFill(reference, version, file)
        try:
            self._link.run(growth, deadline)
        except ObjectNotFoundError:
            file.remove()
            raise
        return growth.whole

    def keep(self, held: Replica, views: Iterable[memoryview]) -> bool:
        """Whether an object stands on this host from now on, and the server knows that."""
        files = self._files
        file = self._cache.write(held.reference, held.version, views, self.give)
        if file is None:
            return False
        hold = Registration(held, b"")
        try:
            with contextlib.closing(file):
                files.add(file, held)
                hold = Registration(held, files.host)
                self._link.run(hold)
        except ObjectRefusedError:
            return False  # nobody speaks for this host: it is to be put
        except ScalerError:
            self._abandon(held)
            raise
        except OSError:
            return False
        except BaseException:
            self._abandon(held)
            raise
        finally:
            if not hold.needed:
                files.drop(held)
        return True

    def _abandon(self, held: Replica) -> None:
        """Have the server forget an object that could not be kept."""
        with contextlib.suppress(ClientQuitError):
            self._link.start_if_open(Deletion([held.reference.object], held.session))

    def give(self, excess: int) -> bool:
        """Put about so many bytes of what is held where everybody finds it, longest unused first."""
        files = self._files
        with files.giving() as ours:
            for _, held in files.list() if ours else ():
                try:
                    mapping = files.map(held)
                    if excess <= 0 or mapping is None:
                        continue
                    self._link.run(Upload(held.reference, [memoryview(mapping)], held.session, version=held.version))
                except (ScalerError, OSError):  # it is full, or begins anew, or we can not read: all stays here
                    return False
                files.release(held)
                excess -= held.reference.size
        return excess <= 0
