"""What a process that a task has forked does first: it leaves to its parent what is its parent's."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Inherited(Protocol):
    """Something that a forked process has a copy of."""

    def forked(self) -> None:
        """Drop what the parent does itself; whoever held a lock is not here."""


_known: Final[weakref.WeakSet[Inherited]] = weakref.WeakSet()


def notify_forks(inherited: Inherited) -> None:
    """Have `forked` called in each process that this one forks."""
    _known.add(inherited)


def _after_fork() -> None:
    for inherited in list(_known):
        inherited.forked()


os.register_at_fork(after_in_child=_after_fork)
