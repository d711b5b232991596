"""`scaler FILE`: everything starts in order, and nothing survives, whatever the signal and whenever it comes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaler import Client
from scaler_launch.supervisor import RESTARTS
from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, Watched, children, command_line, descendants, free_ports, taken_port
from support.waiting import wait_until

STAGES = (
    "",
    "the object storage server runs",
    "the scheduler runs",
    "the worker manager local runs",
    "workers wanted",
)
"""What the launcher has printed when the signal comes; nothing yet at the first one."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
END_SECONDS = 5.0
FILE = """
[object_storage_server]
address = "tcp://127.0.0.1:{storage}"
[scheduler]
address = "tcp://127.0.0.1:{scheduler}"
policy_content = "allocate=even_load; scaling=static:2"
"""
MANAGER = """
[[worker_manager]]
type = "baremetal_native"
worker_manager_id = "local"
max_task_concurrency = 2
"""


class Launched:
    """A running launcher on ports of its own."""

    def __init__(self, folder: Path, workers: str = MANAGER) -> None:
        self.port = free_ports(4)
        self.address = f"tcp://127.0.0.1:{self.port}"
        file = folder / "cluster.toml"
        file.write_text(FILE.format(scheduler=self.port, storage=self.port + 3) + workers, encoding="utf-8")
        self.terminal = Terminal(PROGRAMS / "scaler", str(file), cwd=folder)
        self.pid = self.terminal.process.pid

    def read_until(self, text: str) -> None:
        if text:
            self.terminal.read_until(text)

    def service(self, module: str) -> int:
        """The process id of the service of this module."""
        [pid] = [pid for pid in children(self.pid) if f" {module} " in command_line(pid)]
        return pid

    def end(self, number: signal.Signals) -> int:
        """Send a signal; no process and no port is left soon after. Returns the exit code."""
        watched = Watched([self.pid, *descendants(self.pid)])
        try:
            os.kill(self.pid, number)
            until = time.monotonic() + END_SECONDS
            code = self.terminal.process.wait(SECONDS)
            assert watched.wait_gone(max(0.0, until - time.monotonic())) == []
            # What was started at the very moment of the signal.
            wait_until(lambda: not self.others(), "the end of all services", max(0.1, until - time.monotonic()))
            assert taken_port(range(self.port, self.port + 4)) is None
        finally:
            watched.close()
        return code

    def others(self) -> list[str]:
        """Command lines of living processes that know this cluster."""
        found = [command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
        return [line for line in found if f"--parent-pid {self.pid} " in line or self.address in line]


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    running = Launched(tmp_path)
    with running.terminal:
        yield running


def test_one_file_starts_a_cluster_that_works(launched: Launched) -> None:
    launched.read_until("the worker manager local runs")
    with Client(launched.address) as client:
        assert client.map(abs, [-1, 2]) == [1, 2]
    assert launched.end(signal.SIGINT) == 0
    assert "Traceback" not in "\n".join(launched.terminal.lines + launched.terminal.rest())


@pytest.mark.parametrize(
    "workers",
    [MANAGER, f'{MANAGER}mode = "fixed"\n', "[cluster]\nnum_of_workers = 1\n"],
    ids=["manager", "fixed", "cluster"],
)
def test_modules_of_the_current_directory_are_for_tasks_only(tmp_path: Path, workers: str) -> None:
    for name in ("json", "queue", "random", "select", "shlex", "statistics", "typing", "zmq"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name}.py was imported')\n", encoding="utf-8")
    (tmp_path / "mine.py").write_text("VALUE = 41\n", encoding="utf-8")
    running = Launched(tmp_path, workers)
    with running.terminal:
        running.read_until("Worker[0] started")
        with Client(running.address) as client:
            assert client.submit(eval, "__import__('mine').VALUE + 1").result(SECONDS) == 42
        assert running.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("stage", "number"),
    [(stage, signal.SIGTERM) for stage in STAGES] + [(STAGES[0], signal.SIGKILL), (STAGES[-1], signal.SIGKILL)],
)
def test_nothing_survives_a_signal(launched: Launched, stage: str, number: signal.Signals) -> None:
    wait_until(lambda: catches(launched.pid, signal.SIGTERM), "the launcher's own handlers")
    launched.read_until(stage)
    assert launched.end(number) in (0, -number)
    assert "Traceback" not in "\n".join(launched.terminal.lines + launched.terminal.rest())


def test_each_service_that_dies_is_started_again_and_the_cluster_works(launched: Launched) -> None:
    launched.read_until("workers wanted")
    with Client(launched.address) as client:
        for module, name in (
            ("scaler_storage", "object storage server"),
            ("scaler_scheduler", "scheduler"),
            ("scaler_worker.managers.main", "worker manager local"),
        ):
            os.kill(launched.service(module), signal.SIGKILL)
            launched.read_until(f"scaler: the {name} has ended with signal SIGKILL; its last lines:")
            launched.read_until(f"scaler: the {name} runs again")
            assert len(client.submit(bytes, 100_000).result(SECONDS)) == 100_000
    os.kill(launched.service("scaler_scheduler"), signal.SIGTERM)  # it ends with code 0, and all with it
    assert launched.terminal.process.wait(SECONDS) == 0


