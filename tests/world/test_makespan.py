"""Tasks of one function that take very different times: workers are not idle while tasks wait behind long ones."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import pytest

from world.cluster import World
from world.plans import Plan

TASKS = 400
WORKERS = 8


def makespan(seconds: Sequence[float]) -> float:
    """How long the tasks take in this order on workers that always have the next one."""
    ends = [0.0] * WORKERS
    for each in seconds:
        heapq.heapreplace(ends, ends[0] + each)
    return max(ends)


@pytest.mark.parametrize("hosts", [[4, 4], [1] * 8])
@pytest.mark.parametrize("shares", [(0.02, 1.0), (0.3, 0.1)])
def test_no_worker_is_idle_while_tasks_wait_behind_long_ones(hosts: list[int], shares: tuple[float, float]) -> None:
    share, long = shares
    draw = random.Random(4)
    durations = [long if draw.random() < share else 0.001 for _ in range(TASKS)]
    world = World(hosts=hosts)
    world.client.map(*[Plan(seconds=0.0005)] * 200)  # the function is known to be short
    world.finish()
    began = world.now
    world.client.map(*(Plan(seconds=each) for each in durations))
    world.finish()
    assert world.now - began <= 1.15 * makespan(durations)
