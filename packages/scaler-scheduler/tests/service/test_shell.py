"""The scheduler as a process: how it starts, says where it is, and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scaler_protocol.addresses import Address
from support.gates import SECONDS
from support.processes import free_ports, taken_port
from support.waiting import wait_until
from support.warm_programs import WarmProgram, run_warm


class SchedulerProcess:
    """A scheduler that was started, and its output."""

    def __init__(self, errors: IO[bytes], *words: str) -> None:
        self._errors = errors
        reading, writing = os.pipe()
        self._output = os.fdopen(reading, "rb")
        self.process = WarmProgram("scaler_scheduler", words, os.environ, writing, errors=errors.fileno())
        os.close(writing)
        self.lines: list[str] = []

    def read_until(self, text: str) -> str:
        """The next line that contains `text`."""
        deadline = threading.Timer(SECONDS, self.process.kill)
        deadline.start()
        try:
            return self._read_until(text)
        finally:
            deadline.cancel()

    def _read_until(self, text: str) -> str:
        while True:
            line = self._output.readline().decode()
            assert line, f"ended before {text!r}: {self.lines}, {self.errors()!r}"
            self.lines.append(line)
            if text in line:
                return line

    def errors(self) -> str:
        """What it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit code and stderr."""
        self.process.send_signal(number)
        self._output.read()
        return self.process.wait(SECONDS), self.errors()

    def close(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self._output.close()


@contextmanager
def scheduler(*words: str) -> Iterator[SchedulerProcess]:
    """A scheduler that does not outlive the test."""
    with tempfile.TemporaryFile() as errors:
        started = SchedulerProcess(errors, *words)
        try:
            yield started
        finally:
            started.close()


def test_the_start_is_told_line_by_line() -> None:
    port = free_ports()
    with scheduler(f"tcp://127.0.0.1:{port}", "-osa", f"tcp://127.0.0.1:{port + 1}") as started:
        started.read_until("files and connections")
        assert started.end() == (0, "")
    expected = [
        r"logging to \('/dev/stdout',\)",
        "use event loop: builtin",
        f"Scheduler: listen to scheduler address tcp://127.0.0.1:{port}",
        f"Scheduler: connect to object storage server tcp://127.0.0.1:{port + 1}",
        f"Scheduler: listen to scheduler monitor address tcp://127.0.0.1:{port + 2}",
        f"Scheduler: listen to scheduler monitor address ipc:///tmp/127.0.0.1_{port}_monitor",
        r"Scheduler: may have \d+ files and connections open",
    ]
    for line, text in zip(started.lines, expected, strict=True):
        assert re.fullmatch(rf"\[INFO\]\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{{4}}: {text}\n", line), line


def test_uvloop_is_used_and_said() -> None:
    pytest.importorskip("uvloop")
    with scheduler("tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1", "--event-loop", "uvloop") as started:
        assert "use event loop: uvloop" in started.read_until("event loop")
        started.read_until("monitor address")
        assert started.end(signal.SIGINT) == (0, "")


def test_a_monitor_address_that_cannot_be_had_is_one_line_and_no_end() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monitor = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with scheduler("tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1", "-ma", monitor) as started:
            line = started.read_until("monitor")
            assert "[WARNING]" in line
            assert line.endswith(
                f"no monitor can subscribe at {monitor}: cannot listen to {monitor}: Address already in use; "
                "choose another address, or end what listens there\n"
            )
            path = Path(started.read_until("monitor address").rpartition("ipc://")[2].strip())
            assert path.is_socket() and path.stat().st_mode & 0o777 == 0o700
            assert started.end() == (0, "")
    assert not path.exists() and not path.with_name(f"{path.name}.lock").exists()


def test_monitor_sockets_of_schedulers_that_were_killed_are_removed_by_the_next_one() -> None:
    with scheduler("tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1") as killed:
        killed.read_until("monitor address tcp")
        path = Path(killed.read_until("monitor address ipc").rpartition("ipc://")[2].strip())
        killed.process.kill()
        killed.process.wait()
    assert path.is_socket()
    with scheduler("tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1") as started:
        started.read_until("monitor address ipc")
        assert not path.exists() and not path.with_name(f"{path.name}.lock").exists()
        assert started.end() == (0, "")


@pytest.mark.parametrize("named", [False, True])
def test_what_has_the_address_of_object_storage_and_is_none_is_warned_of(named: bool) -> None:
    with scheduler("tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1") as stranger:
        taken = Address.parse(stranger.read_until("listen to scheduler address").split()[-1])
        words = ("tcp://127.0.0.1:0", "-osa", str(taken)) if named else (str(replace(taken, port=taken.port - 1)),)
        with scheduler(*words) as started:
            line = started.read_until("does not answer as an object storage server")
            assert "[WARNING]" in line and f"at {taken} " in line
            theirs = "this is the address of the scheduler: give that of the object storage server, tcp://127.0.0.1:1"
            assert theirs in line
            assert started.end() == (0, "")


def test_metrics_are_served_where_it_is_asked_for() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{probe.getsockname()[1]}"
    with scheduler("tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1", "--metrics-address", metrics) as started:
        assert f"serve metrics at http://{metrics}/metrics" in started.read_until("metrics")
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=SECONDS) as answer:
            found = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}
        assert found["scaler_scheduler_resident_memory_bytes"].samples[0].value > 10**7
        assert [sample.value for sample in found["scaler_tasks"].samples] == [0, 0, 0, 0]
        assert started.end() == (0, "")


def test_metrics_tell_of_object_storage() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{probe.getsockname()[1]}"
    with scheduler("tcp://127.0.0.1:0", "--metrics-address", metrics) as started:
        started.read_until("serve metrics")
        found: dict[str, float] = {}

        def told() -> bool:
            with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=SECONDS) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                found.update({sample.name: sample.value for family in families for sample in family.samples})
            return "scaler_storage_memory_limit_bytes" in found

        wait_until(told, "figures of object storage")
        assert found["scaler_storage_memory_limit_bytes"] > 2**20 and found["scaler_object_bytes"] == 0
        assert started.end() == (0, "")


def test_metrics_for_other_hosts_must_be_wanted() -> None:
    with scheduler("tcp://127.0.0.1:0", "--metrics-address", "0.0.0.0:9100") as started:
        assert started.process.wait(SECONDS) != 0
        assert "can be reached from other hosts" in started.errors()


def test_a_port_in_use_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "scaler_scheduler", f"tcp://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"scaler_scheduler: cannot listen to tcp://127.0.0.1:{port}: Address already in use; "
        "choose another address, or end what listens there\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tcp://0.0.0.0:2345"], "--insecure"),
        (["http://127.0.0.1:2345"], "tcp://host:port"),
        (["tcp://127.0.0.1:2345", "--protectd"], "did you mean --protected"),
        (["tcp://127.0.0.1:2345", "--load-balance-seconds", "1"], "leave it out"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], said: str) -> None:
    ended = run_warm("scaler_scheduler", *words)
    assert ended.returncode == 2 and said in ended.stderr and ended.stderr.count("\n") == 1


def test_it_says_when_it_is_ready_and_ends_with_its_parent() -> None:
    reading, writing = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    words = ["tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1", "-lp", "/dev/stderr", "-ll", "ERROR"]
    started = subprocess.Popen(
        [sys.executable, "-m", "scaler_scheduler", *words, "--parent-pid", str(parent.pid), "--ready-fd", str(writing)],
        pass_fds=[writing],
        stdin=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as ready:
            assert re.fullmatch(r"tcp://127.0.0.1:\d+\n", ready.readline())
    finally:
        parent.kill()
        parent.communicate()
    assert started.wait(SECONDS) == 0


def test_nobody_reads_that_it_is_ready() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ["tcp://127.0.0.1:0", "-osa", "tcp://127.0.0.1:1", "--ready-fd", str(writing)]
    started = subprocess.Popen(
        [sys.executable, "-u", "-m", "scaler_scheduler", *words],
        pass_fds=[writing],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    os.close(writing)
    with started:
        assert started.stdout is not None
        line = started.stdout.readline()
        while b"monitor address" not in line:
            assert line
            line = started.stdout.readline()
        started.terminate()
        assert b"roken" not in started.stdout.read()
    assert started.returncode == 0


def test_a_storage_server_that_answered_but_goes_is_replaced() -> None:
    """As does the one of a scheduler that was killed, when that is started again at once."""
    port = free_ports()
    with socket.create_server(("127.0.0.1", port + 1)) as going, scheduler(f"tcp://127.0.0.1:{port}") as started:
        going.settimeout(SECONDS)
        first, _ = going.accept()
        going.close()
        first.close()
        started.read_until("starting one")
        assert started.end() == (0, "")


def test_its_own_storage_server_is_replaced_when_it_dies() -> None:
    port = free_ports()
    with scheduler(f"tcp://127.0.0.1:{port}", "--parent-pid", str(os.getpid())) as started:
        started.read_until("starting one")
        wait_until(lambda: taken_port([port + 1]) is not None, "the storage server listens")
        children = Path(f"/proc/{started.process.pid}/task/{started.process.pid}/children")
        os.kill(int(children.read_text("ascii")), signal.SIGKILL)
        started.read_until("starting one")
        assert started.end() == (0, "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--object-storage-address", "tcp://127.0.0.1:1", "--memory-limit", "5"],
         "--memory-limit is for the server at --object-storage-address: give it there"),
        (["--spill-limit", "5"], "--spill-limit needs a --spill-directory to move objects to"),
        (["--spill-directory", "/proc"],
         "--spill-directory /proc: No such file or directory; name a directory that can be written to"),
        (["--segment-directory", "/dev/null"],
         "--segment-directory /dev/null: File exists; name a directory that can be written to"),
        (["--object-storage-address", "tcp://127.0.0.1:0"], "cannot connect to port 0"),
        (["--journal-sync", "full"], "--journal-sync full needs a --journal to record work in"),
        (["--journal-key-limit", "5MiB"], "--journal-key-limit needs a --journal to record work in"),
        (["--journal", "journal", "--journal-key-limit", "1kB"],
         "--journal-key-limit: 1kB is less than 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_options_that_contradict_each_other(words: list[str], complaint: str) -> None:
    done = run_warm("scaler_scheduler", f"tcp://127.0.0.1:{free_ports()}", *words)
    assert done.returncode == 2 and complaint in done.stderr and not done.stdout


@pytest.mark.parametrize("own", ["tcp://127.0.0.1", "tcp://localhost", "tcp://[::1]"])
def test_no_storage_server_is_at_its_own_address(own: str) -> None:
    port = free_ports()
    done = run_warm("scaler_scheduler", f"tcp://127.0.0.1:{port}", "-osa", f"{own}:{port}")
    assert done.returncode == 2 and f"--object-storage-address {own}:{port} is this scheduler's own" in done.stderr
