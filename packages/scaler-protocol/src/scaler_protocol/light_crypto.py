"""BLAKE2b and random numbers as of `hashlib` and `secrets`, which load OpenSSL: 2 MB of each process, and 5 ms.

Random bytes are `os.urandom`.
"""

from __future__ import annotations

import os

try:
    from _blake2 import blake2b  # what hashlib has
except ImportError:  # an interpreter whose hashes are all of OpenSSL
    from hashlib import blake2b

__all__ = ["blake2b", "random_below"]


def random_below(limit: int) -> int:
    """A random number from 0 to limit - 1, of the operating system; `limit` is at most 2^64.

    The remainder of 128 bits: no number is more likely than another one by more than 2^-64 of its probability.
    """
    return int.from_bytes(os.urandom(16), "little") % limit
