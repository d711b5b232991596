"""A cluster whose object storage is on another host than its workers."""

from __future__ import annotations

import signal
import subprocess
import textwrap
from pathlib import Path

from support.gates import SECONDS
from support.networks import Host, Wire
from support.waiting import wait_until

MIB = 1024 * 1024
SCHEDULER, STORAGE = "tcp://10.77.0.1:2345", "tcp://10.77.0.1:2346"


class Far:
    """A scheduler and its storage on `near`, a cluster on `far`, where the clients of the test are, too."""

    def __init__(self, near: Host, far: Host, wire: Wire, folder: Path, *storage_words: str, replicas: int = 1) -> None:
        self._storage_words = storage_words
        self.near, self.far, self.wire, self._folder = near, far, wire, folder
        self._started: list[tuple[str, subprocess.Popen[str]]] = []
        self.clusters: list[subprocess.Popen[str]] = []
        self.storage = self.start_storage()
        words = ("--object-storage-address", STORAGE, "--insecure", "--replicas", str(replicas))
        self._start(near, "scheduler", "-m", "scaler_scheduler", SCHEDULER, *words)
        try:
            wait_until(lambda: "monitor address" in self.said("scheduler"), "a scheduler")
        except BaseException:
            self.close()
            raise

    def start_storage(self) -> subprocess.Popen[str]:
        """On the address that all know."""
        return self._start(self.near, "storage", "-m", "scaler_storage", STORAGE, "--insecure", *self._storage_words)

    def add_cluster(self, workers: int, *words: str, on: Host | None = None) -> subprocess.Popen[str]:
        """Returns when its workers are ready."""
        ready = workers + (self.said("cluster").count("] started") if self.clusters else 0)
        cluster = self._start(on or self.far, "cluster", "-m", "scaler_worker", SCHEDULER, "-n", str(workers), *words)
        self.clusters.append(cluster)
        wait_until(lambda: self.said("cluster").count("] started") >= ready, f"{ready} workers")
        return cluster

    def run(self, script: str, *, on: Host | None = None) -> subprocess.Popen[str]:
        """A client, on `far` unless it is said where, and what it does; its lines are what `said("client")` says."""
        preamble = f"""
            from collections import Counter
            from concurrent.futures import as_completed, wait
            import numpy as np
            from scaler import Client
            from scaler_protocol.errors import ObjectNotFoundError, StorageLostError
            from support.waiting import wait_until
            from support.object_tasks import describe_array, give, longer, same, size_and_cluster, size_of
            from support.storage_processes import figures
            MIB, STORAGE = {MIB}, {STORAGE!r}
            client = Client({SCHEDULER!r}, timeout_seconds=60)
        """
        path = self._folder / "client.py"
        path.write_text(textwrap.dedent(preamble) + textwrap.dedent(script) + "\nclient.disconnect()\nprint('done')\n")
        return self._start(on or self.far, "client", str(path))

    def _start(self, host: Host, name: str, *words: str) -> subprocess.Popen[str]:
        started = host.start(self._folder / f"{name}.log", *words)
        self._started.append((name, started))
        return started

    def said(self, name: str) -> str:
        """All of a program's log."""
        return (self._folder / f"{name}.log").read_text("utf-8", "replace")

    def hear(self, client: subprocess.Popen[str], word: str) -> None:
        """Wait until a client has said a word on a line of its own."""
        wait_until(lambda: word in self.said("client").splitlines() or client.poll() is not None, word, 2 * SECONDS)
        assert client.poll() is None, self.said("client")

    def let_go(self, client: subprocess.Popen[str]) -> None:
        """Let it go on behind an `input()`."""
        assert client.stdin is not None
        print(file=client.stdin, flush=True)

    def close(self) -> None:
        """End everything; on both hosts nothing is left."""
        self.wire.mend()
        for name, process in reversed(self._started):
            # SIGTERM would have agents drain.
            process.send_signal(signal.SIGINT if name == "cluster" else signal.SIGTERM)
        for name, process in self._started:
            process.communicate(timeout=SECONDS)
            assert "Traceback" not in self.said(name), self.said(name)
        assert (self.near.memory, self.far.memory) == ({}, {})
