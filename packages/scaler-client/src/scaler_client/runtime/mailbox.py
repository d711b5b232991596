"""The hand-off: what user threads leave for the io thread, and how they wake it.

Theory. Entries are appended to a list without a lock; the io thread takes them from the front. Only the io thread says
whether it is asleep, so no interrupted or delayed submitter can leave that flag wrong:

    io thread:   asleep = True; if nothing was left, block until a byte comes; asleep = False; take
    submitter:   append; if asleep, write a byte

Either the submitter sees the flag, or the io thread the entry. A Ctrl-C between append and byte leaves an entry without
a byte: every later submission sees the flag still set, and every blocking call begins with `press`, which writes one
while anything is left. An io thread that has just taken entries is likely to get more: it pauses with the flag down,
so that they cost their submitters nothing and leave in one batch; `press` cuts the pause short.

`close` refuses what comes later: each entry is either taken by the last `take` or its `put` raises.
"""

from __future__ import annotations

import socket
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

_DRAIN_BYTES = 4096


class Mailbox(Generic[Entry]):
    """Many threads `put`; one thread sleeps on `fileno()` and takes."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._asleep = False
        self._refusal: Exception | None = None
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    # --- any thread -------------------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Leave an entry; raises what `close` was given."""
        self._entries.append(entry)
        if self._asleep or self._refusal is not None:
            self.check()
            self.wake()

    def press(self) -> None:
        """Make the io thread take what is left, now: whoever calls is about to block on it."""
        if self._entries:
            self.wake()

    def wake(self) -> None:
        """Let the io thread make a turn."""
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # it has bytes enough to wake up
        except OSError:
            if self._refusal is None:
                raise

    def close(self, refusal: Exception) -> None:
        """Refuse entries from now on, with this exception; those that came before can still be taken.

        The first one stays: who left because something failed is told what that was.
        """
        if self._refusal is None:
            self._refusal = refusal

    @property
    def closed(self) -> bool:
        """Whether entries are refused."""
        return self._refusal is not None

    def check(self) -> None:
        """Raise what `close` was given, if it was called."""
        if self._refusal is not None:
            raise type(self._refusal)(*self._refusal.args) from self._refusal.__cause__

    # --- the io thread ----------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """What to sleep on."""
        return self._reader.fileno()

    def fall_asleep(self) -> bool:
        """Ask for a byte with the next entry; False, and no byte will come, where there is one already."""
        self._asleep = True
        if self._entries:
            self._asleep = False
        return self._asleep

    def wake_up(self) -> None:
        """No more bytes, please."""
        self._asleep = False

    def take(self) -> list[Entry]:
        """All that was left so far, in order."""
        entries = self._entries
        taken = entries[:]
        del entries[: len(taken)]
        return taken

    def drain(self) -> None:
        """Swallow the bytes that woke us."""
        try:
            while len(self._reader.recv(_DRAIN_BYTES)) == _DRAIN_BYTES:
                pass
        except (BlockingIOError, InterruptedError):
            pass

    def free(self) -> None:
        """Close the descriptors; only after `close`, and not before the io thread has ended."""
        self._writer.close()
        self._reader.close()
