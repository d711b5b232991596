"""Long runs: a million mixed tasks with flat memory, and backlogs that cost the scheduler little."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, ScalerFuture, SchedulerClusterCombo
from support.fault_tasks import bulky, nested_sum, wait_a_moment
from support.faults import Services, parent_of, resident
from support.gates import SECONDS
from support.processes import command_line, descendants, listener_of
from support.tasks import add, explode, last_digits
from support.waiting import wait_until

Submitted = tuple[ScalerFuture[Any], Callable[[ScalerFuture[Any]], bool]]
MEBI = 1024 * 1024
WINDOW = 2000
"""Futures of the soak that are under way at once."""
BACKLOG_BYTES = 200 * MEBI
CREDIT_BYTES = 32 * MEBI


# --- mixed tasks ----------------------------------------------------------------------------------------------------


class Mixture:
    """Calls of every kind, each with what must come of it."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, number: int) -> Submitted:
        """The call of that number, and whether it ended as it must."""
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
    """Calls of functions of which no two are equal."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, number: int) -> Submitted:
        """The call of that number, and whether it ended as it must."""
        future = self._client.submit(lambda value, number=number: value + number, 1)
        return future, lambda future: future.result(SECONDS) == number + 1


def memory(others: set[int]) -> dict[int, tuple[str, int]]:
    """What this process and its descendants are, and their memory, but for those of other tests."""
    found = {os.getpid(): ("client", resident(os.getpid())[0])}
    for pid in set(descendants(os.getpid())) - others:
        words = command_line(pid)
        if "scaler_storage" in words:
            found[pid] = ("storage", resident(pid)[0])
        elif "scaler_launch.local" in words:  # so are the words of its forks
            kind = "scheduler and agent" if parent_of(pid) == os.getpid() else "worker"
            found[pid] = (kind, resident(pid)[0])
    return found


def run_many(kind: type[Mixture | Lambdas], total: int, growth: float, spare: int) -> None:
    """So many tasks; memory after a fifth of them and at the end, which may be `growth` times that, and `spare`."""
    under_way: deque[tuple[int, ScalerFuture[Any], Callable[[ScalerFuture[Any]], bool]]] = deque()
    before: dict[int, tuple[str, int]] = {}
    others = set(descendants(os.getpid()))
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
                before = memory(others)
        drain(under_way, 0)
        seconds, after = time.monotonic() - start, memory(others)
    print(f"\n{total:,} tasks ({kind.__name__}) in {seconds:.0f} s, {total / seconds:,.0f}/s")
    both = before.keys() & after.keys()  # workers beyond the two come and go, as nested tasks want them
    assert {"client", "scheduler and agent", "storage", "worker"} == {before[pid][0] for pid in both}
    for name, pid in sorted((before[pid][0], pid) for pid in both):
        print(f"  {name:20} {before[pid][1] / MEBI:7.1f} MiB after a fifth, {after[pid][1] / MEBI:7.1f} MiB at the end")
    grown = {before[pid][0] for pid in both if after[pid][1] > before[pid][1] * growth + spare}
    assert not grown


def drain(under_way: deque[Any], left: int) -> None:
    """See that the oldest ended as they must."""
    while len(under_way) > left:
        number, future, is_right = under_way.popleft()
        assert is_right(future), f"task {number}: {future!r}"


def test_mixed_tasks() -> None:
    run_many(Mixture, 10_000, 1.1, 30 * MEBI)


@pytest.mark.soak
def test_a_million_mixed_tasks() -> None:
    run_many(Mixture, 1_000_000, 1.1, 5 * MEBI)


@pytest.mark.soak
def test_a_million_lambdas_of_which_no_two_are_equal() -> None:
    """Every table that knows functions is full after a fifth of them."""
    run_many(Lambdas, 1_000_000, 1.0, 5 * MEBI)


# --- backlogs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def address() -> Iterator[str]:
    """A scheduler without workers."""
    with SchedulerClusterCombo(n_workers=0, logging_level="ERROR") as combo:
        yield combo.get_address()


def wait_settled(pid: int) -> tuple[int, int]:
    """Memory, now and at the peak, once the process has had nothing to do for a while."""
    seen = [0.0, -1.0]

    def rests() -> bool:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
        ticks = float(fields[11]) + float(fields[12])
        if ticks > seen[1] + 1:
            seen[:] = time.monotonic(), ticks
        return time.monotonic() - seen[0] > 1

    wait_until(rests, "the scheduler rests", 60)
    return resident(pid)


@pytest.mark.parametrize("tasks", [20_000, pytest.param(200_000, marks=pytest.mark.soak)])
def test_a_backlog_of_no_ops(address: str, tasks: int) -> None:
    pid = listener_of(address)
    empty = resident(pid)[0]
    with Client(address) as client:
        futures = [client.submit(add, number, 1) for number in range(tasks)]
        _, peak = wait_settled(pid)
        print(f"\n{tasks:,} no-ops queued: {empty / MEBI:.1f} MiB before, {peak / MEBI:.1f} MiB at the peak")
        assert peak - empty < (BACKLOG_BYTES - 40 * MEBI) * tasks / 200_000 + 5 * MEBI
        assert peak < BACKLOG_BYTES
        assert not any(future.done() for future in futures)


@pytest.mark.parametrize("size", [60_000, 12_000], ids=["stored", "inline"])
@pytest.mark.parametrize("tasks", [4_000, pytest.param(20_000, marks=pytest.mark.soak)])
def test_a_backlog_of_big_arguments(address: str, tasks: int, size: int) -> None:
    """Inline ones wait in the client once the session's credit is used up; bigger ones are in the object storage."""
    pid = listener_of(address)
    empty = resident(pid)[0]
    with Client(address) as client:
        futures = [client.submit(len, bytes([number % 256]) * size) for number in range(tasks)]
        _, peak = wait_settled(pid)
        print(f"\n{tasks:,} x {size:,} bytes queued: {empty / MEBI:.1f} MiB before, {peak / MEBI:.1f} MiB at the peak")
        assert peak - empty < 2 * CREDIT_BYTES + 20 * MEBI
        assert not any(future.done() for future in futures)


