"""The messages by which a session learns what object storage has of it, to free what nobody knows of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListObjects:
    """The ids of all complete objects of the sender's session are wanted; answered by ObjectList."""

    request: int = 0


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The ids, in no order."""

    objects: Sequence[bytes] = ()
    request: int = 0


StockMessage = ListObjects | ObjectList
