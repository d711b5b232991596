"""Results of some ten KiB travel by message while the client's credit has room, and nothing is lost or kept for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from scaler import Client
from scaler_client.core.held_results import LongResult
from scaler_client.futures.futures import ScalerFuture
from scaler_protocol.handshake import RESULT_CREDIT
from support.faults import Services
from support.gates import SECONDS
from support.long_results import COUNT, SIZE, long
from support.memory_attacks import Growth
from support.processes import children, stopped
from support.tasks import worker_pid
from support.waiting import wait_until

TESTS = Path(__file__).parent


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with Services(tmp_path, "--insecure") as started:
        started.add_agent(2, "--insecure")
        yield started


@pytest.fixture
def client(services: Services) -> Iterator[Client]:
    with Client(services.address, insecure=True, timeout_seconds=SECONDS) as client:
        yield client


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Where tasks say that they run."""
    path = tmp_path / "runs"
    path.touch()
    return path


def expect(futures: list[ScalerFuture[bytes]]) -> None:
    """Each future has the result of its number."""
    for number, future in enumerate(futures):
        assert future.result(SECONDS) == number.to_bytes(8, "big") + bytes(SIZE)


def by_message(futures: list[ScalerFuture[bytes]]) -> list[ScalerFuture[bytes]]:
    """Those whose results are here and were not read."""
    return [future for future in futures if type(future._outcome) is LongResult]


def submitted(client: Client, runs: Path, count: int) -> list[ScalerFuture[bytes]]:
    """Calls of a function that is known to return long results."""
    assert len(client.submit(long, str(runs), 0).result(SECONDS)) == SIZE + 8
    return [client.submit(long, str(runs), number) for number in range(count)]


def test_a_client_that_reads_nothing_is_sent_its_credit_and_then_references(client: Client, runs: Path) -> None:
    futures = submitted(client, runs, 1000)
    wait(futures, SECONDS)
    here = by_message(futures)
    assert RESULT_CREDIT / 2 < sum(len(future._outcome) for future in here) <= RESULT_CREDIT
    assert len(here) < len(futures)
    expect(futures)
    del here, futures
    again = submitted(client, runs, 100)
    wait(again, SECONDS)
    assert len(by_message(again)) == 100, "what was read makes room"
    expect(again)


def test_a_client_that_is_stopped_costs_others_its_credit_and_loses_nothing(services: Services, runs: Path) -> None:
    growths = [Growth(service.process.pid) for service in services.started]
    words = [sys.executable, "-m", "support.long_results", services.address, str(runs)]
    with subprocess.Popen(words, cwd=TESTS, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "submitted\n"
        with stopped(program.pid):
            wait_until(lambda: runs.read_text("ascii").count("\n") > COUNT, "all runs", 4 * SECONDS)
            for growth in growths:
                growth.watch(0.5)
        assert program.stdout.readline() == "right\n"
    assert max(growth.most for growth in growths) < 1.5 * RESULT_CREDIT < COUNT * SIZE


def kill_a_worker(services: Services, client: Client) -> None:
    os.kill(client.submit(worker_pid).result(SECONDS), signal.SIGKILL)


def kill_the_scheduler(services: Services, client: Client) -> None:
    services.scheduler.kill()
    services.start_scheduler()


@pytest.mark.parametrize("fault", [kill_a_worker, pytest.param(kill_the_scheduler, marks=pytest.mark.chaos)])
def test_nothing_is_lost_with(
    fault: Callable[[Services, Client], None], services: Services, client: Client, runs: Path
) -> None:
    futures = submitted(client, runs, 600)
    wait_until(lambda: sum(future.done() for future in futures) > 100, "100 results")
    fault(services, client)
    expect(futures)


def test_what_came_by_message_outlives_object_storage(services: Services, client: Client, runs: Path) -> None:
    futures = submitted(client, runs, 300)
    wait(futures, SECONDS)
    (storage,) = children(services.scheduler.pid)
    os.kill(storage, signal.SIGKILL)
    here = by_message(futures)
    assert len(here) > 200
    for future in here:
        assert len(future.result(SECONDS)) == SIZE + 8
