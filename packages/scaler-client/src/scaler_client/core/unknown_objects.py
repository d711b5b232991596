"""UnknownObjects: when objects that a lost scheduler has left behind are garbage. Pure, no IO.

After a restart of the scheduler, storage may hold results of this session whose outcomes were lost. Other results that
this process does not know belong to outstanding tasks. So the unknown objects are listed, and those that are still
unknown when all tasks that were outstanding at that time have ended are garbage.
"""

from __future__ import annotations

from collections.abc import Container, Iterable


class UnknownObjects:
    """The tasks that were outstanding when storage listed the objects, and may own some of them."""

    def __init__(self) -> None:
        self._owners: list[int] | None = None

    def listed(self, outstanding: Iterable[int]) -> None:
        """Storage has listed the objects of the session."""
        self._owners = list(outstanding)

    def become_garbage(self, outstanding: Container[int]) -> bool:
        """Whether all tasks that may own objects have ended since `listed`; True only once."""
        owners = self._owners
        if owners is None:
            return False
        while owners and owners[-1] not in outstanding:
            owners.pop()
        if owners:
            return False
        self._owners = None
        return True
