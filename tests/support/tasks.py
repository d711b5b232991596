"""Functions that workers run by name: the workers of a local cluster see the path of its caller."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from scaler import Client, Serializer, current_task
from support.gates import SECONDS


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both arguments."""
    return a, b


def square(value: int) -> int:
    """The square."""
    return value * value


def alone(lock: Path, seconds: float = 0.01) -> bool:
    """Whether no other process is here for as long as this one."""
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    time.sleep(seconds)
    lock.unlink()
    return True


def explode(text: str) -> None:
    """Always a ValueError."""
    raise ValueError(text)


def every_kind(a: int, /, b: int, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> tuple[Any, ...]:
    """Every kind of parameter that Python has."""
    return a, b, c, rest, d, e, more


def worker_pid(_: object = None) -> int:
    """The process that runs it."""
    return os.getpid()


def fibonacci(client: Client, n: int) -> int:
    """Each call submits two tasks and waits for them."""
    if n < 2:
        return n
    left = client.submit(fibonacci, client, n - 1)
    right = client.submit(fibonacci, client, n - 2)
    return left.result(SECONDS) + right.result(SECONDS)


async def add_later(a: int, b: int = 1) -> int:
    """The sum, by way of an event loop."""
    await asyncio.sleep(0)
    return a + b


async def await_children(client: Client, count: int) -> list[int]:
    """Awaits calls that it submits, which are coroutines too."""
    assert current_task() is not None
    return await asyncio.gather(*(client.submit(add_later, number, number) for number in range(count)))


def note(path: str, word: str) -> str:
    """Append a word to a file that all processes share."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{word}\n".encode())
    finally:
        os.close(descriptor)
    return word


class KeywordsOnly:
    """A callable object."""

    def __call__(self, *, left: int, right: int = 2, **more: Any) -> tuple[int, int, dict[str, Any]]:
        """Return the argument."""
        return left, right, more

    def bound(self, value: int) -> int:
        """A method."""
        return value + 1


class TaggedSerializer(Serializer):
    """cloudpickle behind a tag."""

    @staticmethod
    def serialize(obj: Any) -> bytes:
        """The bytes."""
        return b"T" + bytes(cloudpickle.dumps(obj))

    @staticmethod
    def deserialize(payload: bytes) -> Any:
        """The object."""
        if payload[:1] != b"T":
            raise ValueError("these bytes are not mine")
        return pickle.loads(payload[1:])


def total(*values: Any) -> Any:
    """The sum of numbers, and of those in lists and dicts."""
    numbers: list[Any] = []
    for value in values:
        items = value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
        numbers += items
    return sum(numbers)


def sizes(*values: bytes) -> int:
    """Return the total size."""
    return sum(map(len, values))


def pause_and_add(a: int, b: int) -> int:
    """The sum, after a while."""
    time.sleep(0.02)
    return a + b


def last_digits(*values: int) -> int:
    """The last digits of the sum."""
    return sum(values) % 1000


def in_fork(run: Callable[[], object]) -> str:
    """Return, as text, the outcome of the call in a forked process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            text = str(run())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        text = file.read()
    os.waitpid(pid, 0)
    return text
