"""Long runs: a million mixed tasks with flat memory, and backlogs that cost the scheduler little."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client, SchedulerClusterCombo
from support.faults import TESTS, Services, resident
from support.many_tasks import MEBI, Lambdas, Mixture
from support.processes import listener_of
from support.tasks import add, last_digits
from support.waiting import wait_until

BACKLOG_BYTES = 200 * MEBI
CREDIT_BYTES = 32 * MEBI


# --- mixed tasks ----------------------------------------------------------------------------------------------------


def run_many(kind: type[Mixture | Lambdas], total: int, growth: float, spare: int) -> None:
    """So many tasks, in a process that no other test has made bigger."""
    program = f"from support.many_tasks import *; run_many({kind.__name__}, {total}, {growth}, {spare})"
    words = [sys.executable, "-W", "error", "-c", program]
    assert subprocess.run(words, env={**os.environ, "PYTHONPATH": str(TESTS)}, check=False).returncode == 0


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


# --- many hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_ten_thousand_hosts_behind_relays() -> None:
    program = TESTS.parent / "bench" / "scheduling" / "relayed.py"
    done = subprocess.run([sys.executable, program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.startswith("160,000 workers: ")
