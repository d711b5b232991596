"""Second runs of stragglers, with real processes: the first outcome wins, and the other run's process ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from support.faults import Services
from support.gates import SECONDS, Arrival, Gate, wait_at
from support.storage import WatchedStorage
from support.waiting import wait_until

CALLS = 20
SIZE = 300_000
"""Bytes of a result, which goes to object storage."""
WORK_SECONDS = 0.1
"""What the other calls take: on a slow host a call that takes nothing may be late, and second runs of these few
milliseconds are soon all that are allowed."""


@pytest.fixture(scope="module")
def storage() -> Iterator[WatchedStorage]:
    with WatchedStorage() as started:
        yield started


@pytest.fixture
def services(tmp_path: Path, storage: WatchedStorage) -> Iterator[Services]:
    """Two agents, of two workers each."""
    with Services(tmp_path, "--object-storage-address", storage.address) as started:
        for _ in range(2):
            started.add_agent(2)
        yield started


class Straggler:
    """A map of which one call waits at a gate, in each of its two runs."""

    def __init__(self, client: Client, gate: Gate, call: Callable[..., Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.results: Future[list[tuple[int, bytes]]] = self._pool.submit(call, client, _work(gate.port))
        self.first = gate.arrive()
        self.second = gate.arrive()
        assert self.first.pid != self.second.pid

    def end(self) -> None:
        """All calls have the right result, once each."""
        assert self.results.result(SECONDS) == [(number, bytes(SIZE)) for number in range(CALLS)]
        self._pool.shutdown()


def _work(port: int) -> Callable[[int], tuple[int, bytes]]:
    def work(number: int) -> tuple[int, bytes]:
        if number == 7:
            return wait_at(port, number), bytes(SIZE)
        time.sleep(WORK_SECONDS)
        return number, bytes(SIZE)

    return work


def map_it(client: Client, work: Callable[[int], Any]) -> list[Any]:
    return client.map(work, range(CALLS), speculate=True)


def starmap_it(client: Client, work: Callable[[int], Any]) -> list[Any]:
    return client.starmap(work, [(number,) for number in range(CALLS)], speculate=True)


@pytest.mark.parametrize("call", [map_it, starmap_it])
@pytest.mark.parametrize("winner", ["first", "second"])
def test_one_run_wins_and_the_other_ends(
    services: Services, storage: WatchedStorage, gate: Gate, call: Callable[..., Any], winner: str
) -> None:
    with Client(services.address) as client:
        straggler = Straggler(client, gate, call)
        winning, losing = (straggler.first, straggler.second)[:: 1 if winner == "first" else -1]
        winning.let_go()
        losing.wait_gone()
        straggler.end()
        assert not gate.arrived(), "nothing runs a third time"
    storage.wait_empty()


@pytest.mark.parametrize("lost", ["first", "second"])
def test_an_agent_with_one_of_the_runs_is_killed(
    services: Services, storage: WatchedStorage, gate: Gate, lost: str
) -> None:
    with Client(services.address) as client:
        straggler = Straggler(client, gate, map_it)
        losing, left = (straggler.first, straggler.second)[:: 1 if lost == "first" else -1]
        (agent,) = [each for each in services.started[1:] if losing.pid in each.family()]
        agent.kill()
        losing.wait_gone()
        left.let_go()
        straggler.end()
    storage.wait_empty()


def test_the_scheduler_is_killed_while_a_call_has_two_runs(
    services: Services, storage: WatchedStorage, gate: Gate
) -> None:
    with Client(services.address) as client:
        straggler = Straggler(client, gate, map_it)
        services.scheduler.kill()
        services.start_scheduler()
        wait_until(lambda: _has_ended(straggler.first) != _has_ended(straggler.second), "one of the runs is stopped")
        straggler.first.let_go()
        straggler.second.let_go()
        straggler.end()
    storage.wait_empty()


def _has_ended(arrival: Arrival) -> bool:
    return not Path(f"/proc/{arrival.pid}").exists()


def test_interrupting_a_map_stops_both(services: Services, storage: WatchedStorage, gate: Gate) -> None:
    with Client(services.address) as client:
        straggler = Straggler(client, gate, map_it)
        client.clear()
        straggler.first.wait_gone()
        straggler.second.wait_gone()
        assert straggler.results.exception(SECONDS) is not None
    storage.wait_empty()
