"""What Scaler has always promised: these programs, these commands in three terminals, these log lines."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, free_ports, run_script, taken_port
from support.snippets import FOR_SERVICES, SQUARE, WITH_A_CLUSTER
from support.symphony import SymphonyModel

PROMISED_PORT = 2345
LOG_LINE = re.compile(r"\[(INFO|WARNING)\]\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}: (.*)")


@dataclass(frozen=True)
class Terminals:
    """Programs that were started by hand, so to speak, and what they said until they were ready."""

    port: int
    storage: Terminal
    scheduler: Terminal
    cluster: Terminal

    def adapted(self, program: str) -> str:
        """A program for port 2345, for the port that was free."""
        return program.replace(f"tcp://127.0.0.1:{PROMISED_PORT}", f"tcp://127.0.0.1:{self.port}")


@contextmanager
def started(port: int) -> Iterator[Terminals]:
    """A storage server, a scheduler and two clusters."""
    address = f"tcp://127.0.0.1:{port}"
    with (
        Terminal(PROGRAMS / "scaler_object_storage_server", f"tcp://127.0.0.1:{port + 1}") as storage,
        Terminal(PROGRAMS / "scaler_scheduler", address) as scheduler,
        Terminal(PROGRAMS / "scaler_cluster", "-n", "4", address) as cluster,
        Terminal(PROGRAMS / "scaler_cluster", "-n", "1", "--per-worker-capabilities", "gpu,linux", address) as special,
    ):
        storage.read_until("listen")
        scheduler.read_until("monitor address")
        for _ in range(4):
            cluster.read_until("] started")
        special.read_until("Worker[0] started")
        yield Terminals(port, storage, scheduler, cluster)
        for terminal in (special, cluster, scheduler, storage):
            assert terminal.end(signal.SIGINT) == 0
    assert taken_port(range(port, port + 3)) is None


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    """The services on the promised ports or, where those are taken, on others."""
    # Two runs of the tests at once must not both find the promised ports free.
    with open(tmp_path_factory.getbasetemp().parent / "promised-ports", "w", encoding="utf-8") as ours:
        try:
            fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = taken_port(range(PROMISED_PORT, PROMISED_PORT + 3)) is None
        except BlockingIOError:
            free = False
        with started(PROMISED_PORT if free else free_ports(3)) as running:
            yield running


def said(terminal: Terminal) -> list[str]:
    """The texts of the log lines, each of which has the promised form."""
    texts = []
    for line in terminal.lines:
        match = LOG_LINE.fullmatch(line)
        assert match, line
        texts.append(match[2])
    return texts


def test_the_scheduler_says_where_it_listens(terminals: Terminals) -> None:
    address = f"tcp://127.0.0.1:{terminals.port}"
    assert said(terminals.scheduler)[:5] == [
        "logging to ('/dev/stdout',)",
        "use event loop: builtin",
        f"Scheduler: listen to scheduler address {address}",
        f"Scheduler: connect to object storage server tcp://127.0.0.1:{terminals.port + 1}",
        f"Scheduler: listen to scheduler monitor address tcp://127.0.0.1:{terminals.port + 2}",
    ]


def test_the_cluster_says_what_it_starts(terminals: Terminals) -> None:
    texts = said(terminals.cluster)
    assert texts[0] == "logging to ('/dev/stdout',)"
    starting = "ClusterProcess: starting 4 workers, heartbeat_interval_seconds=2, object_retention_seconds=3600"
    started = [f"Worker[{number}] started" for number in range(4)]
    said_of_them = [text for text in texts if text == starting or text in started]
    assert said_of_them[0] == starting and sorted(said_of_them[1:]) == started


def test_the_ports_are_the_promised_ones(terminals: Terminals) -> None:
    if terminals.port != PROMISED_PORT:
        pytest.skip(f"one of the ports {PROMISED_PORT} to {PROMISED_PORT + 2} is in use on this machine")
    assert "tcp://127.0.0.1:2345" in "\n".join(terminals.scheduler.lines)


END_AT_ONCE = """
import os, sys
sys.stdout.flush()
os._exit(0)
"""
"""pyarrow 26 aborts three in a hundred programs that have read Parquet from a BytesIO, while Python ends."""


@pytest.mark.parametrize("name", FOR_SERVICES)
def test_a_program_for_services(name: str, terminals: Terminals, tmp_path: Path) -> None:
    program, expected = FOR_SERVICES[name]
    script = tmp_path / "program.py"
    script.write_text(terminals.adapted(program), "utf-8")
    if name == "map":
        script.write_text(
            "import warnings\nwarnings.simplefilter('ignore', FutureWarning)\n" + script.read_text("utf-8")
        )
    if name == "serializer":
        script.write_text(script.read_text("utf-8") + END_AT_ONCE, "utf-8")
    assert re.fullmatch(expected, run_script(script))


@pytest.mark.parametrize("name", WITH_A_CLUSTER)
def test_a_program_with_a_cluster_of_its_own(name: str, tmp_path: Path) -> None:
    program, expected = WITH_A_CLUSTER[name]
    if name == "uvloop":
        pytest.importorskip("uvloop")
        told = 'event_loop="uvloop", logging_level="INFO", logging_paths=("/dev/stdout",)'
        program = program.replace('event_loop="uvloop"', told)
    script = tmp_path / "program.py"
    script.write_text(program.replace(":2345", f":{free_ports(3)}"), "utf-8")
    lines = run_script(script).splitlines(keepends=True)
    assert re.fullmatch(expected, "".join(line for line in lines if not LOG_LINE.fullmatch(line.rstrip("\n"))))
    if name == "uvloop":
        assert any("use event loop: uvloop" in line for line in lines)


@pytest.mark.parametrize("program", ["scaler_object_storage_server", "scaler_scheduler", "scaler_cluster"])
def test_programs_list_their_options(program: str) -> None:
    done = subprocess.run([PROGRAMS / program, "-h"], capture_output=True, encoding="utf-8", timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{program} tcp://127.0.0.1:234" in done.stdout, "with an example"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--event-loop", "uvloop"], "use event loop: uvloop"),
        (["--allocate-policy", "capability"], "monitor address"),
        (["-ap", "even"], "monitor address"),
    ],
)
def test_options_of_the_scheduler(words: list[str], says: str) -> None:
    if "uvloop" in words:
        pytest.importorskip("uvloop")
    with Terminal(PROGRAMS / "scaler_scheduler", *words, f"tcp://127.0.0.1:{free_ports(3)}") as scheduler:
        scheduler.read_until(says)
        assert scheduler.end(signal.SIGTERM) == 0


def test_without_a_storage_server_the_scheduler_starts_one_and_says_so() -> None:
    port = free_ports(3)
    with Terminal(PROGRAMS / "scaler_scheduler", f"tcp://127.0.0.1:{port}") as scheduler:
        scheduler.read_until("starting one")
        scheduler.read_until(f"listen to object storage address tcp://127.0.0.1:{port + 1}")
        assert scheduler.end() == 0
    assert taken_port(range(port, port + 3)) is None


def test_the_command_for_symphony(tmp_path: Path) -> None:
    """With a model of Symphony; its service is the one of the documents."""
    port = free_ports(3)
    address = f"tcp://127.0.0.1:{port}"
    with (
        SymphonyModel(tmp_path) as symphony,
        Terminal(PROGRAMS / "scaler_scheduler", address) as scheduler,
        symphony.terminal(
            PROGRAMS / "scaler_symphony_cluster", address, "ScalerService", "--base-concurrency", "4"
        ) as cluster,
    ):
        scheduler.read_until("monitor address")
        cluster.read_until("connected to the scheduler")
        said(cluster)
        script = tmp_path / "square.py"
        script.write_text(SQUARE.replace(f":{PROMISED_PORT}", f":{port}"), "utf-8")
        assert run_script(script) == "16\n"
        assert cluster.end(signal.SIGINT) == 0
        assert scheduler.end(signal.SIGINT) == 0
