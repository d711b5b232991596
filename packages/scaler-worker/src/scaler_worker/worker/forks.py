"""Fork handlers: a process that a task forks drops the state that belongs to its parent."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Inherited(Protocol):
    """An object that a forked process has a copy of."""

    def forked(self) -> None:
        """Drop pending work, which the parent still does, and replace locks, whose owners do not exist in the child."""


_known: Final[weakref.WeakSet[Inherited]] = weakref.WeakSet()


def notify_forks(inherited: Inherited) -> None:
    """Call `inherited.forked` in each process that this one forks."""
    _known.add(inherited)


def _after_fork() -> None:
    for inherited in list(_known):
        inherited.forked()


os.register_at_fork(after_in_child=_after_fork)