def test_a_service_that_dies_too_often_ends_all_with_its_code_and_last_words(launched: Launched) -> None:
    launched.read_until("workers wanted")
    for _ in range(RESTARTS):
        os.kill(launched.service("scaler_scheduler"), signal.SIGKILL)
        launched.read_until("scaler: the scheduler runs again")
    with_all = Watched([launched.pid, *descendants(launched.pid)])
    try:
        os.kill(launched.service("scaler_scheduler"), signal.SIGKILL)
        assert launched.terminal.process.wait(SECONDS) == 128 + signal.SIGKILL
        assert with_all.wait_gone(END_SECONDS) == []
    finally:
        with_all.close()
    lines = "\n".join(launched.terminal.lines + launched.terminal.rest())
    assert lines.count("scaler: the scheduler has ended with signal SIGKILL; its last lines:\n  | ") == RESTARTS + 1


def test_a_service_that_cannot_start_is_named(tmp_path: Path) -> None:
    first = Launched(tmp_path)
    with first.terminal:
        first.read_until("the scheduler runs")
        with Terminal(sys.executable, "-m", "scaler_launch", str(tmp_path / "cluster.toml")) as second:
            second.read_until("the object storage server has ended with exit code 1; its last lines:")
            second.read_until("an object storage server of Scaler is already running there")
            assert second.process.wait(SECONDS) == 1
        assert first.end(signal.SIGTERM) == 0


def test_a_launcher_whose_output_nobody_reads_goes_on_and_ends(tmp_path: Path) -> None:
    running = Launched(tmp_path)
    with running.terminal:
        running.read_until("the worker manager local runs")
        os.kill(running.pid, signal.SIGSTOP)
        running.terminal.pause()
        os.kill(running.pid, signal.SIGCONT)
        with Client(running.address) as client:
            client.submit(print, "x" * 3_000_000).result(SECONDS)
            assert client.submit(abs, -1).result(SECONDS) == 1
        assert running.end(signal.SIGTERM) == 0


def test_a_process_that_a_task_has_detached_does_not_hold_the_launcher_up(tmp_path: Path) -> None:
    def detach() -> int:
        return subprocess.Popen(["sleep", "60"], start_new_session=True).pid

    running = Launched(tmp_path, workers="[cluster]\nnum_of_workers = 1\n")
    with running.terminal:
        running.read_until("the workers runs")
        with Client(running.address) as client:
            pid = client.submit(detach).result(SECONDS)
        [agent] = [pid for pid in children(running.pid) if is_agent(pid)]
        try:
            os.kill(agent, signal.SIGKILL)  # the detached process still has its pipe
            running.read_until("the workers runs again")
            running.terminal.process.terminate()
            assert running.terminal.process.wait(SECONDS) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def is_agent(pid: int) -> bool:
    return " scaler_worker " in command_line(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_waiting_that_is_interrupted_is_no_success(launched: Launched, number: signal.Signals) -> None:
    launched.read_until("the scheduler runs")
    with Terminal(sys.executable, "-m", "scaler_launch", "wait", launched.address, "--workers", "100") as waiting:
        descriptors = Path(f"/proc/{waiting.process.pid}/fd")
        wait_until(lambda: len(list(descriptors.iterdir())) > 8, "a connection")
        assert waiting.end(number) in (130, -signal.SIGTERM)
    assert launched.end(signal.SIGTERM) == 0


def test_waiting_in_vain_says_what_starts_workers(launched: Launched) -> None:
    launched.read_until("the scheduler runs")
    words = ["wait", launched.address, "--workers", "100", "--timeout-seconds", "0.5"]
    with Terminal(sys.executable, "-m", "scaler_launch", *words) as waiting:
        said = " ".join(waiting.rest())
        assert waiting.process.wait(SECONDS) == 1
    assert f"start more with scaler_cluster {launched.address}; worker managers start workers when tasks" in said
    assert launched.end(signal.SIGTERM) == 0


INTERRUPTED = """
import signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "zmq":
            signal.raise_signal(number)

sys.meta_path.insert(0, Finder())
from scaler_launch.__main__ import main
number = int(sys.argv.pop(1))
main()
"""


@pytest.mark.parametrize("command", ["status", "dump", "results", "wait", "drain"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_question_that_is_interrupted_during_an_import_is_no_success(command: str, number: signal.Signals) -> None:
    with Terminal(sys.executable, "-c", INTERRUPTED, str(int(number)), command, "ipc:///nowhere") as asking:
        assert asking.process.wait(SECONDS) in (130, -signal.SIGTERM)
        assert asking.rest() == []


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal: before, the interpreter itself is still being started."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.chaos
@pytest.mark.parametrize("round", range(20))
@pytest.mark.parametrize("number", SIGNALS)
def test_nothing_survives_a_signal_at_any_moment(tmp_path: Path, number: signal.Signals, round: int) -> None:
    running = Launched(tmp_path)
    with running.terminal:
        wait_until(lambda: catches(running.pid, signal.SIGTERM), "the launcher's own handlers")
        time.sleep(0.15 * round)  # the moment is what is tried: from the first import to a working cluster
        assert running.end(number) in (0, -number)
