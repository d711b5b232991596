"""Ids of sessions, tasks, runs, functions and processes; an id is never used for two of them."""

from __future__ import annotations

import os

from scaler_protocol.buffers import Buffer
from scaler_protocol.light_crypto import blake2b, random_below
from scaler_protocol.ranges import shown

IDENTITY_BYTES = 16
PID_BYTES = 4
WORKER_ID_BYTES = IDENTITY_BYTES + PID_BYTES
SESSION_BITS = 32
_NESTED_BIT = 1 << (SESSION_BITS - 1)
INCARNATION_BITS = 24
"""A run id is a scheduler incarnation (24 random bits) and a counter (40 bits).

If the counter exceeds 40 bits (after four months at 100,000 runs per second), it carries into the incarnation. The
highest SPARE_INCARNATIONS are never drawn, so that no run id exceeds 64 bits.
"""
SPARE_INCARNATIONS = 256
COUNTER_BITS = 64 - INCARNATION_BITS
LAST_COUNT = 2**SESSION_BITS - 1


def new_identity() -> bytes:
    """Draw 128 random bits, which identify a client, an agent or a server while its process runs."""
    return os.urandom(IDENTITY_BYTES)


def worker_id(agent: bytes, pid: int) -> bytes:
    """The id of a worker: the identity of its agent, and its process id (32 bits, little-endian)."""
    return agent + pid.to_bytes(PID_BYTES, "little")


def worker_name(agent: str, pid: int) -> str:
    """The name of a worker in logs and errors, on pages, in `scaler_top` and `scaler_why`, also when it has gone."""
    return f"{agent}-{pid}"


def agent_of(worker: bytes) -> bytes:
    """The identity of the agent of a worker, given by its id; empty for none."""
    return worker[:IDENTITY_BYTES]


def pid_of(worker: bytes) -> int:
    """The process id of a worker, given by its id; 0 for none."""
    return int.from_bytes(worker[IDENTITY_BYTES:], "little")


def new_session(*, nested: bool = False) -> int:
    """Draw a session number of 32 bits, never 0; the highest bit says that it is `nested`: of tasks in a worker."""
    return random_below(_NESTED_BIT - 1) + 1 + _NESTED_BIT * nested


def is_nested(session: int) -> bool:
    """Whether a session is one of tasks that tasks in a worker submit."""
    return session >= _NESTED_BIT


def session_key(name: str, secret: bytes) -> bytes:
    """The proof of a named session for services: a BLAKE2b-256 of its name and its secret, which only clients know."""
    hidden = blake2b(secret, digest_size=32, person=b"scaler session").digest() if secret else b""
    return blake2b(name.encode(), digest_size=32, key=hidden, person=b"scaler session").digest()


def new_incarnation() -> int:
    """Draw the number of one life of a process: 24 bits, never 0."""
    return 1 + random_below(2**INCARNATION_BITS - 1 - SPARE_INCARNATIONS)


def first_task(session: int) -> int:
    """The task id with count 0: task ids of a session are `first_task(session) + count`, with a count of 32 bits."""
    return session << SESSION_BITS


def session_of(task: int) -> int:
    """The session of a task id."""
    return task >> SESSION_BITS


def count_of(task: int) -> int:
    """The count of a task id within its session."""
    count: int = task & LAST_COUNT
    return count


def first_run(incarnation: int) -> int:
    """The first run id of a scheduler incarnation."""
    return incarnation << COUNTER_BITS


def is_run_of(incarnation: int, run: int) -> bool:
    """Whether this incarnation of a scheduler or relay has made the run id; no run is one of incarnation 0."""
    return incarnation != 0 and first_run(incarnation) <= run < first_run(incarnation + SPARE_INCARNATIONS)


def function_id(body: Buffer, *, stored: bool = False) -> bytes:
    """The BLAKE2b-128 of a function's body, so that equal functions are sent and kept once.

    `stored`: the body is a reference. The hash begins with a byte for the kind (body, reference or name), so that ids
    of different kinds cannot be equal.
    """
    digest = blake2b(b"\2" if stored else b"\0", digest_size=16)
    digest.update(body)
    return digest.digest()


def named_function_id(name: str) -> bytes:
    """The id of a function that the worker imports by name."""
    return blake2b(b"\1" + name.encode(), digest_size=16).digest()


def function_fault(function: bytes, name: str, body: Buffer, *, stored: bool) -> str:
    """The error text for a function id that is not the hash of what it stands for; "" if it is.

    `stored`: the body is a reference. A function without a body is imported by its name.
    """
    if function == (function_id(body, stored=stored) if body else named_function_id(name)):
        return ""
    source = ("reference" if stored else "body") if body else "name"
    return f"{function.hex()} is not the BLAKE2b-128 of the {source} of {shown(name)}"
