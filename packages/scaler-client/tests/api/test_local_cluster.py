"""A real local cluster: services as processes, ended in every way."""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
import os
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler_client.api import local_cluster
from scaler_client.api.client import Client
from scaler_client.api.local_cluster import SchedulerClusterCombo
from scaler_io.ports import free_port
from scaler_protocol.errors import StorageFullError
from support.fault_tasks import step
from support.gates import SECONDS, Gate, wait_at
from support.processes import command_line, descendants
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux")
QUIET: dict[str, Any] = {"logging_paths": ("/dev/null",)}


OTHERS: set[int] = set()


@pytest.fixture(autouse=True, scope="module")
def _others() -> None:
    """Clusters of other tests may be up in this process."""
    OTHERS.update(children(os.getpid()))


def children(pid: int) -> list[int]:
    """All living processes that were started for this one meanwhile, by what their command lines say."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            except OSError:
                continue
            if b"--parent-pid" in words and words[words.index(b"--parent-pid") + 1] == b"%d" % pid and state != "Z":
                found.append(int(entry.name))
    return [pid for pid in found if pid not in OTHERS]


def test_tasks_run_on_a_local_cluster() -> None:
    with SchedulerClusterCombo(n_workers=2, **QUIET) as cluster, Client(cluster.get_address()) as client:
        assert client.submit(math.sqrt, 16).result(30) == 4
        assert sum(client.map(math.sqrt, range(100))) == pytest.approx(661.46, abs=0.01)
        assert len(children(os.getpid())) >= 2
    assert not children(os.getpid())


@pytest.mark.parametrize("first", [2, 0])
def test_a_cluster_is_scaled_while_tasks_run(first: int, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with SchedulerClusterCombo(first, **QUIET) as cluster, Client(cluster.get_address()) as client:
        futures = [client.submit(step, str(begun), number, 0.2) for number in range(16)]
        for n in (4, 1, 3, 0):
            cluster.scale(n)
            assert client.workers().count == n
        futures.append(client.submit(step, str(begun), 16, 0.0))
        cluster.scale(0)
        assert client.workers().count == 0 and not futures[-1].done(), "without workers tasks wait"
        cluster.scale(2)
        assert [future.result(SECONDS)[0] for future in futures] == list(range(17))
    assert len(begun.read_text("utf-8").splitlines()) == 17, "each task has run once"
    assert not children(os.getpid())


def test_scaling_waits_for_running_tasks_only_so_long() -> None:
    with (
        Gate() as gate,
        SchedulerClusterCombo(1, **QUIET) as cluster,
        Client(cluster.get_address()) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        future = client.submit(wait_at, gate.port, 1)
        task = gate.arrive()
        with pytest.raises(TimeoutError, match=r"does not have 0 workers after 0\.01 s: .*; scale\(0\) waits again"):
            cluster.scale(0, timeout=0.01)
        again = threads.submit(cluster.scale, 0)
        wait_until(lambda: client.workers().count == 0)
        assert not again.done(), "the task still runs"
        task.let_go()
        again.result(SECONDS)
        assert future.result(SECONDS) == 1 and client.workers().count == 0


def test_a_later_call_of_scale_replaces_one_that_waits(tmp_path: Path) -> None:
    with (
        Gate() as gate,
        SchedulerClusterCombo(1, **QUIET) as cluster,
        Client(cluster.get_address()) as client,
        ThreadPoolExecutor(2) as threads,
    ):
        future = client.submit(wait_at, gate.port, 7)
        task = gate.arrive()
        waiting = threads.submit(cluster.scale, 0, 120)
        wait_until(lambda: client.workers().count == 0)
        later = threads.submit(cluster.scale, 2, 120)
        with pytest.raises(RuntimeError, match=r"scale\(0\) is not waited for any more: a later call"):
            waiting.result(20)
        assert not future.done(), "the task for which the first call waited still runs"
        task.let_go()
        assert future.result(20) == 7
        later.result(60)
        assert client.workers().count == 2


def test_a_shutdown_also_ends_what_scale_is_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = SchedulerClusterCombo(0, **QUIET)
    run = SchedulerClusterCombo._run
    with ThreadPoolExecutor(1) as threads:

        def shut_down_meanwhile(self: SchedulerClusterCombo, *words: Any) -> None:
            shutting = threads.submit(cluster.shutdown)
            wait_until(lambda: shutting.done() or cluster._ending)
            run(self, *words)

        monkeypatch.setattr(SchedulerClusterCombo, "_run", shut_down_meanwhile)
        with pytest.raises(RuntimeError, match="has ended and cannot be scaled"):
            cluster.scale(2)
    assert not children(os.getpid())


def test_a_program_with_many_open_files_has_a_local_cluster() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with contextlib.ExitStack() as files:
            for _ in range(1100):  # select.select() refuses descriptors above 1,023
                files.enter_context(open(os.devnull, "rb"))
            with SchedulerClusterCombo(1, **QUIET) as cluster, Client(cluster.get_address()) as client:
                cluster.scale(2)
                assert client.workers().count == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_cannot_be_scaled_says_why() -> None:
    cluster = SchedulerClusterCombo(0, **QUIET)
    for n in (-1, 4097, 1.5):
        with pytest.raises(ValueError, match=r"^n is "):
            cluster.scale(n)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^timeout is "):
        cluster.scale(1, timeout=-1)
    cluster.scale(1)
    cluster._services[-1].kill()
    with pytest.raises(RuntimeError, match="the agent has ended, so there are no 2 workers"):
        cluster.scale(2)
    cluster.scale(2)
    cluster.shutdown()
    with pytest.raises(RuntimeError, match="has ended and cannot be scaled"):
        cluster.scale(1)


def test_shutdown_is_idempotent_and_frees_the_ports() -> None:
    cluster = SchedulerClusterCombo(n_workers=0, **QUIET)
    port = int(cluster.get_address().rpartition(":")[2])
    cluster.shutdown()
    cluster.shutdown()
    for offset in range(3):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port + offset))


def test_without_workers_tasks_wait() -> None:
    with SchedulerClusterCombo(0, protected=False, **QUIET) as cluster:
        with Client(cluster.get_address()) as client:
            future = client.submit(math.sqrt, 16)
            with pytest.raises(TimeoutError):
                future.result(0.1)
        with Client(cluster.get_address()) as client:
            client.shutdown()
        wait_until(lambda: not children(os.getpid()))


def test_a_protected_scheduler_refuses_to_end() -> None:
    refused = pytest.raises(ValueError, match=r"Scheduler is in protected mode\. Can't shutdown")
    with SchedulerClusterCombo(0, **QUIET) as cluster, Client(cluster.get_address()) as client, refused:
        client.shutdown()


def test_old_names() -> None:
    with SchedulerClusterCombo(n_workers=0, per_worker_queue_size=3, worker_io_threads=1, **QUIET):
        pass
    with pytest.raises(ValueError, match="load_balance_seconds=5 has no effect any more"):
        SchedulerClusterCombo(n_workers=0, load_balance_seconds=5)
    with pytest.raises(TypeError, match="n_threads"):
        SchedulerClusterCombo(n_workers=0, n_threads=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="n_workers is -1"):
        SchedulerClusterCombo(n_workers=-1)
    names = list(inspect.signature(SchedulerClusterCombo).parameters)
    assert names[:5] == ["n_workers", "address", "object_storage_address", "monitor_address", "per_worker_capabilities"]


def test_storage_has_the_memory_and_the_disk_that_are_given_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memory").mkdir()
    (tmp_path / "disk").mkdir()
    with SchedulerClusterCombo(
        n_workers=1,
        logging_paths=("log",),
        logging_level="INFO",
        memory_limit=2_000_000,
        segment_directory="memory",
        spill_directory=tmp_path / "disk",
        spill_limit=2_000_000,
        object_retention_seconds=77,
    ) as cluster:
        storage = command_of("scaler_storage", cluster)
        assert {
            "--memory-limit=2000000",
            f"--segment-directory={tmp_path / 'memory'}",
            "--spill-limit=2000000",
        } <= storage
        assert "--object-retention-seconds=77.0" in storage
        with Client(cluster.get_address()) as client:
            sent = [client.send_object(bytes([number]) * 900_000) for number in range(3)]
            assert [client.submit(len, reference).result() for reference in sent] == [900_000] * 3
            with pytest.raises(StorageFullError):
                client.submit(operator.mul, b"a", 4_000_000).result()
        assert "keep up to 2,000,000 bytes in" in (tmp_path / "log").read_text("utf-8")


def command_of(module: str, cluster: SchedulerClusterCombo) -> set[str]:
    """The words that start the service of this module: the scheduler's child."""
    found: set[str] = set()

    def look() -> bool:
        for entry in Path("/proc").glob("[0-9]*"):
            words = command_line(int(entry.name)).split(" ")
            if module in words and words[words.index(module) + 1].startswith(_storage_of(cluster)):
                found.update(words)
        return bool(found)

    wait_until(look)
    return found


