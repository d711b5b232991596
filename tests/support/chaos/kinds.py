"""The kinds of tasks, and the outcomes that each of them may have."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from scaler import Client, ScalerFuture
from scaler_protocol.errors import (
    MemoryLimitError,
    NestingLimitError,
    ObjectNotFoundError,
    StorageFullError,
    StorageLostError,
    SubmitLimitError,
    TaskTimeoutError,
    WorkerDiedError,
)
from support.chaos.tasks import PlannedError, expected, fail, family, fill_memory, work

MIB = 1 << 20
MEMORY_LIMIT = 200 * MIB
"""Of a worker; as much as all workers of an agent together may be used by a task that runs alone."""
REFUSALS = ("refuses new work", "Too many open files", "No space left", "cannot start")
LOSSES = (ObjectNotFoundError, StorageLostError, StorageFullError)
"""Outcomes that an end of object storage explains."""
MOST_DEATHS = 3
"""Lost runs that end a task."""


@dataclass(frozen=True)
class Task:
    """One that was submitted, and how it may end."""

    number: int
    kind: str
    future: ScalerFuture[Any]
    value: object = None
    errors: tuple[type[BaseException], ...] = ()
    must_fail: bool = False


Submit = Callable[[Client, str, int, random.Random, Sequence[Task]], list[Task]]


def no_op(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call that takes no time."""
    return [Task(number, "no-op", client.submit(work, runs, number), number)]


def sleep(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call of 1 to 20 ms."""
    return [Task(number, "sleep", client.submit(work, runs, number, draw.uniform(0.001, 0.02)), number)]


def result(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call with a result of 8 bytes to 1 MB."""
    size = draw.choice((8, 1_000, 20_000, 100_000, 300_000, 1_000_000))
    return [Task(number, "result", client.submit(work, runs, number, 0.001, size), expected(number, size))]


def argument(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call with an argument of 20 to 300 kB."""
    sent = bytes(draw.choice((20_000, 100_000, 300_000)))
    return [Task(number, "argument", client.submit(work, runs, number, 0.0, 0, sent), number)]


def consumer(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call with results of earlier ones as arguments."""
    made = [task.future for task in earlier if task.kind in {"result", "sleep"}][-3:]
    return [Task(number, "consumer", client.submit(work, runs, number, 0.0, 0, *made), number)]


def failure(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call that raises, once or three times."""
    future = client.submit_verbose(fail, (runs, number), {}, retries=draw.choice((0, 2)))
    return [Task(number, "failure", future, None, (PlannedError,), must_fail=True)]


def overtime(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call that takes longer than it may."""
    future = client.submit_verbose(work, (runs, number, 60.0), {}, task_timeout_seconds=0.1)
    return [Task(number, "overtime", future, None, (TaskTimeoutError,), must_fail=True)]


def cancelled(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call of 20 ms, and an earlier one that is cancelled, wherever it is."""
    future = client.submit(work, runs, number, 0.02)
    for task in earlier[-1:]:
        if task.kind == "cancelled":
            task.future.cancel()
    return [Task(number, "cancelled", future, number, (CancelledError,))]


def memory(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call that needs a host of its own, or more memory than any has."""
    fits = draw.random() < 0.5
    size = MEMORY_LIMIT + (100 * MIB if fits else 500 * MIB)
    future = client.submit(fill_memory, runs, number, size, 0.3 if fits else 20.0)
    return [Task(number, "memory", future, number, (MemoryLimitError,), must_fail=not fits)]


def nested(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A call that waits for calls of its own."""
    future = client.submit(family, client, runs, number, draw.choice((0, 1_000, 50_000)))
    return [Task(number, "nested", future, number)]


def graph(client: Client, runs: str, number: int, draw: random.Random, earlier: Sequence[Task]) -> list[Task]:
    """A graph of three layers, of which the last is requested."""
    size = draw.choice((0, 0, 50_000))
    calls: dict[str, object] = {
        f"{layer}-{at}": (
            work,
            "runs",
            number + 10 * layer + at,
            0.002,
            size,
            *(f"{layer - 1}-{each}" for each in draw.sample(range(4), 2) if layer),
        )
        for layer in range(3)
        for at in range(4)
    }
    futures = client.get({"runs": runs, **calls}, [f"2-{at}" for at in range(4)], block=False)
    return [Task(number + 20 + at, "graph", futures[f"2-{at}"], expected(number + 20 + at, size)) for at in range(4)]


@dataclass(frozen=True)
class Allowance:
    """What the strikes of a trial explain."""

    deaths: int
    """Strikes that end workers, or make their host silent."""
    storage_losses: int
    """Ends of object storage."""
    scheduler_losses: int = 0
    """Ends of the scheduler, each of which may count attempts anew."""


def verdict(task: Task, allowed: Callable[[], Allowance], seconds: float) -> tuple[str, bool]:
    """Wait for the end of a task: what is wrong with it, empty if nothing is; and whether it was lost or refused.

    `allowed` is asked when the task has ended.
    """
    try:
        value = task.future.result(seconds)
    except (Exception, CancelledError) as error:
        if isinstance(error, TimeoutError) and not task.future.done():
            return f"has not ended within {seconds:g} s", False
        return _judged(task, allowed(), error)
    if task.must_fail or value != task.value:
        return f"has the result {value!r:.80}, not {task.value!r:.80}", False
    return "", False


def _judged(task: Task, allowed: Allowance, error: BaseException) -> tuple[str, bool]:
    if isinstance(error, task.errors):
        return "", False
    if isinstance(error, SubmitLimitError) or any(refusal in str(error) for refusal in REFUSALS):
        return "", True
    if isinstance(error, WorkerDiedError) and allowed.deaths >= MOST_DEATHS:
        return "", True
    if isinstance(error, NestingLimitError) and allowed.deaths:  # no worker can be started without a template
        return "", True
    if isinstance(error, LOSSES) and allowed.storage_losses:
        return "", True
    return f"ended with {type(error).__name__}: {error!s:.400}", False
