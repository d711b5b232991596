"""Sizes of results that may be in a message although they exceed INLINE_LIMIT: class n is up to INLINE_LIMIT * 2**n."""

from __future__ import annotations

from typing import Final

from scaler_protocol.handshake import INLINE_LIMIT

LARGEST_CLASS: Final = 4
"""Of results of SHARED_BYTES; larger ones are cheaper in object storage."""


def class_of(size: int) -> int:
    """The class of a result of so many bytes; 0 is for those that may always be in a message."""
    return (max(0, size - 1) // INLINE_LIMIT).bit_length()


def limit_of(size_class: int) -> int:
    """Bytes that a result of this class may have."""
    return INLINE_LIMIT << size_class
