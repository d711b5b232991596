"""Prefetch: objects that are on their way, or here, before anybody asks for them. Pure, no IO.

Who reads many objects one after the other would wait for each of them as long as a question and its answer take. It is
cheaper to ask for several at once, so nothing new is begun before half of what was begun has been taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from scaler_io.objects.operations import Download
from scaler_protocol.objects import SHARED_BYTES, Reference

MAPPED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that are mapped ahead: what is mapped can not be moved to disk."""
COPIED_BYTES: Final = 8 * 1024 * 1024
"""Bytes that are brought here ahead."""


class Prefetch:
    """The downloads of one connection that were begun ahead. Not thread-safe.

    With `shared` no big object is copied here, as a host's processes fetch those together
    (scaler_io.objects.host_cache).
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._begun: dict[bytes, Download] = {}
        self._shared = shared

    def begin(self, following: Sequence[Reference], *, near: bool, may_map: bool) -> list[Download]:
        """The downloads to start now of objects that are likely to be asked for, the likeliest first.

        What else was begun stays as long as there is room for it: it may still be asked for.
        """
        begun, maps = self._begun, near and may_map
        if 2 * sum(reference.object in begun for reference in following) > len(following):
            return []
        if self._shared and not maps:
            following = [reference for reference in following if reference.size < SHARED_BYTES]
        wanted = _within(following, maps)
        known = dict(begun)  # a finalizer may give one up in the middle of this
        others = known.keys() - {reference.object for reference in wanted}
        together = [*wanted, *(known[name].reference for name in others)]
        if len(_within(together, maps)) < len(together):
            self.give_up(others)
        started = [Download(reference, may_map=may_map) for reference in wanted if reference.object not in begun]
        begun.update((download.reference.object, download) for download in started)
        return started

    def take(self, reference: Reference) -> Download | None:
        """The download of an object that is asked for now, if it was begun."""
        return self._begun.pop(reference.object, None)

    def keep(self, download: Download) -> None:
        """Somebody who has asked for an object waits no longer: it is on its way as if begun ahead."""
        self._begun.setdefault(download.reference.object, download)

    def give_up(self, names: Iterable[bytes] | None = None) -> None:
        """Nobody will ask for these; where none are named, for any."""
        for name in list(self._begun) if names is None else names:
            if (download := self._begun.pop(name, None)) is not None:
                download.over.set()


def _within(following: Sequence[Reference], maps: bool) -> list[Reference]:
    """As many as fit."""
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
