"""The cluster of a trial: scheduler with journal, object storage and agents, each behind a relay of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scaler import Client
from scaler_io.security.key_files import make_keys
from scaler_io.transport.curve import new_pair
from scaler_protocol.addresses import Address
from support.chaos.kinds import MEMORY_LIMIT
from support.closing import CheckedClosing
from support.faults import START_SECONDS, TESTS, Service, Services
from support.gates import SECONDS
from support.mounts import mounted_memory
from support.processes import PROGRAMS, Watched, command_line, free_ports
from support.relays import Relay
from support.waiting import wait_until

CLIENT_TIMEOUT_SECONDS = 20
WORKER_TIMEOUT_SECONDS = 3
DISK_MIB = 64


class Cluster(CheckedClosing):
    """Everything that runs in a trial but its clients in this process. A context manager."""

    def __init__(self, folder: Path, agents: int, workers: int, *, keyed: bool) -> None:
        self.folder, self._workers = folder, workers
        self.agents: list[Service] = []
        self.flooders: list[Flooder] = []
        self._dying: list[Watched] = []
        self.disk = folder / "disk"
        self.disk.mkdir()
        self.keys = folder / "keys" if keyed else None
        if self.keys is not None:
            make_keys(self.keys, new_pair)
        self._words = ("--keys", str(self.keys)) if keyed else ("--insecure",)
        self._storage_address = f"tcp://127.0.0.1:{free_ports(1)}"
        with ExitStack() as stack:  # nothing is left of a cluster that could not be started
            self._stack = stack
            self.disk_is_small = stack.enter_context(mounted_memory(self.disk, DISK_MIB)) == ""
            self.storage = self._new_storage()
            stack.callback(self.storage.kill)
            # Otherwise the scheduler may be given the same port.
            wait_until(lambda: "listen to" in self.storage.said(), "object storage", START_SECONDS)
            self.services = stack.enter_context(self._new_services())
            self.services.started.append(self.storage)
            storage = Address.parse(self._storage_address)
            self.relays = {
                "clients to scheduler": stack.enter_context(self.services.relay()),
                "clients to storage": stack.enter_context(Relay(storage)),
                "agents to scheduler": stack.enter_context(self.services.relay()),
                "agents to storage": stack.enter_context(Relay(storage)),
            }
            for _ in range(agents):
                self.add_agent()
            ready = "the workers"
            wait_until(lambda: all(a.said().count("] started") >= workers for a in self.agents), ready, START_SECONDS)
            self._stack = stack.pop_all()

    # --- services ---------------------------------------------------------------------------------------------------

    def _new_services(self) -> Services:
        return Services(
            self.folder,
            *("--journal", str(self.disk / "journal"), "--object-storage-address", self._storage_address),
            *("--worker-timeout-seconds", str(WORKER_TIMEOUT_SECONDS)),
            *("--client-timeout-seconds", str(CLIENT_TIMEOUT_SECONDS), *self._words),
        )

    def _new_storage(self) -> Service:
        segments = ("--segment-directory", str(self.folder / "segments"))
        log = self.folder / f"storage-{len(list(self.folder.glob('storage-*')))}.log"
        return Service(log, "scaler_storage", self._storage_address, *segments, *self._words)

    def add_agent(self) -> None:
        """Start an agent; its workers may be ready later."""
        words = ["-n", str(self._workers), "--memory-limit-per-worker", str(MEMORY_LIMIT)]
        words += ["--object-storage-address", str(self.relays["agents to storage"].address)]
        log = self.folder / f"agent-{len(list(self.folder.glob('agent-*')))}.log"
        address = str(self.relays["agents to scheduler"].address)
        self.agents.append(Service(log, "scaler_worker", address, *words, *self._words))
        self.services.started.append(self.agents[-1])

    def kill_agent(self, agent: Service) -> None:
        """SIGKILL; its workers must follow."""
        self._dying.append(Watched(agent.family()))
        agent.kill()
        self.agents.remove(agent)

    def restart_storage(self) -> None:
        """SIGKILL, and another one in its place."""
        self.storage.kill()
        self.storage = self._new_storage()
        self.services.started.append(self.storage)

    @property
    def storage_port(self) -> int:
        """Where object storage listens."""
        port = Address.parse(self._storage_address).port
        assert port is not None
        return port

    # --- clients ----------------------------------------------------------------------------------------------------

    def client(self, session: str | None = None) -> Client:
        """A client behind the relays."""
        security: dict[str, Any] = {"insecure": True} if self.keys is None else {"keys": self.keys}
        return Client(
            str(self.relays["clients to scheduler"].address),
            object_storage_address=str(self.relays["clients to storage"].address),
            session=session,
            **security,
        )

    def add_flooder(self, seed: int, session: str, *, nested: bool) -> Flooder:
        """Start a client in a process of its own, behind a relay of its own."""
        relay = self._stack.enter_context(self.services.relay())
        name = f"flooder-{len(self.flooders)}"
        keys = "-" if self.keys is None else str(self.keys)
        words = [str(relay.address), str(self.relays["clients to storage"].address), keys]
        words += [str(self.folder / f"{name}.runs"), str(seed), session or "-", "nested" if nested else "flat"]
        self.flooders.append(Flooder(self.folder / f"{name}.log", relay, session, words))
        self._dying.append(Watched([self.flooders[-1].process.pid]))
        return self.flooders[-1]

    # --- the end ----------------------------------------------------------------------------------------------------

    def dump(self) -> str:
        """What the scheduler says of who waits for what."""
        command = [str(PROGRAMS / "scaler"), "dump", self.services.address, *self._words]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
        except subprocess.TimeoutExpired:
            return "the scheduler does not answer"

    def check_nothing_is_left(self) -> None:
        """No process of what was killed, no segment: called when all services have ended."""
        for watched in self._dying:
            left = watched.wait_gone(SECONDS)
            assert left == [], f"left of what was killed: {[command_line(pid) for pid in left]}"
        segments = self.folder / "segments"
        # A server that was killed leaves its directory to the next one, and the last one was not killed.
        assert not segments.exists() or list(segments.iterdir()) == [], list(segments.iterdir())

    def close(self) -> None:
        """End everything, and see that nothing is left."""
        for flooder in self.flooders:
            flooder.process.kill()
            flooder.process.wait()
            if flooder.process.stdin is not None:
                flooder.process.stdin.close()
        try:
            self._stack.close()
            self.check_nothing_is_left()
        finally:
            for watched in self._dying:
                watched.close()


class Flooder:
    """A flooding client in a process of its own."""

    def __init__(self, log: Path, relay: Relay, session: str, words: list[str]) -> None:
        self.relay, self.session, self._log = relay, session, log
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        command = [sys.executable, "-m", "support.chaos.flooder", *words]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    def said(self) -> str:
        """All of its log."""
        return self._log.read_text("utf-8", "replace")

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self.process.send_signal(number)

    def stop_flooding(self) -> None:
        """It submits nothing more, and ends when its tasks have ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
