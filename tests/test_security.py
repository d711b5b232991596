"""A cluster whose services demand keys, with real processes: who works, who is refused and told why, who is put out."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scaler import Client, SchedulerClusterCombo
from scaler_io.security.key_files import add_key, load_credentials, make_keys, revoke_key
from scaler_io.security.keyring import KeyFileError, KeyRole, credentials_text
from scaler_io.transport.curve import new_pair
from scaler_protocol.errors import AddressError, HandshakeRefusedError, ScalerError
from scaler_scheduler.service.options import COMMAND as SCHEDULER
from support.faults import Service, Services
from support.key_tasks import grow, halves, key_directory_here, search_here, submit_within
from support.processes import PROGRAMS, command_line, descendants, free_ports
from support.waiting import wait_until

SIZE = 3_000_000
SECONDS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def keys(folder: Path) -> Path:
    directory = folder / "keys"
    make_keys(directory, new_pair)
    return directory


@pytest.fixture(scope="module")
def cluster(folder: Path, keys: Path) -> Iterator[Services]:
    """A scheduler, its storage and an agent with two workers."""
    with Services(folder, "--keys", str(keys)) as services:
        services.add_agent(2, "--keys", str(keys))
        yield services


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return finished(sys.executable, "-m", *words, **environment)


def run_top(*words: str) -> subprocess.CompletedProcess[str]:
    return finished(str(PROGRAMS / "scaler_top"), *words)


def finished(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, **environment},
    )


def only(keys: Path, folder: Path, *roles: str) -> Path:
    """A directory with the keys of these roles only."""
    folder.mkdir(mode=0o700)
    for role in roles:
        (folder / f"{role}.key").write_bytes((keys / f"{role}.key").read_bytes())
        (folder / f"{role}.key").chmod(0o600)
    return folder


def test_calls_results_and_nested_tasks_travel_with_keys(cluster: Services, keys: Path) -> None:
    with Client(address=cluster.address, keys=keys) as client:
        assert client.submit(pow, 2, 10).result() == 1024
        assert len(client.submit(grow, SIZE).result()) == SIZE
        assert client.submit(len, bytes(SIZE)).result() == SIZE
        assert client.submit(submit_within, cluster.address, SIZE).result() == SIZE
        assert client.submit(key_directory_here).result() == str(keys)
        with pickle.loads(pickle.dumps(client)) as again, client.submit(lambda value: value, client).result() as third:
            assert again.submit(pow, 2, 3).result() == third.submit(pow, 2, 3).result() == 8


def test_the_directory_may_come_from_the_environment(
    cluster: Services, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALER_KEYS", str(keys))
    with Client(address=cluster.address) as client:
        assert client.submit(pow, 2, 5).result() == 32


def test_a_client_needs_only_its_own_key(cluster: Services, keys: Path, tmp_path: Path) -> None:
    with Client(address=cluster.address, keys=only(keys, tmp_path / "mine", "client")) as client:
        assert len(client.submit(grow, SIZE).result()) == SIZE


def test_a_client_without_keys_is_told_that_they_are_demanded(cluster: Services) -> None:
    with pytest.raises(HandshakeRefusedError, match=r"demands keys: give --keys or SCALER_KEYS, or keys= of a Client"):
        Client(address=cluster.address, insecure=True, timeout_seconds=SECONDS)


def test_a_key_of_another_cluster_is_refused_with_the_reason(cluster: Services, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", new_pair)
    with pytest.raises(HandshakeRefusedError, match="has another key than the one that the key client was made for"):
        Client(address=cluster.address, keys=tmp_path / "other", timeout_seconds=SECONDS)


def test_wrong_parameters_are_named(cluster: Services, keys: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contradict each other"):
        Client(address=cluster.address, keys=keys, insecure=True)
    with pytest.raises(TypeError, match="keys is 5"):
        Client(address=cluster.address, keys=5)  # type: ignore[arg-type]
    with pytest.raises(KeyFileError, match="No such file"):
        Client(address=cluster.address, keys=tmp_path / "nowhere")
    with pytest.raises(KeyFileError, match=r"has no client\.key or worker\.key: ask who runs"):
        Client(address=cluster.address, keys=only(keys, tmp_path / "monitors", "monitor"))


def test_a_service_whose_key_file_is_damaged_says_so_in_a_line(keys: Path, tmp_path: Path) -> None:
    damaged = only(keys, tmp_path / "damaged", "server")
    path = damaged / "server.key"
    server = load_credentials(damaged, [KeyRole.SERVER])
    path.write_text(credentials_text(replace(server, secret=new_pair().secret)))
    (damaged / "authorized.toml").write_bytes((keys / "authorized.toml").read_bytes())
    (damaged / "authorized.toml").chmod(0o600)
    for module in ("scaler_scheduler", "scaler_storage"):
        done = run(module, f"tcp://127.0.0.1:{free_ports()}", "--keys", str(damaged))
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert f"{path}: its public and its secret key are no pair: copy the file again" in done.stderr


def test_a_client_whose_key_is_revoked_is_put_out_and_told_so(cluster: Services, keys: Path) -> None:
    handed = add_key(keys, "ada", KeyRole.CLIENT, new_pair)
    with Client(address=cluster.address, keys=keys) as other, Client(address=cluster.address, keys=handed) as ada:
        assert ada.submit(pow, 2, 3).result() == 8
        future = ada.submit(time.sleep, SECONDS)
        revoke_key(keys, "ada")
        with pytest.raises(ScalerError, match="does not accept the key ada"):
            future.result(timeout=SECONDS)
        assert other.submit(pow, 2, 4).result() == 16


def test_monitors_see_a_cluster_with_a_monitors_key_only(cluster: Services, keys: Path, tmp_path: Path) -> None:
    monitor = only(keys, tmp_path / "wall", "monitor")
    shown = run("scaler_launch", "status", cluster.address, SCALER_KEYS=str(monitor))
    assert "scheduler" in shown.stdout, shown.stderr
    top = f"tcp://127.0.0.1:{cluster.port + 2}"
    assert "task_manager" in run_top(top, "--once", "--keys", str(monitor)).stdout
    refused = run("scaler_launch", "status", cluster.address, "--insecure", "-t", str(SECONDS))
    assert refused.returncode == 1
    assert "demands keys" in refused.stderr
    client = only(keys, tmp_path / "mine", "client")
    assert "has no monitor.key or operator.key: ask who runs" in run_top(top, "--once", "--keys", str(client)).stderr


def test_a_dump_needs_an_operators_key(cluster: Services, keys: Path, tmp_path: Path) -> None:
    operator = only(keys, tmp_path / "operators", "operator")
    shown = run("scaler_launch", "dump", cluster.address, "-t", str(SECONDS), "--keys", str(operator))
    assert json.loads(shown.stdout)["scheduler"]["address"] == cluster.address, shown.stderr
    refused = run("scaler_launch", "dump", cluster.address, "--insecure", "-t", str(SECONDS))
    assert refused.returncode == 1
    assert "demands keys" in refused.stderr
    refused = run("scaler_launch", "dump", cluster.address, "--keys", str(only(keys, tmp_path / "mine", "client")))
    assert "has no operator.key: ask who runs" in refused.stderr


def test_no_process_has_a_secret_on_its_command_line(cluster: Services, keys: Path) -> None:
    lines = " ".join(command_line(pid) for service in cluster.started for pid in service.family())
    assert str(keys) in lines
    for path in keys.glob("*.key"):
        secret = next(line for line in path.read_text().splitlines() if line.startswith("secret")).split('"')[1]
        assert secret not in lines


def test_a_manager_and_its_units_use_the_workers_key(folder: Path, keys: Path, tmp_path: Path) -> None:
    own = tmp_path / "services"
    own.mkdir()
    words = ("--keys", str(keys), "--policy-content", "allocate=even_load; scaling=static:1")
    with Services(own, *words) as services:
        workers = only(keys, tmp_path / "workers", "worker")
        manager = Service(
            own / "manager.log", "scaler_worker.managers.main", "baremetal_native", services.address, "-wmi", "local",
            "-mtc", "1", "--keys", str(workers),
        )  # fmt: skip
        services.started.append(manager)
        with Client(address=services.address, keys=keys) as client:
            wait_until(lambda: client.submit(pow, 3, 3).result(SECONDS) == 27, "a unit")


def test_an_agent_with_a_clients_key_ends_with_the_reason(cluster: Services, keys: Path, tmp_path: Path) -> None:
    handed = only(keys, tmp_path / "mine", "client")
    ended = run("scaler_worker", cluster.address, "-n", "1", "--keys", str(handed))
    assert ended.returncode == 2
    assert "has no worker.key: ask who runs" in ended.stderr
    ended = run("scaler_worker", cluster.address, "-n", "1", "--keys", str(only(keys, tmp_path / "own", "server")))
    assert ended.returncode == 2
    assert "has no worker.key: server.key is for services alone; `scaler keys add-client" in ended.stderr
    ended = run("scaler_worker", cluster.address, "-n", "1", "--insecure")
    assert ended.returncode == 1
    assert "demands keys" in ended.stdout + ended.stderr


def test_an_address_of_other_hosts_needs_keys_or_insecure(keys: Path) -> None:
    refused = run("scaler_scheduler", "tcp://0.0.0.0:0")
    assert refused.returncode == 2
    assert "demand keys with --keys, or add --insecure" in refused.stderr
    refused = run("scaler_scheduler", "tcp://0.0.0.0:0", "--insecure", "--keys", str(keys))
    assert refused.returncode == 2
    assert "contradict each other" in refused.stderr
    refused = run("scaler_scheduler", "tcp://127.0.0.1:0", "--keys", str(keys / "nowhere"))
    assert refused.returncode == 2
    assert "nowhere: No such file" in refused.stderr
    metrics = ["tcp://127.0.0.1:0", "--metrics-address", "0.0.0.0:9100"]
    SCHEDULER.parse([*metrics, "--keys", str(keys)]).check()
    with pytest.raises(AddressError, match=r"0\.0\.0\.0:9100 can be reached from other hosts"):
        SCHEDULER.parse(metrics, {}).check()


def test_a_local_cluster_uses_the_keys_of_the_environment(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(keys.parent)
    monkeypatch.setenv("SCALER_KEYS", keys.name)  # its processes run elsewhere
    with SchedulerClusterCombo(n_workers=1, logging_level="ERROR") as cluster:
        with Client(address=cluster.get_address()) as client:
            assert len(client.submit(grow, SIZE).result()) == SIZE
            assert client.submit(submit_within, cluster.get_address(), SIZE).result() == SIZE
        with pytest.raises(HandshakeRefusedError, match="demands keys"):
            Client(address=cluster.get_address(), insecure=True, timeout_seconds=SECONDS)


def test_secrets_of_services_do_not_reach_user_code(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roles = (KeyRole.SERVER, KeyRole.OPERATOR, KeyRole.MONITOR)
    held = [load_credentials(keys, [role]).secret for role in roles]
    wanted = [halves(text) for secret in held for text in (secret, secret.hex().encode())]
    control = halves(os.urandom(32))
    monkeypatch.setenv("SCALER_KEYS", str(keys))
    # Scheduler and agent are one process, which has the key of the role server.
    with SchedulerClusterCombo(n_workers=1, logging_level="ERROR") as local, Client(local.get_address()) as client:
        assert len(client.submit(grow, SIZE).result()) == SIZE  # the worker has connected with its own key
        found, controlled = client.submit(search_here, wanted, control).result(SECONDS)
    assert controlled
    assert found == [0] * len(wanted)


def test_a_server_with_keys_writes_no_core_file(cluster: Services) -> None:
    for pid in (cluster.scheduler.pid, *descendants(cluster.scheduler.pid)):
        limits = Path(f"/proc/{pid}/limits").read_text("utf-8")
        assert re.search(r"Max core file size +0 +0 ", limits)


def test_a_file_names_the_keys_in_each_table(keys: Path, tmp_path: Path) -> None:
    port = free_ports(3)
    path = tmp_path / "cluster.toml"
    table = f'keys = "{keys}"\n'
    path.write_text(f'[scheduler]\naddress = "tcp://127.0.0.1:{port}"\n{table}[cluster]\nnum_of_workers = 1\n{table}')
    launcher = Service(tmp_path / "launcher.log", "scaler_launch", str(path))
    try:
        with Client(address=f"tcp://127.0.0.1:{port}", keys=keys, timeout_seconds=SECONDS) as client:
            assert len(client.submit(grow, SIZE).result()) == SIZE
    finally:
        launcher.process.terminate()
        assert launcher.process.wait(SECONDS) == 0, launcher.said()


# --- the user's own keys ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A cluster on loopback, of which nothing says what keys it has."""
    with Services(tmp_path_factory.mktemp("mine")) as services:
        services.add_agent(2)
        yield services


