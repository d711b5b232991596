"""The local cluster of `SchedulerClusterCombo`: how it starts, what it takes, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler_protocol import errors
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.processes import PROGRAMS, Terminal, Watched, descendants, free_ports, listener_of
from support.tasks import alone, square, worker_pid

ORPHANS = """
import sys
from scaler import Client, SchedulerClusterCombo

cluster = SchedulerClusterCombo(n_workers=2, logging_level="ERROR")
client = Client(address=cluster.get_address())
client.submit(int, 1).result()
print(cluster.get_address(), flush=True)
sys.stdin.read() or __import__("threading").Event().wait()
"""

NO_SHUTDOWN = """
from scaler import Client, SchedulerClusterCombo

cluster = SchedulerClusterCombo(n_workers=1, logging_level="ERROR")
client = Client(address=cluster.get_address())
print(client.submit(lambda: 6 * 7).result())
"""


def refused(address: str) -> bool:
    """Whether no process listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


def test_a_combo_takes_an_address_and_every_old_name(tmp_path: Path) -> None:
    address = f"tcp://127.0.0.1:{free_ports()}"
    log = tmp_path / "log"
    combo = SchedulerClusterCombo(
        address=address,
        n_workers=2,
        per_worker_queue_size=5,
        per_worker_capabilities={"special": -1},
        task_timeout_seconds=30,
        max_number_of_tasks_waiting=100,
        logging_paths=(str(log),),
        logging_level="DEBUG",
        event_loop="builtin",
        threads_per_worker=2,
        host_capabilities={"license": 1},
    )
    try:
        assert combo.get_address() == address
        with Client(address=address) as client:
            assert client.submit_verbose(square, (3,), {}, {"special": -1}).result(SECONDS) == 9
            assert client.submit(os.getenv, "OMP_NUM_THREADS").result(SECONDS) == "2"
            turns = client.starmap(alone, [(tmp_path / "lock",)] * 20, capabilities={"license": 1})
            assert turns == [True] * 20, "two ran at once"
        with pytest.raises((OSError, RuntimeError)):
            SchedulerClusterCombo(address=address, n_workers=1, logging_paths=("/dev/null",))
    finally:
        combo.shutdown()
        combo.shutdown()
    assert refused(address)
    assert "starting 2 workers," in log.read_text("utf-8")


def test_a_combo_whose_port_is_0_has_three_in_a_row(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with SchedulerClusterCombo(
        address="tcp://127.0.0.1:0", n_workers=1, logging_paths=(str(log),), logging_level="INFO"
    ) as combo:
        address = combo.get_address()
        with Client(address=address) as client:
            assert client.submit(bytes, 1_000_000).result(SECONDS) == bytes(1_000_000)
    said, port = log.read_text("utf-8"), int(address.rpartition(":")[2])
    assert f"object storage address tcp://127.0.0.1:{port + 1}" in said
    assert f"monitor address tcp://127.0.0.1:{port + 2}" in said


def test_a_combo_without_workers_is_legal_and_unprotected_ones_can_be_shut_down(tmp_path: Path) -> None:
    with SchedulerClusterCombo(n_workers=0, protected=False, logging_paths=(str(tmp_path / "log"),)) as combo:
        address = combo.get_address()
        client = Client(address=address)
        waiting = client.submit(square, 1)
        assert not waiting.done()
        watched = Watched([listener_of(address)])
        client.shutdown()
        assert waiting.cancelled()
        with pytest.raises(errors.ClientQuitError):
            client.submit(square, 1)
        assert watched.wait_gone(5) == []
        watched.close()
        assert refused(address)


def test_an_orderly_end_is_no_reason_to_warn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(3):  # who of the services ends first is a matter of luck
        with (
            SchedulerClusterCombo(n_workers=2, logging_paths=(str(log),), logging_level="WARNING") as combo,
            Client(address=combo.get_address()) as client,
        ):
            assert client.map(square, range(10))[-1] == 81
    assert log.read_text("utf-8") == ""


def test_the_end_of_a_cluster_ends_the_futures_of_its_clients_at_once(tmp_path: Path) -> None:
    logs = (str(tmp_path / "log"),)
    with (
        SchedulerClusterCombo(n_workers=0, logging_paths=logs) as combo,
        Client(address=combo.get_address(), timeout_seconds=1000) as client,
    ):
        waiting = client.submit(square, 1)
        combo.shutdown()
        with pytest.raises(errors.SchedulerLostError, match=r"the cluster at tcp://.* has ended: its process was"):
            waiting.result(SECONDS)
        assert isinstance(client.submit(square, 2).exception(SECONDS), errors.SchedulerLostError)
    with SchedulerClusterCombo(n_workers=0, protected=False, logging_paths=logs) as combo:
        address = combo.get_address()
        with Client(address=address, timeout_seconds=1000) as client, Client(address=address) as other:
            waiting = client.submit(square, 1)
            other.shutdown()
            with pytest.raises(errors.SchedulerLostError, match="has ended: a client has shut it down"):
                waiting.result(SECONDS)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_comes_back_gets_everything_back(gate: Gate, number: signal.Signals) -> None:
    def hold(port: int) -> str:
        import os
        import socket

        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(f"{os.getpid()} held\n".encode())
            line.recv(1)
        return "held"

    port = free_ports(3)
    address = f"tcp://127.0.0.1:{port}"
    command = (PROGRAMS / "scaler_scheduler", address, "-osa", f"tcp://127.0.0.1:{port + 1}")
    with (
        Terminal(PROGRAMS / "scaler_cluster", "-n", "1", address) as agent,
        Terminal(*command) as first,
        Client(address=address, timeout_seconds=SECONDS) as client,
    ):
        first.read_until("monitor address")
        future = client.submit(hold, gate.port)
        behind = [client.submit(abs, -number) for number in range(5)]
        arrival = gate.arrive()
        first.end(number)
        with Terminal(*command) as second:
            second.read_until("monitor address")
            arrival.let_go()
            assert future.result(SECONDS) == "held" and future.profiling_info().attempt == 1
            assert [each.result(SECONDS) for each in behind] == list(range(5))
            assert client.submit(abs, -1).result(SECONDS) == 1
            assert agent.end() == 0 and second.end() == 0


def test_a_lost_scheduler_ends_the_futures_after_the_timeout(tmp_path: Path) -> None:
    with SchedulerClusterCombo(n_workers=0, logging_paths=(str(tmp_path / "log"),)) as combo:
        address = combo.get_address()
        with Client(address=address, timeout_seconds=0.7) as client:
            waiting = client.submit(square, 1)
            os.kill(listener_of(address), signal.SIGKILL)
            error = waiting.exception(SECONDS)
            assert isinstance(error, errors.SchedulerLostError) and address in str(error)
            assert isinstance(client.submit(square, 2).exception(SECONDS), errors.SchedulerLostError)


@pytest.mark.parametrize("wrong", [{"n_wrkers": 1}, {}, {"n_workers": 1, "hard_processor_suspend": True}])
def test_settings_that_a_combo_does_not_know_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises((TypeError, ValueError)):
        SchedulerClusterCombo(**wrong)  # type: ignore[arg-type]


def test_nothing_is_left_when_the_caller_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS, "utf-8")
    with Terminal(sys.executable, script) as terminal:
        address = terminal.read_until("tcp://").strip()
        processes = Watched(descendants(terminal.process.pid))
        try:
            terminal.process.kill()
            assert processes.wait_gone(5) == []
        finally:
            processes.close()
    assert refused(address)


