"""Services that tests kill and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from scaler_protocol.addresses import Address
from support.closing import CheckedClosing
from support.processes import Watched, children, command_line, descendants, free_ports, taken_port
from support.relays import Relay
from support.waiting import wait_until
from support.warm_programs import IMPORTED, WarmProgram

TESTS = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
"""A host on which much else runs takes long to start ten processes."""


def resident(pid: int) -> tuple[int, int]:
    """Bytes of memory of a process: now, and at the peak."""
    figures = _memory(pid)
    return figures["VmRSS"], figures["VmHWM"]


def forget_peak(pid: int) -> None:
    """From now on the peak is that of what follows, see proc_pid_clear_refs(5)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", "utf-8")


def mapped(pid: int) -> int:
    """Bytes of shared memory that a process maps: segments of objects."""
    return _memory(pid)["RssShmem"]


def _memory(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    return {
        words[0][:-1]: int(words[1]) * 1024 for words in map(str.split, lines) if words[0].startswith(("Vm", "Rss"))
    }


class Service:
    """One program of the engine with its log; with `host`, which needs root, on a host of that name."""

    def __init__(self, log: Path, module: str, *words: str, host: str = "") -> None:
        self.log = log
        there = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host] if host else []
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"}
        self.process: subprocess.Popen[bytes] | WarmProgram
        with log.open("ab") as output:
            if module in IMPORTED and not there:
                self.process = WarmProgram(module, words, environment, output.fileno())
            else:
                self.process = subprocess.Popen(
                    [*there, sys.executable, "-m", module, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    cwd=os.sep,
                    start_new_session=True,
                )
        self.pid = self.process.pid

    def said(self) -> str:
        """All of its log."""
        return self.log.read_text("utf-8", "replace")

    def family(self) -> list[int]:
        """It and all its descendants."""
        return [self.pid, *descendants(self.pid)]

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        self.process.kill()
        self.process.wait()


class Services(CheckedClosing):
    """A scheduler with its storage, and agents: all on one address, each to be killed and started again."""

    def __init__(self, folder: Path, *scheduler_words: str) -> None:
        self.folder = folder
        self.port = free_ports(3)
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.started: list[Service] = []
        self._words = scheduler_words
        self.scheduler = self.start_scheduler()

    def start_scheduler(self) -> Service:
        """Start it on the address that all know."""
        # What a log of an earlier one says must not be taken for this one's.
        log = self.folder / f"scheduler-{len(self.started)}.log"
        self.scheduler = Service(log, "scaler_scheduler", self.address, *self._words)
        self.started.append(self.scheduler)
        started = self.scheduler
        try:
            wait_until(
                lambda: "monitor address" in started.said() or started.process.poll(), "a scheduler", START_SECONDS
            )
        except AssertionError:
            started.kill()
            raise
        assert started.process.poll() is None, started.said()
        return started

    def add_agent(self, workers: int, *words: str, address: Address | None = None, host: str = "") -> Service:
        """Start an agent; returns when its workers are ready."""
        log = self.folder / f"agent-{len(self.started)}.log"
        agent = Service(log, "scaler_worker", str(address or self.address), "-n", str(workers), *words, host=host)
        self.started.append(agent)
        wait_until(lambda: agent.said().count("] started") >= workers, f"{workers} workers")
        return agent

    def relay(self) -> Relay:
        """A relay to the scheduler, which its context ends."""
        return Relay(Address("127.0.0.1", self.port))

    def close(self) -> None:
        """End everything as an operator would, and see that nothing is left and nothing was broken."""
        family = {pid for service in self.started for pid in service.family()}
        watched = Watched(family)
        try:
            for service in reversed(self.started):
                service.process.send_signal(signal.SIGINT)  # SIGTERM would have busy agents drain
            left = watched.wait_gone(5)
            assert left == [], [command_line(pid) for pid in left]
            codes = [service.process.wait(5) for service in self.started]
            assert set(codes) <= {0, -signal.SIGKILL}, codes
            assert taken_port(range(self.port, self.port + 3)) is None
        finally:
            watched.close()
            for service in self.started:
                service.process.wait(5)
        for service in self.started:
            assert "Traceback" not in service.said(), service.said()


def template_of(agent: int) -> int:
    """The process that an agent's workers are forked from."""
    own = children(agent)
    grown = [pid for pid in own if descendants(pid)]
    assert len(grown) == 1, own
    return grown[0]


def parent_of(pid: int) -> int:
    """The parent process."""
    return int(Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