def test_all_programs_of_a_user_find_the_users_own_keys(mine: Services) -> None:
    with Client(address=mine.address) as client:
        assert len(client.submit(grow, SIZE).result()) == SIZE
        assert client.submit(submit_within, mine.address, SIZE).result() == SIZE
        assert client.submit(key_directory_here).result() == ""
    assert "scheduler" in run("scaler_launch", "status", mine.address).stdout
    assert "task_manager" in run_top(f"tcp://127.0.0.1:{mine.port + 2}", "--once").stdout
    assert json.loads(run("scaler_launch", "dump", mine.address).stdout)["scheduler"]["address"] == mine.address


def test_other_users_find_a_closed_door(mine: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for port in range(mine.port, mine.port + 2):
        with pytest.raises(HandshakeRefusedError, match=r"demands keys: give --keys or SCALER_KEYS"):
            Client(address=f"tcp://127.0.0.1:{port}", insecure=True, timeout_seconds=SECONDS)
    other = tmp_path / "runtime"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    with pytest.raises(HandshakeRefusedError, match=r"or uses no keys: give its keys \(--keys, SCALER_KEYS, keys="):
        Client(address=mine.address, timeout_seconds=SECONDS)
    refused = run("scaler_launch", "status", mine.address, "-t", str(SECONDS))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "has another key than the one that the key monitor was made for, or uses no keys" in refused.stderr


def test_a_cluster_without_keys_has_clients_that_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Services(tmp_path, "--insecure") as services:
        services.add_agent(1, "--insecure")
        with Client(address=services.address, insecure=True) as client:
            assert len(client.submit(grow, SIZE).result()) == SIZE
            assert client.submit(submit_within, services.address, SIZE).result() == SIZE
        with pytest.raises(HandshakeRefusedError, match=r"or say --insecure \(insecure=True\) if it has none"):
            Client(address=services.address, timeout_seconds=SECONDS)
        monkeypatch.setenv("SCALER_INSECURE", "yes")
        with Client(address=services.address) as client:
            assert client.submit(pow, 2, 3).result() == 8
        monkeypatch.setenv("SCALER_INSECURE", "maybe")
        with pytest.raises(ValueError, match="SCALER_INSECURE: 'maybe' is neither true nor false"):
            Client(address=services.address)


def test_a_local_cluster_has_the_users_own_keys() -> None:
    with SchedulerClusterCombo(n_workers=1, logging_level="ERROR") as local:
        with Client(address=local.get_address()) as client:
            assert len(client.submit(grow, SIZE).result()) == SIZE
        with pytest.raises(HandshakeRefusedError, match="demands keys"):
            Client(address=local.get_address(), insecure=True, timeout_seconds=SECONDS)
