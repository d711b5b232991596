"""BLAKE2b, comparison and random numbers as of `hashlib`, `hmac` and `secrets`, without OpenSSL.

It would take 2 MB of each process, and 5 ms. Random bytes are `os.urandom`.
"""

from __future__ import annotations

import os
from _operator import _compare_digest as compare_digest  # what hmac has without OpenSSL

try:
    from _blake2 import blake2b  # what hashlib has
except ImportError:  # an interpreter whose hashes are all of OpenSSL
    from hashlib import blake2b

__all__ = ["blake2b", "compare_digest", "random_below"]


def random_below(limit: int) -> int:
    """A random number from 0 to limit - 1, of the operating system; `limit` is at most 2^64.

    The remainder of 128 bits: no number is more likely than another one by more than 2^-64 of its probability.
    """
    return int.from_bytes(os.urandom(16), "little") % limit
