"""A client that submits very many tasks and asserts that memory does not grow."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from support.fault_tasks import bulky, nested_sum, wait_a_moment
from support.faults import parent_of, resident
from support.gates import SECONDS
from support.processes import command_line, descendants
from support.tasks import add, explode

Submitted = tuple[ScalerFuture[Any], Callable[[ScalerFuture[Any]], bool]]
MEBI = 1024 * 1024
WINDOW = 2000
"""Futures that are under way at once."""


class Mixture:
    """Calls of every kind, each with its expected outcome."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, number: int) -> Submitted:
        """Submit call `number`; return its future and the check of its outcome."""
        client, kind = self._client, number % 20
        if kind < 12:
            return client.submit(add, number, 1), lambda future: future.result(SECONDS) == number + 1
        if kind < 14:
            return client.submit(wait_a_moment, number), lambda future: future.result(SECONDS) == number
        if kind < 16:
            return client.submit(bulky, number, 4096), lambda future: len(future.result(SECONDS)[1]) == 4096
        if kind < 18:
            text = str(number)
            return client.submit(explode, text), lambda future: str(future.exception(SECONDS)) == text
        if kind == 18 and number % 1000 == 18:
            return client.submit(nested_sum, client, 5), lambda future: future.result(SECONDS) == 15
        future = client.submit(wait_a_moment, number)
        if number % 2:
            future.cancel()
        return future, lambda future: future.cancelled() or future.result(SECONDS) == number


class Lambdas:
    """Calls of functions that all differ."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, number: int) -> Submitted:
        """Submit call `number`; return its future and the check of its outcome."""
        future = self._client.submit(lambda value, number=number: value + number, 1)
        return future, lambda future: future.result(SECONDS) == number + 1


def memory() -> dict[int, tuple[str, int]]:
    """What this process and its descendants are, and their memory."""
    found = {os.getpid(): ("client", resident(os.getpid())[0])}
    for pid in descendants(os.getpid()):
        words = command_line(pid)
        if "scaler_storage" in words:
            found[pid] = ("storage", resident(pid)[0])
        elif "scaler_launch.local" in words:  # so are the words of its forks
            kind = "scheduler and agent" if parent_of(pid) == os.getpid() else "worker"
            found[pid] = (kind, resident(pid)[0])
    return found


def run_many(kind: type[Mixture | Lambdas], total: int, growth: float, spare: int) -> None:
    """So many tasks; memory after a fifth of them and at the end, which may be `growth` times that, and `spare`.

    For a process of its own: memory that a client has freed stays with its process.
    """
    under_way: deque[tuple[int, ScalerFuture[Any], Callable[[ScalerFuture[Any]], bool]]] = deque()
    before: dict[int, tuple[str, int]] = {}
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="ERROR", death_timeout_seconds=60) as combo,
        Client(combo.get_address()) as client,
    ):
        calls = kind(client)
        start = time.monotonic()
        for number in range(total):
            under_way.append((number, *calls.submit(number)))
            if len(under_way) >= WINDOW:
                drain(under_way, WINDOW // 2)
            if number == total // 5:
                before = memory()
        drain(under_way, 0)
        seconds, after = time.monotonic() - start, memory()
    print(f"\n{total:,} tasks ({kind.__name__}) in {seconds:.0f} s, {total / seconds:,.0f}/s")
    both = before.keys() & after.keys()  # workers beyond the two come and go, as nested tasks want them
    assert {"client", "scheduler and agent", "storage", "worker"} == {before[pid][0] for pid in both}
    for name, pid in sorted((before[pid][0], pid) for pid in both):
        print(f"  {name:20} {before[pid][1] / MEBI:7.1f} MiB after a fifth, {after[pid][1] / MEBI:7.1f} MiB at the end")
    grown = {before[pid][0] for pid in both if after[pid][1] > before[pid][1] * growth + spare}
    assert not grown


def drain(under_way: deque[Any], left: int) -> None:
    """Assert that the oldest calls have the expected outcome."""
    while len(under_way) > left:
        number, future, is_right = under_way.popleft()
        assert is_right(future), f"task {number}: {future!r}"