def test_nothing_is_left_when_the_caller_forgets_to_shut_down(tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(NO_SHUTDOWN, "utf-8")
    with Terminal(sys.executable, "-W", "error", script) as terminal:
        processes = Watched(descendants(terminal.process.pid))
        terminal.read_until("42")
        assert terminal.process.wait(SECONDS) == 0
        assert processes.wait_gone(5) == []
        processes.close()
    assert terminal.lines == ["42"], "no main guard, no word on stderr"


def test_a_worker_that_dies_is_replaced_and_its_task_runs_again(cluster: LocalCluster, gate: Gate) -> None:
    with Client(address=cluster.address) as client:
        future = client.submit(wait_at, gate.port, 1)
        first = gate.arrive()
        os.kill(first.pid, signal.SIGKILL)
        second = gate.arrive()
        assert second.pid != first.pid
        second.let_go()
        assert future.result(SECONDS) == 1 and future.profiling_info().attempt == 2


def test_a_task_that_kills_its_workers_is_given_up(cluster: LocalCluster) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with Client(address=cluster.address) as client:
        error = client.submit(die).exception(SECONDS)
        assert isinstance(error, errors.WorkerDiedError)
        assert "SIGKILL" in str(error)
        assert client.submit(worker_pid).result(SECONDS) > 0


def test_workers_see_the_path_and_the_folder_of_the_caller(cluster: LocalCluster) -> None:
    def look() -> tuple[str, list[str]]:
        return os.getcwd(), sys.path

    with Client(address=cluster.address) as client:
        folder, path = client.submit(look).result(SECONDS)
    assert folder == os.getcwd() and set(path) >= {entry for entry in sys.path if entry}


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (["scaler_cluster", "{}", "-n", "1"], "agent"),
        (["scaler_worker_manager", "baremetal_native", "{}", "-wmi", "local"], "worker manager"),
    ],
    ids=["agent", "manager"],
)
def test_agents_and_managers_name_the_address_of_the_other_service(words: list[str], who: str) -> None:
    with SchedulerClusterCombo(n_workers=0) as cluster:
        host, port = cluster.get_address().rsplit(":", 1)
        storage = f"{host}:{int(port) + 1}"
        command = [str(PROGRAMS / words[0]), *(word.format(storage) for word in words[1:])]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=SECONDS)
    reason = (
        f"this is the address of the object storage server: give that of the scheduler, whose port is {port} by default"
    )
    assert done.returncode == 1
    assert f"the scheduler at {storage} refuses this {who}: {reason}" in done.stdout


def test_the_address_of_the_other_service_is_named_as_what_it_is() -> None:
    with SchedulerClusterCombo(n_workers=1) as cluster:
        scheduler = cluster.get_address()
        host, port = scheduler.rsplit(":", 1)
        storage = f"{host}:{int(port) + 1}"
        reason = (
            "this is the address of the object storage server: "
            f"give that of the scheduler, whose port is {port} by default"
        )
        with pytest.raises(
            errors.HandshakeRefusedError, match=f"^the scheduler at {storage} refuses this client: {reason}$"
        ):
            Client(storage)
        with Client(scheduler, object_storage_address=scheduler) as client:
            reason = f"this is the address of the scheduler: give that of the object storage server, {storage}"
            with pytest.raises(
                errors.HandshakeRefusedError, match=f"object storage server {scheduler} refused .*: {reason}$"
            ):
                client.send_object(bytes(100_000))
