"""What may be ordered from the pages, end to end: a task is cancelled, a worker is drained."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.addresses import Address
from scaler_ui.listening import Listening
from support.browsers import opened, refusal, served, wait_connected, wait_shown
from support.certificates import write_certificate
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.own_keys import MONITOR, own
from support.processes import PROGRAMS, Terminal, free_ports, taken_port
from support.waiting import wait_until


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
        page.get_by_role("link", name=f"{waiting[1].task_id:x}").click()
        page.get_by_test_id("cancel").click()
        wait_shown(page, "cancel-said", "Sent to the scheduler.")
        with pytest.raises(CancelledError):
            waiting[1].result(timeout=SECONDS)
        wait_shown(page, "reasons", "it has ended: cancelled")
        by = "token at 127.0.0.1 (scaler_ui) cancelled it"
        listening.wait_for(lambda model: any(by in event.text for event in model.events), SECONDS)
        page.wait_for_selector("[data-testid='cancel']", state="hidden")

        page.goto(f"{site}/workers")
        wait_connected(page)
        worker = page.get_by_test_id("workers").locator("tbody td").first
        pid = int(worker.inner_text().rpartition("-")[2])
        worker.get_by_role("link").click()
        wait_shown(page, "fact-task", f"{running[0].task_id >> 32:x}")
        page.get_by_test_id("drain").click()
        wait_shown(page, "drain-said", "Sent to the scheduler.")
        listening.wait_for(lambda model: model.status is not None and model.status.agent_workers == (1,), SECONDS)
        wait_shown(page, "fact-state", "draining")
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
            assert refusal(address)[0] == 401


def test_pages_over_tls_for_readers_whom_a_proxy_names(cluster: LocalCluster, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    port = free_ports(1)
    words = ("--port", str(port), "--tls-cert", certificate, "--tls-key", key, "--user-header", "X-Forwarded-User")
    monitor = str(Address.parse(cluster.address).beside(2))
    trust = ssl.create_default_context(cafile=certificate)
    metrics = f"https://127.0.0.1:{port}/metrics"
    # With this variable NiceGUI takes itself for a part of the test.
    with Terminal("env", "-u", "PYTEST_CURRENT_TEST", PROGRAMS / "scaler_ui", monitor, *words) as program:
        program.read_until(f"open https://127.0.0.1:{port}/")
        wait_until(lambda: taken_port([port]) == port, "the pages are served")
        assert refusal(metrics, trust)[0] == 401
        named = urllib.request.Request(metrics, headers={"X-Forwarded-User": "ann"})
        with urllib.request.urlopen(named, timeout=SECONDS, context=trust) as answer:
            assert answer.status == 200 and answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS)
        assert program.end() == 0
