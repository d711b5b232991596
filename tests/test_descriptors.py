"""Limits of open files: servers take what they may have, keep a reserve, and workers have what was set for them."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from scaler import Client
from support.faults import resident
from support.gates import SECONDS
from support.processes import Terminal, free_ports
from support.waiting import wait_until

MEBI = 1024 * 1024
LIMIT = 256
"""Of a scheduler that may not have more."""


@contextlib.contextmanager
def limited(limits: str, module: str, *words: str) -> Iterator[Terminal]:
    """A program of the engine that is started with these limits of open files."""
    with Terminal("sh", "-c", f'{limits}; exec "$@"', "sh", sys.executable, "-m", module, *words) as program:
        yield program


def test_connections_do_not_take_the_last_descriptors() -> None:
    port = free_ports(3)
    with limited(f"ulimit -n {LIMIT}", "scaler_scheduler", f"tcp://127.0.0.1:{port}") as scheduler:
        scheduler.read_until("ipc://")
        with contextlib.ExitStack() as stack:
            for _ in range(LIMIT - 31):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            refused = scheduler.read_until("refused")
            assert f"may have {LIMIT} files open" in refused and "ulimit -n" in refused
            context = stack.enter_context(zmq.Context())
            for _ in range(16):  # the first ones may find room that the start of object storage has left
                monitor = stack.enter_context(context.socket(zmq.SUB))
                monitor.linger = 0
                monitor.subscribe(b"")
                monitor.connect(f"tcp://127.0.0.1:{port + 2}")
            scheduler.read_until("refused")  # a monitor
            taken = Path(f"/proc/{scheduler.process.pid}/fd")
            wait_until(lambda: len(list(taken.iterdir())) <= LIMIT - 32, "the reserve is free again")
        with Client(f"tcp://127.0.0.1:{port}", timeout_seconds=SECONDS) as client:
            assert client.identity
        assert scheduler.end() == 0


@pytest.mark.parametrize("module", ["scaler_scheduler", "scaler_storage"])
def test_more_connections_at_once_than_descriptors(module: str) -> None:
    """They are refused without much ado: memory stays what it was, and whoever comes later is served."""
    port = free_ports(3)
    with limited(f"ulimit -n {LIMIT}", module, f"tcp://127.0.0.1:{port}") as server:
        server.read_until(f"may have {LIMIT} files")
        before, _ = resident(server.process.pid)
        with contextlib.ExitStack() as stack:
            strangers = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS)) for _ in range(LIMIT + 100)
            ]
            server.read_until(" refused: this process may have")
            for stranger in strangers[LIMIT:]:
                while stranger.recv(64):  # what ZeroMQ greets with, then the end
                    pass
        taken = Path(f"/proc/{server.process.pid}/fd")
        wait_until(lambda: len(list(taken.iterdir())) < LIMIT // 2, "strangers are gone")
        _, peak = resident(server.process.pid)
        assert peak - before < 30 * MEBI
        assert server.end() == 0


def test_agents_take_what_they_may_have_and_workers_what_was_set() -> None:
    port = free_ports(3)
    address = f"tcp://127.0.0.1:{port}"
    raised = r"may have 1000 files and connections open"
    with (
        limited("ulimit -Sn 300; ulimit -Hn 1000", "scaler_scheduler", address) as scheduler,
        limited("ulimit -Sn 300; ulimit -Hn 1000", "scaler_worker", "-n", "1", address) as agent,
        Client(address, timeout_seconds=SECONDS) as client,
    ):
        for program in (scheduler, agent):
            program.read_until(raised)
        assert client.submit(resource.getrlimit, resource.RLIMIT_NOFILE).result(SECONDS) == (300, 1000)
        assert agent.end() == scheduler.end() == 0


@pytest.mark.parametrize("module", ["scaler_scheduler", "scaler_storage"])
@pytest.mark.parametrize("limit", [20, 32, 64])
def test_a_server_with_few_descriptors_starts_or_says_why_not(module: str, limit: int) -> None:
    with limited(f"ulimit -n {limit}", module, f"tcp://127.0.0.1:{free_ports(3)}") as server:
        line = server.read_until(f" {limit} ")
        if f"may have {limit} files and connections open" in line:
            assert server.end() == 0
        else:
            remedy = f"Too many open files: 16 more are needed, and {limit} is the limit, which ulimit -n raises"
            assert remedy in line and server.process.wait(SECONDS) == 1
            assert server.rest() == [] and "Traceback" not in "".join(server.lines)


@pytest.mark.parametrize(
    ("limits", "workers", "needs"),
    [
        ("ulimit -n 20", 1, "an agent of 1 worker needs 84, and 20 is"),
        ("ulimit -n 70", 2, "an agent of 2 workers needs 88, and 70 is"),
        ("ulimit -Sn 40", 1, "each worker needs 64, and 40 is"),
    ],
)
def test_an_agent_with_too_few_descriptors_says_so_and_ends(limits: str, workers: int, needs: str) -> None:
    with limited(limits, "scaler_worker", "-n", str(workers), f"tcp://127.0.0.1:{free_ports(3)}") as agent:
        said = agent.read_until("Too many open files")
        assert f"{needs} the limit, which ulimit -n raises, or LimitNOFILE= of systemd" in said
        assert agent.process.wait(SECONDS) == 1 and agent.rest() == []


def test_few_descriptors_serve_as_many_workers_as_were_asked_for() -> None:
    """Just as many as the agent demands: workers start, use object storage, and stay."""
    port = free_ports(3)
    address = f"tcp://127.0.0.1:{port}"
    with (
        limited("true", "scaler_scheduler", address),
        limited("ulimit -n 92", "scaler_worker", "-n", "3", address) as agent,
        Client(address, timeout_seconds=SECONDS) as client,
    ):
        agent.read_until("Worker[2] started")
        for _ in range(3):
            assert sum(map(len, client.map(bytes, [100_000] * 30))) == 3_000_000
        assert agent.end() == 0
        said = "".join([*agent.lines, *agent.rest()])
    assert "Worker[2] started" in said and "Too many open files" not in said and "ended itself" not in said


def test_a_local_cluster_with_too_few_descriptors_says_so_and_ends() -> None:
    code = "from scaler import SchedulerClusterCombo\nif __name__ == '__main__': SchedulerClusterCombo(n_workers=2)"
    words = ["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", code]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ran.returncode == 1
    assert "local cluster: Too many open files: an agent of 2 workers needs 88, and 64 is the limit" in ran.stderr
