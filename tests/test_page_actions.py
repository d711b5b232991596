"""What may be ordered from the pages, end to end: a task is cancelled, a worker is drained."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.addresses import Address
from scaler_ui.listening import Listening
from support.browsers import opened, served, wait_connected, wait_shown
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.own_keys import MONITOR, own


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    started = LocalCluster(tmp_path / "log", n_workers=2, heartbeat_interval_seconds=1)
    yield started
    started.end()


def test_cancel_a_task_and_drain_a_worker(cluster: LocalCluster, gate: Gate) -> None:
    monitor = Address.parse(cluster.address).beside(2)
    with (
        Client(address=cluster.address) as client,
        served(monitor, "secret") as site,
        opened(site) as page,
    ):
        running = [client.submit(wait_at, gate.port, number) for number in range(2)]
        arrivals = [gate.arrive() for _ in running]
        waiting = [client.submit(wait_at, gate.port, number) for number in range(2, 4)]
        listening = Listening(monitor, credentials=own(MONITOR))
        listening.wait_for(lambda model: model.status is not None and all(model.status.worker_runs or (0,)), SECONDS)

        page.goto(f"{site}/tasks?token=secret")
        wait_connected(page)
        page.get_by_text(f"{waiting[1].task_id:x}").click()
        page.get_by_test_id("cancel").click()
        wait_shown(page, "cancel-said", "Sent to the scheduler.")
        with pytest.raises(CancelledError):
            waiting[1].result(timeout=SECONDS)
        wait_shown(page, "reasons", "it has ended: cancelled")
        page.get_by_role("button", name="Close").click()

        page.goto(f"{site}/workers")
        wait_connected(page)
        worker = page.get_by_test_id("workers").locator("tbody td").first
        pid = int(worker.inner_text().partition("|")[0])
        worker.click()
        wait_shown(page, "worker", "It is running: task")
        page.get_by_test_id("drain").click()
        wait_shown(page, "drain-said", "Sent to the scheduler.")
        listening.wait_for(lambda model: model.status is not None and model.status.agent_workers == (1,), SECONDS)
        wait_shown(page, "workers", "draining")
        for arrival in arrivals:
            arrival.let_go()
        gate.arrive().let_go()
        assert [future.result() for future in (*running, waiting[0])] == [0, 1, 2]
        listening.wait_for(lambda model: model.status is not None and len(model.status.worker_pids) == 1, SECONDS)
        assert listening.model.status is not None and pid not in listening.model.status.worker_pids
        listening.close()


def test_without_the_token_nothing_is_shown(cluster: LocalCluster) -> None:
    with served(Address.parse(cluster.address).beside(2), "secret") as site:
        for address in (f"{site}/tasks", f"{site}/tasks?token=wrong", f"{site}/metrics"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(address, timeout=SECONDS)
