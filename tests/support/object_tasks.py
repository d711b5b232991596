"""Functions about big things that workers run by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np

from scaler import Client
from support.gates import SECONDS
from support.tasks import TaggedSerializer


def give(size: int) -> bytes:
    """So many zeros."""
    return bytes(size)


def fail_with(value: bytes) -> None:
    """Raises a ValueError of so many bytes."""
    raise ValueError(value)


def mark(folder: str, number: int, size: int) -> bytes:
    """So many bytes, and a file that says who made them and when it was done."""
    Path(folder, f"{number}-{os.getpid()}").touch()
    return bytes([number]) * size


def same(value: Any) -> Any:
    """What it was given."""
    return value


def weigh(array: Any, number: int = 0) -> float:
    """What an array comes to."""
    return float(array.sum()) + number


def first(value: bytes) -> int:
    """The first byte."""
    return value[0]


def doubled(value: bytes) -> bytes:
    """Twice as much."""
    return value * 2


def longer(value: bytes, *others: object) -> bytes:
    """One byte more."""
    return value + b"1"


def size_of(value: bytes) -> int:
    """How many bytes."""
    return len(value)


def size_and_cluster(value: bytes) -> tuple[int, int]:
    """How many bytes, and what the workers of one agent have in common: their parent."""
    return len(value), os.getppid()


def explode_big(size: int) -> None:
    """An exception of that size."""
    raise ValueError("x" * size)


def total(*values: Any, **named: Any) -> int:
    """All sizes and numbers, wherever they are."""
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
    """Everything that travels by storage, from within a task."""
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
    """Big results of tasks of tasks, joined."""
    if not width:
        return bytes(size)
    futures = [client.submit(fan_out, client, size, 0) for _ in range(width)]
    wait(futures, SECONDS)
    more = [client.submit(same, future) for future in futures for _ in range(width)]
    return b"".join(future.result(SECONDS) for future in more)


class BytesSerializer(TaggedSerializer):
    """Another class of the same kind."""


def describe_array(array: np.ndarray[Any, Any]) -> tuple[float, bool, int]:
    """Its sum, whether it may be changed, and how far from a multiple of 64 it begins."""
    return float(array.sum()), array.flags.writeable, array.__array_interface__["data"][0] % 64


def give_array(size: int) -> np.ndarray[Any, Any]:
    """So many numbers."""
    return np.arange(size, dtype=np.float64)


def spoil(value: Any) -> Any:
    """Changes its argument as far as it can be changed, and gives back what it was before."""
    before = repr(value[:2])
    try:
        value[0] = -1
    except (TypeError, ValueError):
        value = b""
    return before
