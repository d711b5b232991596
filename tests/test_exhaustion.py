"""No process, thread, shared memory or disk: who needs one says so in a line, and goes on when there is room again.

File descriptors are in test_descriptors.py, the disk of the journal in test_journal.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import wait
from pathlib import Path

import pytest

from scaler import Client
from scaler_protocol.errors import StorageFullError
from support.cgroups import process_limit
from support.faults import TESTS, Service, Services
from support.gates import SECONDS
from support.mounts import fill, small_memory
from support.object_tasks import give
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
    with process_limit() as limit, Services(tmp_path, "--object-storage-address", address) as services:
        storage = Service(tmp_path / "storage.log", "scaler_storage", address)
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


@pytest.mark.parametrize(
    ("option", "limit"),
    [("--segment-directory", 32_000_000), ("--spill-directory", 2_000_000)],
    ids=["shared memory", "disk"],
)
def test_object_storage_without_room_says_so_and_takes_objects_when_there_is_room(
    tmp_path: Path, option: str, limit: int
) -> None:
    """What it has taken before stays, and calls that need no room go on."""
    folder = tmp_path / "room"
    folder.mkdir()
    filler = folder / "filler"
    words = (option, str(folder), "--memory-limit", str(limit))
    with small_memory(folder, 16), Services(tmp_path, *words) as services:
        agent = services.add_agent(1)
        with Client(services.address, timeout_seconds=SECONDS) as client:
            kept = [client.submit(give, 400_000 + number) for number in range(3)]
            wait(kept, SECONDS)
            fill(filler)
            refused = [client.submit(give, 600_000) for _ in range(8)]
            wait(refused, SECONDS)  # a result that is read gives its room to the next one
            errors = [error for future in refused if (error := future.exception(SECONDS)) is not None]
            assert len(errors) >= 7
            for error in errors:
                assert isinstance(error, StorageFullError)
                assert f"{folder}/" in str(error) and "No space left on device" in str(error)
            assert client.submit(pow, 2, 3).result(SECONDS) == 8
            filler.unlink()
            assert len(client.submit(give, 600_000).result(SECONDS)) == 600_000
            assert [len(future.result(SECONDS)) for future in kept] == [400_000, 400_001, 400_002]
        said = [line for line in services.scheduler.said().splitlines() if "No space left on device" in line]
        assert len(said) == 1 and "storage is full" in said[0] and "see --memory-limit and --spill-directory" in said[0]
        assert "No space" not in agent.said()
