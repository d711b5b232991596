"""`scaler dump` and SIGUSR1: a live scheduler under load tells who waits for what, and goes on meanwhile."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler import Client
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.processes import PROGRAMS, Terminal, free_ports, listener_of
from support.waiting import wait_until

FILES_KEPT = 5


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two workers that many tasks wait for."""
    started = LocalCluster(tmp_path_factory.mktemp("loaded") / "log", n_workers=2, max_number_of_tasks_waiting=-1)
    yield started
    started.end()


@pytest.fixture
def user(loaded: LocalCluster) -> Iterator[Client]:
    with Client(address=loaded.address, timeout_seconds=SECONDS) as connected:
        yield connected


def scaler_dump(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAMS / "scaler"), "dump", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def test_a_dump_tells_what_runs_and_what_waits(loaded: LocalCluster, user: Client, gate: Gate, tmp_path: Path) -> None:
    held = [user.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in held]
    lonely = user.submit_verbose(abs, (-4,), {}, capabilities={"gpu": 1})
    many = [user.submit(abs, -number) for number in range(20_000)]
    file = tmp_path / "dump.json"

    def dumped() -> dict[str, Any]:
        done = scaler_dump(loaded.address, "-t", str(SECONDS), "-o", file)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return read(file)

    wait_until(lambda: dumped()["tasks"]["submitted"] >= 20_003, "the scheduler has all tasks", SECONDS)
    found = dumped()
    assert found["scheduler"]["address"] == loaded.address and found["scheduler"]["version"]
    (session,) = [row for row in found["sessions"]["rows"] if row["name"] == user.name]
    assert session["tasks"] == 20_003 and session["waiting_in_lanes"] == found["tasks"]["waiting"] > 0
    (agent,) = found["agents"]["rows"]
    assert agent["workers"] == 2 and agent["runs"] == found["tasks"]["assigned"] >= 2
    (lane,) = [row for row in found["lanes"]["rows"] if row["needs"] == "gpu=1"]
    assert lane["why"] == ["it waits: no worker offers gpu=1"] and lane["first_task"] == f"{lonely.task_id:x}"
    assert found["links"]["received"]["Submit"] >= 1
    lonely.cancel()
    for arrival in arrivals:
        arrival.let_go()
    assert [future.result() for future in held] == [0, 1]
    assert [future.result() for future in many] == list(range(20_000)), "nothing was lost meanwhile"


def test_sigusr1_writes_files_that_only_their_owner_reads_while_tasks_end(loaded: LocalCluster, user: Client) -> None:
    scheduler = listener_of(loaded.address)
    folder, ended = loaded.log.parent, threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            while not ended.is_set():
                assert user.map(abs, range(500)) == list(range(500))
        except BaseException as error:
            failures.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        written: list[Path] = []
        for _ in range(FILES_KEPT + 2):
            lines = loaded.log.read_text("utf-8").count("is written to")
            os.kill(scheduler, signal.SIGUSR1)
            wait_until(
                lambda lines=lines: loaded.log.read_text("utf-8").count("is written to") > lines,  # type: ignore[misc]
                "the line about the dump",
                SECONDS,
            )
            last = loaded.log.read_text("utf-8").rpartition("is written to ")[2]
            written.append(Path(last.splitlines()[0]))
            assert read(written[-1])["scheduler"]["address"] == loaded.address
            assert stat.S_IMODE(written[-1].stat().st_mode) == 0o600 and written[-1].parent == folder
    finally:
        ended.set()
        worker.join(SECONDS)
    assert not worker.is_alive() and failures == []
    assert sorted(folder.glob("scaler-dump-*.json")) == written[-FILES_KEPT:]


def test_a_directory_that_cannot_be_written_to_is_a_warning(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    address = f"tcp://127.0.0.1:{free_ports()}"
    words = (address, "-osa", "tcp://127.0.0.1:1", "--logging-paths", "/dev/stdout", str(log))
    with Terminal(PROGRAMS / "scaler_scheduler", *words) as scheduler:
        scheduler.read_until("files and connections")
        log.unlink()
        log.parent.rmdir()
        scheduler.process.send_signal(signal.SIGUSR1)
        assert str(log.parent) in scheduler.read_until("the dump could not be written")
        assert scaler_dump(address).returncode == 0, "operators are still answered"
        assert scheduler.end() == 0


def test_a_signal_during_the_start_does_no_harm(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports()}"
    words = (address, "-osa", "tcp://127.0.0.1:1", "--logging-paths", "/dev/stdout", str(tmp_path / "log"))
    with Terminal(PROGRAMS / "scaler_scheduler", *words) as scheduler:
        scheduler.read_until("logging to")
        scheduler.process.send_signal(signal.SIGUSR1)
        scheduler.read_until("files and connections")
        assert scheduler.end() == 0


def test_who_has_nothing_to_tell_and_where_nothing_can_be_written(loaded: LocalCluster, tmp_path: Path) -> None:
    nobody = f"tcp://127.0.0.1:{free_ports()}"
    started = time.monotonic()
    done = scaler_dump(nobody, "-t", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"scaler: no scheduler answers at {nobody}; is it running there?\n"
    assert time.monotonic() >= started + 1
    done = scaler_dump(loaded.address, "-o", tmp_path / "missing" / "file", "-t", str(SECONDS))
    assert done.returncode == 1 and "No such file or directory" in done.stderr and "missing" in done.stderr
    assert scaler_dump().returncode == 2
    assert json.loads(scaler_dump(loaded.address, "-t", str(SECONDS)).stdout)["scheduler"]["address"] == loaded.address


def test_another_service_says_what_it_is(loaded: LocalCluster) -> None:
    host, _, port = loaded.address.rpartition(":")
    done = scaler_dump(f"{host}:{int(port) + 1}", "-t", str(SECONDS))
    assert done.returncode == 1 and "this is the address of the object storage server" in done.stderr
