"""Ids: how sessions, tasks, runs, functions and processes are numbered so that nothing ever collides."""

from __future__ import annotations

import secrets
from hashlib import blake2b

IDENTITY_BYTES = 16
SESSION_BITS = 32
INCARNATION_BITS = 24
"""A run id is a scheduler incarnation (24 random bits) plus a counter.

The counter may exceed 40 bits (after four months at 100,000 runs a second): run ids go on counting through the numbers
of the next incarnations, of which SPARE_INCARNATIONS are never drawn, so no run id exceeds 64 bits.
"""
SPARE_INCARNATIONS = 256
COUNTER_BITS = 64 - INCARNATION_BITS
LAST_COUNT = 2**SESSION_BITS - 1


def new_identity() -> bytes:
    """128 random bits: who a client, an agent or a server is, for as long as its process lives."""
    return secrets.token_bytes(IDENTITY_BYTES)


def new_session() -> int:
    """A 32-bit session number, never 0."""
    return secrets.randbelow(2**SESSION_BITS - 1) + 1


def new_incarnation() -> int:
    """One life of a process, never 0; short enough to be the head of a run id."""
    return 1 + secrets.randbelow(2**INCARNATION_BITS - 1 - SPARE_INCARNATIONS)


def first_task(session: int) -> int:
    """Task ids of a session are `first_task(session) + count`, with a count of 32 bits."""
    return session << SESSION_BITS


def session_of(task: int) -> int:
    """The session that a task id was drawn in."""
    return task >> SESSION_BITS


def first_run(incarnation: int) -> int:
    """The run ids of a scheduler incarnation start here."""
    return incarnation << COUNTER_BITS


def function_id(body: bytes, *, stored: bool = False) -> bytes:
    """A function is known by the BLAKE2b-128 of its bytes, so equal functions travel and are kept once.

    `stored`: the body is a reference. A byte in front says what is hashed: nobody can write a body, a reference and a
    name of the same id.
    """
    digest = blake2b(b"\2" if stored else b"\0", digest_size=16)
    digest.update(body)
    return digest.digest()


def named_function_id(name: str) -> bytes:
    """Of a function that is imported by its name where it runs."""
    return blake2b(b"\1" + name.encode(), digest_size=16).digest()
