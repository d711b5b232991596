"""ObjectReader: gets stored objects over a link, in the cheapest way that there is for each.

An object that is mapped here already is not asked for again. On the server's host a big object is mapped from its
segment. Elsewhere it is fetched into the host's cache, if there is one, and mapped from there. All other objects are
downloaded in parts. Objects that will probably be asked for next are downloaded ahead.
"""

from __future__ import annotations

import errno
import mmap
import time
from collections.abc import Iterable, Sequence
from typing import Final

from scaler_io.objects.host_objects import HostObjects
from scaler_io.objects.operations import Download
from scaler_io.objects.prefetch import Prefetch
from scaler_io.objects.storage_link import StorageLink
from scaler_protocol.errors import ScalerError, StorageFullError, StorageLostError
from scaler_protocol.objects import SHARED_BYTES, Reference

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a process without free descriptors or mappings: its limits are RLIMIT_NOFILE and max_map_count."""


class ObjectReader:
    """Reads objects for the threads of one process; `host` is the cache of a host other than the server's."""

    def __init__(self, link: StorageLink, host: HostObjects | None) -> None:
        self._link, self._host = link, host
        self._ahead = Prefetch(shared=host is not None)

    def get(self, reference: Reference, timeout: float) -> bytes | memoryview:
        """See ObjectConnection.get."""
        deadline = time.monotonic() + timeout
        if (payload := self._get_prefetched(reference, deadline)) is not None:
            return payload
        mappings = self._link.mappings
        mapping = mappings.find(reference.object, reference.size) if mappings is not None else None
        if mapping is not None:
            return memoryview(mapping)
        if mappings is None or mappings.may_grow:
            try:
                return self._fetch(reference, deadline)
            except StorageFullError:
                pass  # the server has no memory for a segment, but can read the object from its disk
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
        return self._download(reference, deadline, may_map=False)

    def _fetch(self, reference: Reference, deadline: float) -> bytes | memoryview:
        """Get an object that may be mapped."""
        if self._host is not None and reference.size >= SHARED_BYTES:
            download = Download(reference, looking=True)
            self._link.run(download, deadline)
            if not download.looked:
                return download.payload  # it is mapped: the server is on this host
            if (mapping := self._host.fetch(reference, download.version, deadline)) is not None:
                return memoryview(self._share(reference, mapping))
        return self._download(reference, deadline)

    def _share(self, reference: Reference, mapping: mmap.mmap) -> mmap.mmap:
        """The mapping that all threads use: the given one, unless another thread was faster."""
        mappings = self._link.mappings
        return mappings.share(reference.object, mapping) if mappings is not None else mapping

    def _download(self, reference: Reference, deadline: float, *, may_map: bool = True) -> bytes | memoryview:
        """Get an object without the cache; repeated if the object is written anew in the middle."""
        while True:
            download = Download(reference, may_map=may_map)
            try:
                self._link.run(download, deadline)
            except TimeoutError:
                self._keep(download)
                raise
            if download.whole:
                return download.payload

    def _keep(self, download: Download) -> None:
        """Let a download go on whose caller no longer waits: the caller will probably ask again."""
        with self._link.lock:
            self._ahead.keep(download)

    def get_soon(self, following: Sequence[Reference]) -> None:
        """See ObjectConnection.get_soon."""
        link = self._link
        with link.lock:
            if (mappings := link.mappings) is not None and (near := link.near) is not None:
                for download in self._ahead.begin(following, near=near, may_map=mappings.may_grow):
                    link.start(download)

    def _get_prefetched(self, reference: Reference, deadline: float) -> bytes | memoryview | None:
        """The payload of a download that was begun ahead; None if there is none, or it failed."""
        with self._link.lock:
            download = self._ahead.take(reference)
        if download is None:
            return None
        ended = download.over.is_set()
        try:
            download.wait(deadline)
        except TimeoutError:
            self._keep(download)
            raise
        except (ScalerError, OSError) as error:
            waited_in_vain = isinstance(error, StorageLostError) and not ended
            if error is not download.error or waited_in_vain:  # a signal handler may raise errors of its own
                raise
            return None  # the next download will say why
        return download.payload if download.whole else None

    def forget(self, names: Iterable[bytes] | None = None) -> None:
        """These objects, or all, are being deleted: give their downloads up, and do not find their mappings again."""
        with self._link.lock:
            self._ahead.give_up(names)
            if (mappings := self._link.mappings) is not None:
                mappings.forget([] if names is None else list(names))