# --- a big graph ----------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_graph_of_a_million_nodes() -> None:
    nodes, asked = 1_000_000, 1_000
    draw = random.Random(5)
    graph: dict[Any, Any] = {("n", i): (add, i, 0) for i in range(1000)}
    for i in range(1000, nodes):
        graph["n", i] = (last_digits, *[("n", i - 1 - draw.randrange(1000)) for _ in range(2 + i % 2)])
    with SchedulerClusterCombo(n_workers=2) as cluster, Client(address=cluster.get_address()) as client:
        scheduler = listener_of(cluster.get_address())
        before = resident(scheduler)[0]
        found = client.get(graph, [("n", nodes - 1 - i) for i in range(asked)])
        peak = resident(scheduler)[1]
        values: list[int] = []
        for node in graph.values():
            taken = node[1:] if node[0] is add else [values[key[1]] for key in node[1:]]
            values.append(node[0](*taken))
        assert list(found.values()) == values[: -asked - 1 : -1]
        assert peak - before < 1500 * nodes, f"{(peak - before) / nodes:.0f} bytes per node"
        assert client.map(add, [1], [2]) == [3]


# --- a very large graph ---------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_a_graph_of_a_million_nodes_takes_little_memory(tmp_path: Path) -> None:
    width, layers = 10_000, 100
    draw, graph, values = random.Random(1), dict[Any, Any](), list[int]()
    for number in range(width * layers):
        first = (number // width - 1) * width
        needs = draw.sample(range(first, first + width), 2 + number % 2) if first >= 0 else []
        graph["n", number] = (last_digits, number, *(("n", need) for need in needs))
        values.append((number + sum(values[need] for need in needs)) % 1000)
    keys = [("n", number) for number in range(width * (layers - 1), width * layers)]
    with Services(tmp_path) as services:
        services.add_agent(2)
        with Client(services.address) as client:
            before, _ = resident(services.scheduler.pid)
            assert client.get(graph, keys) == {key: values[key[1]] for key in keys}
            _, peak = resident(services.scheduler.pid)
    assert peak - before < 1500 * len(graph)
