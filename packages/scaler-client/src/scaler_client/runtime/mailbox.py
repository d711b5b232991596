"""Mailbox: the queue from user threads to the io thread, and how they wake it.

Theory. Entries are appended to a list without a lock; the io thread takes them from the front. Only the io thread
writes the flag `asleep`, so an interrupted or delayed submitter cannot leave it wrong:

    io thread:   asleep = True; if the list is empty, block until a byte arrives; asleep = False; take
    submitter:   append; if asleep, write a byte

Either the submitter sees the flag, or the io thread sees the entry. A Ctrl-C between append and byte leaves an entry
without a byte: every later submission still sees the flag set, and every blocking call begins with `flush`, which
writes a byte if the list is not empty. After taking entries the io thread expects more: it pauses with the flag clear,
so that their submitters make no system call and they leave in one batch; `flush` ends the pause.

One unread byte is enough, however many entries there are: a system call lets go of the GIL, which the woken io thread
then takes from the submitter. The io thread counts how often it has read all bytes, after it has; a submitter notes the
count that it saw before it wrote a byte. While the two are equal, either that byte is unread, or the io thread has just
read it and takes all entries next.

After `close` each entry is either taken by the last `take`, or its `put` raises.
"""

from __future__ import annotations

import socket
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

_DRAIN_BYTES = 4096


class Mailbox(Generic[Entry]):
    """A queue with many producers, which `put`, and one consumer, which sleeps on `fileno()` and takes."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._asleep = False
        self._drains = 0
        """How often the io thread has read all bytes."""
        self._woken = -1
        """The value of `_drains` before the last byte was written."""
        self._refusal: Exception | None = None
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._descriptor = self._reader.fileno()

    def __len__(self) -> int:
        """How many entries are waiting."""
        return len(self._entries)

    # --- any thread -------------------------------------------------------------------------------------------------

    def put(self, entry: Entry) -> None:
        """Append an entry; raises what `close` was given."""
        self._entries.append(entry)
        if self._asleep or self._refusal is not None:
            self.check()
            self.flush()

    def flush(self) -> None:
        """Wake the io thread if entries are waiting; called by threads that are about to block."""
        if self._entries and self._woken != self._drains:
            self.wake()

    def wake(self) -> None:
        """Wake the io thread."""
        drains = self._drains
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, InterruptedError):
            pass  # the pipe is full: the io thread will wake up anyway
        except OSError:
            if self._refusal is None:
                raise
        self._woken = drains

    def close(self, refusal: Exception) -> None:
        """Refuse entries from now on, with this exception; earlier entries can still be taken.

        Later calls have no effect, so that the first cause is the one reported.
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
        """The descriptor that becomes readable when the io thread is to wake up."""
        return self._descriptor

    def fall_asleep(self) -> bool:
        """Request a byte with the next entry; False, without a byte to come, if there are entries already."""
        self._asleep = True
        if self._entries:
            self._asleep = False
        return self._asleep

    def wake_up(self) -> None:
        """Request no more bytes."""
        self._asleep = False

    def take(self) -> list[Entry]:
        """Remove and return all entries, in order."""
        entries = self._entries
        taken = entries[:]
        del entries[: len(taken)]
        return taken

    def drain(self) -> None:
        """Read the wake-up bytes."""
        try:
            while len(self._reader.recv(_DRAIN_BYTES)) == _DRAIN_BYTES:
                pass
        except (BlockingIOError, InterruptedError):
            pass
        self._drains += 1

    def free(self) -> None:
        """Close the descriptors; only after `close`, and not before the io thread has ended."""
        self._writer.close()
        self._reader.close()