def _storage_of(cluster: SchedulerClusterCombo) -> str:
    address, _, port = cluster.get_address().rpartition(":")
    return f"{address}:{int(port) + 1}"


def test_a_missing_server_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install scaler"):
        SchedulerClusterCombo(n_workers=1)


def test_an_address_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RuntimeError, match="ended at once, with exit code 1"):
            SchedulerClusterCombo(n_workers=0, address=f"tcp://127.0.0.1:{taken.getsockname()[1]}", **QUIET)
    assert not children(os.getpid())
    assert "in use" in capfd.readouterr().err


def test_a_protected_scheduler_refuses_all_who_ask_at_once() -> None:
    with SchedulerClusterCombo(n_workers=0, **QUIET) as cluster, Client(cluster.get_address()) as client:
        for _ in range(20):
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(client.shutdown) for _ in range(4)]
                assert [type(each.exception(20)) for each in asked] == [ValueError] * 4


def test_a_port_that_was_taken_in_between(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(local_cluster, "free_port", lambda: next(ports))
        with SchedulerClusterCombo(n_workers=0, **QUIET) as cluster, Client(cluster.get_address()):
            pass


SCRIPT = """
import os, sys, time
from scaler import Client, SchedulerClusterCombo
import neighbour

def work(x):
    return neighbour.double(x), os.getcwd()

cluster = SchedulerClusterCombo(n_workers=1)
client = Client(cluster.get_address())
print(client.submit(work, 21).result(30), flush=True)
print(client.submit(neighbour.double, 4).result(30), flush=True)
if sys.argv[1] == "stay":
    time.sleep(60)
"""


def script(folder: Path, how: str) -> subprocess.Popen[str]:
    (folder / "neighbour.py").write_text("def double(x):\n    return 2 * x\n", encoding="utf-8")
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    output = subprocess.PIPE
    return subprocess.Popen([sys.executable, "script.py", how], cwd=folder, stdout=output, stderr=output, text=True)


def test_a_script_without_a_main_guard_sees_its_modules_prints_only_its_own_and_ends_alone(tmp_path: Path) -> None:
    with script(tmp_path, "end") as process:
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert (output, errors) == (f"(42, {str(tmp_path)!r})\n8\n", "")
    assert not children(process.pid)


def test_nothing_is_left_of_a_script_that_is_killed(tmp_path: Path) -> None:
    with script(tmp_path, "stay") as process:
        assert process.stdout is not None and process.stdout.readline() and process.stdout.readline()
        assert children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        wait_until(lambda: not children(process.pid), "the cluster ends with its parent", 5)


def test_no_process_of_a_local_cluster_loads_openssl(tmp_path: Path) -> None:
    """It takes up to 2 MB of each, and time before the first result."""
    with script(tmp_path, "stay") as process:
        assert process.stdout is not None and process.stdout.readline() and process.stdout.readline()
        pids = [process.pid, *descendants(process.pid)]
        assert len(pids) >= 5, "script, scheduler and agent, storage, template, worker"
        maps = {command_line(pid): Path(f"/proc/{pid}/maps").read_text("utf-8") for pid in pids}
        process.kill()
    assert [command for command, text in maps.items() if "libcrypto" in text or "_hashlib" in text] == []
    wait_until(lambda: not children(process.pid), "the cluster ends with its parent", 5)


def test_tasks_have_tls_and_the_hashes_of_openssl() -> None:
    def tls_and_hashes() -> tuple[bool, int]:
        import asyncio.sslproto
        import hashlib
        import ssl

        scrypt = hashlib.scrypt(b"password", salt=b"salt", n=2, r=1, p=1)
        return vars(asyncio.sslproto)["ssl"] is ssl, len(scrypt)

    with SchedulerClusterCombo(n_workers=1, **QUIET) as cluster, Client(cluster.get_address()) as client:
        assert client.submit(tls_and_hashes).result(SECONDS) == (True, 64)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_leaves_the_cluster_alone() -> None:
    with SchedulerClusterCombo(n_workers=0, **QUIET) as cluster:
        code = f"import os; os.kill({os.getpid()}, 0)"
        child = os.fork()
        if not child:
            cluster.shutdown()
            os._exit(0)
        os.waitpid(child, 0)
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        with Client(cluster.get_address()):
            pass


@pytest.mark.parametrize(
    ("preload", "text"),
    [
        ("math:sqrt(-1)", "preload math:sqrt(-1) failed: ValueError"),
        ("no.such:thing", "ModuleNotFoundError"),
        ("os:_exit(3)", "ended before they were ready"),
        ("nonsense", "not 'nonsense'"),
    ],
)
def test_a_preload_that_fails_is_told_at_construction(preload: str, text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        SchedulerClusterCombo(n_workers=2, preload=preload).shutdown()
    assert text in str(caught.value)
    assert ("Traceback (most recent call last)" in str(caught.value)) == (" failed: " in text or "Error" in text)


def test_a_preload_that_hangs_is_told_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "PRELOAD_SECONDS", 2.0)
    with pytest.raises(TimeoutError, match=r"no worker has run preload time:sleep\(1000\) within 2 s"):
        SchedulerClusterCombo(n_workers=1, preload="time:sleep(1000)", **QUIET)
    assert not children(os.getpid())


def test_a_preload_that_succeeds() -> None:
    preload = "os:putenv('SCALER_TEST', 'yes')"
    with SchedulerClusterCombo(n_workers=1, preload=preload) as cluster, Client(cluster.get_address()) as client:
        assert client.submit(abs, -1).result() == 1
    with SchedulerClusterCombo(n_workers=0, preload=preload):
        pass
