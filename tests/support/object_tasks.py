"""Functions with big arguments or results, which workers run by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from scaler import Client
from support.gates import SECONDS, wait_at
from support.tasks import TaggedSerializer


def give(size: int) -> bytes:
    """`size` zero bytes."""
    return bytes(size)


def fail_with(value: bytes) -> None:
    """Raise a ValueError whose message has this size."""
    raise ValueError(value)


def mark(folder: str, number: int, size: int) -> bytes:
    """Return bytes of this size, and write a file with the process id and the time."""
    Path(folder, f"{number}-{os.getpid()}").touch()
    return bytes([number]) * size


def tally(folder: str, number: int, size: int, port: int = 0) -> bytes:
    """So many bytes, and a file for each run; with a port the first one waits there."""
    Path(folder, f"{number}-{uuid4().hex}").touch()
    if port and not number:
        wait_at(port, number)
    return bytes([number]) * size


def read_children_at(client: Client, port: int, folder: str, count: int, size: int) -> int:
    """The sizes of results of tasks of a task, read once that is let go."""
    children = [client.submit(tally, folder, number, size) for number in range(1, count + 1)]
    wait(children, SECONDS)
    wait_at(port, 0)
    return sum(len(child.result(SECONDS)) for child in children)


def same(value: Any) -> Any:
    """Return the argument."""
    return value


def weigh(array: Any, number: int = 0) -> float:
    """Return the sum of an array."""
    return float(array.sum()) + number


def first(value: bytes) -> int:
    """The first byte."""
    return value[0]


def doubled(value: bytes) -> bytes:
    """Return the argument twice."""
    return value * 2


def longer(value: bytes, *others: object) -> bytes:
    """Return the argument and one more byte."""
    return value + b"1"


def size_of(value: bytes) -> int:
    """Return the number of bytes."""
    return len(value)


def size_and_cluster(value: bytes) -> tuple[int, int]:
    """Return the number of bytes and the parent process, which the workers of one agent share."""
    return len(value), os.getppid()


def explode_big(size: int) -> None:
    """Raise an exception of this size."""
    raise ValueError("x" * size)


def total(*values: Any, **named: Any) -> int:
    """Return the sum of all sizes and numbers, at any depth."""
    found = 0
    for value in (*values, *named.values()):
        if isinstance(value, bytes):
            found += len(value)
        elif isinstance(value, int):
            found += value
        else:
            found += total(*(value.values() if isinstance(value, Mapping) else value))
    return found


def nested_sizes(client: Client, size: int) -> list[int]:
    """Submit, from a task, everything that travels through object storage."""
    future = client.submit(same, bytes(size))
    consumer = client.submit(size_of, future)
    reference = client.send_object(bytes(size))
    mapped = client.map(doubled, [bytes(size)])
    weight = bytes(size)
    try:
        client.submit(explode_big, size).result(SECONDS)
    except ValueError as error:
        raised = len(str(error))
    return [
        len(future.result(SECONDS)) if consumer.result(SECONDS) == size else 0,
        client.submit(size_of, reference).result(SECONDS),
        len(mapped[0]),
        client.submit(lambda: len(weight)).result(SECONDS),
        raised,
    ]


def fan_out(client: Client, size: int, width: int) -> bytes:
    """Return the joined big results of nested tasks."""
    if not width:
        return bytes(size)
    futures = [client.submit(fan_out, client, size, 0) for _ in range(width)]
    wait(futures, SECONDS)
    more = [client.submit(same, future) for future in futures for _ in range(width)]
    return b"".join(future.result(SECONDS) for future in more)


class BytesSerializer(TaggedSerializer):
    """A second class that does the same."""


def describe_array(array: np.ndarray[Any, Any]) -> tuple[float, bool, int]:
    """Return the sum, whether the array is writable, and its offset from a multiple of 64 bytes."""
    return float(array.sum()), array.flags.writeable, array.__array_interface__["data"][0] % 64


def give_array(size: int) -> np.ndarray[Any, Any]:
    """Return an array of this length."""
    return np.arange(size, dtype=np.float64)


def spoil(value: Any) -> Any:
    """Change the argument as far as it is writable; return its former value."""
    before = repr(value[:2])
    try:
        value[0] = -1
    except (TypeError, ValueError):
        value = b""
    return before
