"""Byte planes: records of one size, stored as the first bytes of all, then the second bytes of all, and so on.

The bytes of a plane are often equal: the upper ones of small numbers, those of a session in ids. Such a plane takes one
byte. The same is done by the encoding BYTE_STREAM_SPLIT of Parquet, and by filters called "shuffle".
"""

from __future__ import annotations

import struct
from typing import Final

RECORDS: Final = 2**24
"""Most records of one column."""
EXPANDED: Final = 2**25
"""Most bytes that a column may become, unless it has a quarter of them itself: equal bytes take one, so that a message
of a hundred bytes could take a monitor's memory. It is enough for the profiles of 760,000 tasks; a scheduler publishes
each 0.1 s what has ended since, and a snapshot makes up for what cannot be sent."""
_COUNT: Final = struct.Struct("<I")


def to_planes(records: bytes | bytearray, size: int) -> bytes:
    """The planes of records of `size` bytes: how many, a bit for each plane that is whole, and the planes."""
    if not records:
        return b""
    count, whole = len(records) // size, 0
    planes = [_COUNT.pack(count), b""]
    for place in range(size):
        plane = bytes(records[place::size])
        if plane == (first := plane[:1]) * count:
            plane = first
        else:
            whole |= 1 << place
        planes.append(plane)
    planes[1] = whole.to_bytes(_mask_bytes(size), "little")
    return b"".join(planes)


def from_planes(planes: bytes, size: int) -> bytes:
    """The records of planes that have no fault."""
    if not planes:
        return b""
    count, whole, at = _head(planes, size)
    records = bytearray(count * size)
    for place in range(size):
        width = count if whole >> place & 1 else 1
        records[place::size] = planes[at : at + width] * (count // width)
        at += width
    return bytes(records)


def record_count(planes: bytes) -> int:
    """How many records these planes have."""
    count: int = _COUNT.unpack_from(planes)[0] if planes else 0
    return count


def fault_of_planes(planes: bytes, size: int) -> str:
    """What is wrong with planes of records of `size` bytes, as the end of a sentence; empty if nothing is."""
    if not planes:
        return ""
    if len(planes) < _COUNT.size + _mask_bytes(size):
        return f"has {len(planes):,} bytes, too few for planes of records of {size} bytes"
    count, whole, at = _head(planes, size)
    if not 0 < count <= RECORDS or whole >> size:
        return f"begins with {planes[:at].hex()}, which is not the head of 1 to {RECORDS:,} records of {size} bytes"
    if count * size > max(EXPANDED, 4 * len(planes)):
        return f"has {len(planes):,} bytes, too few for {count:,} records of {size} bytes"
    needed = at + whole.bit_count() * count + size - whole.bit_count()
    return "" if len(planes) == needed else f"has {len(planes):,} bytes, not {needed:,} for {count:,} records"


def _head(planes: bytes, size: int) -> tuple[int, int, int]:
    """The number of records, the bits of planes that are whole, and where the planes begin."""
    begin = _COUNT.size + _mask_bytes(size)
    return record_count(planes), int.from_bytes(planes[_COUNT.size : begin], "little"), begin


def _mask_bytes(size: int) -> int:
    return -(-size // 8)
