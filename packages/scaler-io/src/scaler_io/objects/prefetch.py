"""Prefetch: which objects to download before they are asked for. Pure, no IO.

A thread that reads many objects one after the other would wait for a round trip for each of them. Requests are cheaper
together, so no new download is begun before half of the earlier ones have been taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from scaler_io.objects.operations import Download
from scaler_protocol.objects import SHARED_BYTES, Reference

MAPPED_BYTES: Final = 64 * 1024 * 1024
"""Most bytes mapped ahead: a mapped object cannot be spilled to disk."""
COPIED_BYTES: Final = 8 * 1024 * 1024
"""Most bytes downloaded ahead."""


class Prefetch:
    """The downloads of one connection that were begun ahead. Not thread-safe.

    With `shared`, objects of SHARED_BYTES or more are left out unless they are mapped: the processes of a host fetch
    these together (scaler_io.objects.host_cache).
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._begun: dict[bytes, Download] = {}
        self._shared = shared

    def begin(self, following: Sequence[Reference], *, near: bool, may_map: bool) -> list[Download]:
        """The downloads to start now, given the objects that will probably be asked for, the most likely one first.

        Other downloads that were begun are kept while there is room: they may still be asked for.
        """
        begun, maps = self._begun, near and may_map
        if 2 * sum(reference.object in begun for reference in following) > len(following):
            return []
        if self._shared and not maps:
            following = [reference for reference in following if reference.size < SHARED_BYTES]
        wanted = _within(following, maps)
        known = dict(begun)  # a finalizer may remove entries meanwhile
        others = known.keys() - {reference.object for reference in wanted}
        together = [*wanted, *(known[name].reference for name in others)]
        if len(_within(together, maps)) < len(together):
            self.give_up(others)
        started = [Download(reference, may_map=may_map) for reference in wanted if reference.object not in begun]
        begun.update((download.reference.object, download) for download in started)
        return started

    def take(self, reference: Reference) -> Download | None:
        """Remove and return the download of an object that is asked for now, if it was begun."""
        return self._begun.pop(reference.object, None)

    def keep(self, download: Download) -> None:
        """Keep a download whose caller waits no longer, as if it were begun ahead."""
        self._begun.setdefault(download.reference.object, download)

    def give_up(self, names: Iterable[bytes] | None = None) -> None:
        """Abandon the downloads of these objects, or of all if `names` is None."""
        for name in list(self._begun) if names is None else names:
            if (download := self._begun.pop(name, None)) is not None:
                download.over.set()


def _within(following: Sequence[Reference], maps: bool) -> list[Reference]:
    """The first of these objects, as many as fit into the limits."""
    wanted = []
    mapped = copied = 0
    for reference in following:
        if maps and reference.size >= SHARED_BYTES:
            mapped += reference.size
        else:
            copied += reference.size
        if mapped > MAPPED_BYTES or copied > COPIED_BYTES:
            break
        wanted.append(reference)
    return wanted
