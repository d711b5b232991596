"""No process and no thread can be started: who needs one says so in a line, and goes on when there is room again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from scaler import Client
from support.cgroups import process_limit
from support.faults import TESTS, Service, Services
from support.gates import SECONDS
from support.processes import free_ports
from support.waiting import wait_until

CLIENT = """
import logging
import sys
from concurrent.futures import wait
from scaler import Client
from support.object_tasks import give, size_of

logging.basicConfig()
with Client(sys.argv[1], timeout_seconds=60) as client:
    unread = [client.submit(give, 100_000 + number) for number in range(3)]
    wait(unread)
    assert client.submit(give, 50_000).result(60) == bytes(50_000)  # it is connected to storage
    print("unread", flush=True)
    sys.stdin.readline()
    consumer = client.submit(size_of, unread[0])
    print("waits", flush=True)
    sys.stdin.readline()
    assert consumer.result(60) == 100_000
    assert [len(future.result(60)) for future in unread] == [100_000, 100_001, 100_002]
"""


def test_an_agent_starts_workers_when_it_can_again(tmp_path: Path) -> None:
    with process_limit() as limit, Services(tmp_path) as services:
        agent = services.add_agent(1)
        with Client(services.address, timeout_seconds=SECONDS) as client:
            worker = client.submit(os.getpid).result(SECONDS)
            for pid in agent.family():
                limit.add(pid)
            with limit.exhausted():
                os.kill(worker, signal.SIGKILL)
                waiting = client.submit(os.getpid)
                wait_until(lambda: "workers cannot be started; retrying" in agent.said(), "the agent says so")
                assert not waiting.done()
            assert waiting.result(SECONDS) != worker
            assert agent.said().count("workers cannot be started") == 1 and "Traceback" not in agent.said()


def test_a_client_without_threads_restores_what_storage_has_lost_when_it_can_again(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)}"
    storage = Service(tmp_path / "storage.log", "scaler_storage", address)
    with process_limit() as limit, Services(tmp_path, "--object-storage-address", address) as services:
        services.add_agent(1)
        command = [sys.executable, "-c", CLIENT, services.address]
        log = tmp_path / "client.log"
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        with (
            log.open("w") as said,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
            ) as client,
        ):
            assert client.stdout is not None and client.stdin is not None
            assert client.stdout.readline() == "unread\n"
            limit.add(client.pid)
            with limit.exhausted():
                storage.kill()
                storage = Service(tmp_path / "storage-2.log", "scaler_storage", address)
                wait_until(lambda: "a client cannot start threads, will try again" in log.read_text(), "it says so")
                print(file=client.stdin, flush=True)
                assert client.stdout.readline() == "waits\n"
            client.communicate("\n", timeout=4 * SECONDS)
        assert client.returncode == 0, log.read_text()
        assert "Traceback" not in log.read_text()
    storage.process.send_signal(signal.SIGTERM)
    assert storage.process.wait(SECONDS) == 0
