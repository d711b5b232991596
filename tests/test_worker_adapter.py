"""Worker adapters over HTTP: the documents' commands, and an adapter of somebody else's in another language."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client, ScalerFuture
from support.fault_tasks import step
from support.faults import Service, Services
from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, Watched, command_line, descendants, free_ports, taken_port
from support.waiting import wait_until

NODE = shutil.which("node")
ADAPTER = Path(__file__).resolve().parent / "support" / "adapter.mjs"
COOLDOWN = ("--scale-down-cooldown-seconds", "1")


@pytest.fixture(autouse=True)
def tasks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers import what tests submit."""
    monkeypatch.setenv("PYTHONPATH", str(ADAPTER.parent.parent))


def submitted(client: Client, folder: Path, tasks: int) -> list[ScalerFuture[tuple[int, int]]]:
    return [client.submit(step, str(folder / "begun"), number, 0.2) for number in range(tasks)]


def begun(folder: Path) -> int:
    return len((folder / "begun").read_text("utf-8").splitlines())


def agents_of(pid: int) -> list[int]:
    """The agents that a program has started, without what these start."""
    found = [child for child in descendants(pid) if "--num-of-workers" in command_line(child)]
    return [child for child in found if not any(child in descendants(other) for other in found if other != child)]


def test_the_commands_of_the_documents(tmp_path: Path) -> None:
    port = free_ports(4)
    address, web = f"tcp://127.0.0.1:{port}", port + 3
    adapter_words: list[str | Path] = [
        PROGRAMS / "scaler_native_worker_adapter",
        address,
        "--host",
        "127.0.0.1",
        "--port",
        str(web),
    ]
    scheduler_words: list[str | Path] = [
        PROGRAMS / "scaler_scheduler",
        address,
        "--adapter-webhook-url",
        f"http://127.0.0.1:{web}",
    ]
    with Terminal(*adapter_words, "-mw", "2") as adapter, Terminal(*scheduler_words, *COOLDOWN) as scheduler:
        adapter.read_until(f"listen to http://127.0.0.1:{web}")
        scheduler.read_until(f"worker manager webhook-127-0-0-1-{web} connected")
        assert agents_of(adapter.process.pid) == []
        with Client(address, timeout_seconds=SECONDS) as client:
            futures = submitted(client, tmp_path, 20)
            assert sorted(future.result(SECONDS)[0] for future in futures) == list(range(20))
            wait_until(lambda: not agents_of(adapter.process.pid), "no group, since there is no load")
            assert begun(tmp_path) == 20, "no task ran twice"
            client.submit(step, str(tmp_path / "again"), 1, 0.0).result(SECONDS)
        with Watched(agents_of(adapter.process.pid)) as watched:
            assert scheduler.end() == 0
            assert watched.wait_gone(SECONDS) == [], "the scheduler has its groups shut down"
        assert adapter.end() == 0
    assert taken_port(range(port, port + 4)) is None


def test_a_silent_adapter_does_not_keep_the_scheduler_from_ending() -> None:
    port = free_ports(3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words: list[str | Path] = [
            PROGRAMS / "scaler_scheduler",
            f"tcp://127.0.0.1:{port}",
            "--adapter-webhook-url",
            url,
        ]
        with Terminal(*words) as scheduler:
            connected, _ = silent.accept()
            scheduler.read_until("listen to scheduler monitor")
            assert scheduler.end() == 0
            connected.close()


def test_groups_of_a_killed_scheduler_are_the_next_one_s(tmp_path: Path) -> None:
    web = free_ports(1)
    # On a busy host the client may take longer to connect again than the scheduler waits before it decides.
    words = ["--adapter-webhook-url", f"http://127.0.0.1:{web}", COOLDOWN[0], "6"]
    with Services(tmp_path, *words) as services:
        log = tmp_path / "adapter.log"
        adapter = Service(log, "scaler_worker.managers.adapter_server", services.address, "-p", str(web), "-mw", "2")
        services.started.append(adapter)
        with Client(services.address, timeout_seconds=SECONDS) as client:
            futures = submitted(client, tmp_path, 30)
            wait_until(lambda: len(agents_of(adapter.pid)) == 2, "two groups")
            services.scheduler.kill()
            services.start_scheduler()
            assert sorted(future.result(SECONDS)[0] for future in futures) == list(range(30))
            assert services.scheduler.said().count("(1 worker) connected") == 2, "no group was started again"
            wait_until(lambda: not agents_of(adapter.pid), "the groups are drained when there is no load")


@pytest.fixture
def node() -> str:
    if NODE is None:
        pytest.skip("node is not installed: no adapter in another language")
    return NODE


@pytest.fixture(params=["tell", "ignore"])
def foreign(request: pytest.FixtureRequest, node: str, tmp_path: Path) -> Iterator[tuple[Terminal, Services]]:
    """An adapter that tells its agents who they are, or does not, and a scheduler that knows its URL."""
    port = free_ports(3)
    with Terminal(node, ADAPTER, f"tcp://127.0.0.1:{port}", PROGRAMS / "scaler_cluster", request.param, "2") as adapter:
        url = adapter.read_until("http://")
        with ServicesAt(port, tmp_path, "--adapter-webhook-urls", url, *COOLDOWN) as services:
            yield adapter, services


class ServicesAt(Services):
    """A scheduler on a port that was chosen before."""

    def __init__(self, port: int, folder: Path, *words: str) -> None:
        self._chosen = port
        super().__init__(folder, *words)

    def start_scheduler(self) -> Service:
        self.port, self.address = self._chosen, f"tcp://127.0.0.1:{self._chosen}"
        return super().start_scheduler()


def test_an_adapter_in_another_language_is_driven(foreign: tuple[Terminal, Services], tmp_path: Path) -> None:
    adapter, services = foreign
    with Client(services.address, timeout_seconds=SECONDS) as client:
        futures = submitted(client, tmp_path, 20)
        assert sorted(future.result(SECONDS)[0] for future in futures) == list(range(20))
        assert "answers 429: all workers are running" in services.scheduler.said(), "it has room for two"
        wait_until(lambda: not agents_of(adapter.process.pid), "no group, since there is no load")
    assert begun(tmp_path) == 20, "no task ran twice"
    os.kill(adapter.process.pid, 15)
    assert adapter.process.wait(SECONDS) == 0
    words = [line for line in adapter.rest() if "worker" in line]
    assert words[0] == "get_worker_adapter_info" and words.count("start_worker_group") >= 2
