"""Real processes die in the middle of graphs, of layers and of chains of cheap nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scaler import Client
from support.fault_tasks import noted_block, noted_total, wait_for_file
from support.faults import Service, Services, template_of
from support.gates import SECONDS
from support.processes import descendants, free_ports
from support.waiting import wait_until

LEAVE_IN_THE_MIDDLE = """
import sys, time
from scaler import Client
from support.fault_tasks import noted_total

client = Client(address=sys.argv[1])
graph = {"file": sys.argv[2], ("n", 0): (noted_total, "file", 0, 0.01)}
graph.update({("n", i): (noted_total, "file", i, 0.01, ("n", i - 1)) for i in range(1, 1000)})
client.get(graph, [("n", 999)])
"""


NODES = 1200
MIDDLE = range(NODES // 2, NODES // 2 + 25)
"""All later nodes need some of these, since a node needs others whose numbers are at most 25 below its own."""


class GraphFlight:
    """A graph on its way, and what it has to come to; its second half waits, at a worker, until it may go on."""

    def __init__(self, client: Client, folder: Path, shape: str) -> None:
        self.file, self._go = folder / f"runs-of-{shape}", folder / f"go-{shape}"
        self.file.touch()
        draw, self.values = Random(7), list[int]()
        graph: dict[Any, Any] = {"file": str(self.file), "go": (wait_for_file, self._go)}
        for i in range(NODES):
            needs = [i - 6] if shape == "chains" else [i - 6 - draw.randrange(20) for _ in range(2)]
            needs = sorted({need for need in needs if need >= 0})
            seconds = 0.0 if shape == "chains" and i % 50 else 0.003
            go = ["go"] if i in MIDDLE else []
            graph["n", i] = (noted_total, "file", i, seconds, *go, *[("n", need) for need in needs])
            self.values.append((i + sum(self.values[need] for need in needs)) % 100_003)
        self.keys = [("n", i) for i in (*range(0, NODES, 100), *range(NODES - 6, NODES))]
        self.futures = client.get(graph, self.keys, block=False)

    def numbers(self) -> set[int]:
        """The nodes that have run."""
        return set(map(int, self.file.read_text("ascii").split()))

    def ran(self) -> int:
        """How many runs there were."""
        return len(self.file.read_text("ascii").split())

    def wait_for(self, ran: int) -> None:
        """Block until so many have run, less than half of them."""
        wait_until(lambda: self.ran() >= ran, f"{ran} nodes ran")

    def land(self) -> None:
        """Go on; all values are right."""
        self._go.touch()
        for key, future in self.futures.items():
            assert future.result(SECONDS) == self.values[key[1]], key


SHAPES = pytest.mark.parametrize("shape", ["layers", "chains"])


@SHAPES
def test_a_worker_and_then_a_host_are_killed(tmp_path: Path, shape: str) -> None:
    with Services(tmp_path) as services:
        agent, other = services.add_agent(2), services.add_agent(1)
        with Client(services.address) as client:
            flight = GraphFlight(client, tmp_path, shape)
            flight.wait_for(200)
            os.kill(descendants(template_of(agent.pid))[0], signal.SIGKILL)
            flight.wait_for(300)
            other.kill()
            flight.land()
            assert flight.ran() <= NODES + 600


def test_the_scheduler_is_killed_and_started_again(tmp_path: Path) -> None:
    with Services(tmp_path) as services:
        services.add_agent(4)
        with Client(services.address) as client:
            flights = [GraphFlight(client, tmp_path, shape) for shape in ("layers", "chains")]
            for flight in flights:
                flight.wait_for(100)
            services.scheduler.kill()
            services.start_scheduler()
            for flight in flights:
                flight.land()
            assert client.get({"x": (abs, -1)}, ["x"]) == {"x": 1}
            for flight in flights:
                assert flight.ran() == len(flight.numbers()), "what agents have kept, or the client, is not run again"


def test_big_values_outlive_the_scheduler_where_storage_does(tmp_path: Path) -> None:
    address, file = f"tcp://127.0.0.1:{free_ports(1)}", tmp_path / "runs"
    file.touch()
    storage = Service(tmp_path / "storage.log", "scaler_storage", address)
    graph: dict[Any, Any] = {"file": str(file)}
    expected: list[int] = []
    for number in range(400):
        needs = [number - 4, number - 5] if number > 4 else []
        graph["n", number] = (noted_block, "file", number, *(("n", need) for need in needs))
        expected.append((number + sum(expected[need] for need in needs)) % 100_003)
    with ExitStack() as stack:
        stack.callback(storage.kill)
        with Services(tmp_path, "--object-storage-address", address) as services, Client(services.address) as client:
            services.add_agent(2)
            futures = client.get(graph, [("n", 60), ("n", 399)], block=False)
            wait_until(lambda: len(file.read_text("ascii").split()) > 120, "120 nodes ran")
            services.scheduler.kill()
            services.start_scheduler()
            for key, future in futures.items():
                assert future.result(SECONDS) == expected[key[1]].to_bytes(8, "big") * 10_000
            del futures, future
        storage.process.terminate()
        assert storage.process.wait(SECONDS) == 0 and "0 objects left" in storage.said()
    runs = file.read_text("ascii").split()
    assert len(runs) == len(set(runs)), "what agents have kept is not run again"


def test_the_client_is_killed(tmp_path: Path) -> None:
    with Services(tmp_path, "--client-timeout-seconds", "1") as services:
        services.add_agent(1)
        file = tmp_path / "lost"
        file.touch()
        words = [sys.executable, "-c", LEAVE_IN_THE_MIDDLE, services.address, str(file)]
        lost = subprocess.Popen(words, cwd=Path(__file__).parent)
        try:
            wait_until(lambda: len(file.read_text("ascii").split()) > 20, "the graph runs")
        finally:
            lost.kill()
            lost.wait(SECONDS)
        with Client(services.address) as client:
            assert client.submit(noted_total, str(file), 5, 0.0).result(SECONDS) == 5, "the worker is free"
        assert len(file.read_text("ascii").split()) < 1000, "the rest was given up"
