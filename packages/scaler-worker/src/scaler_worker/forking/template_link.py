"""The agent's side of the template: starting it, asking it for workers, hearing what became of them."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scaler_io import descriptors
from scaler_io.service.memory_limits import allowed_bytes, default_directory, free_bytes
from scaler_io.service.runtime_dirs import HostDirectory
from scaler_worker.config import ClusterConfig, WorkerConfig
from scaler_worker.forking.template import REPORT, REQUEST, run_template, spawn_arguments
from scaler_worker.ipc.shared_state import SharedState
from scaler_worker.worker.preload import Preload

CACHE_SHARE = 0.2
"""Of the memory that is allowed, for objects of a storage elsewhere."""
BLOCKED_AND_SPARE = 1024
"""Workers beyond the places for which there is a word: those that wait for others, and spares."""


class Report(NamedTuple):
    """What the template says about a worker: FORKED, ENDED or NOT_FORKED, with wait status or errno."""

    kind: int
    number: int
    pid: int
    status: int
    peak_memory: int


class TemplateLink:
    """One template process and the socket to it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.pid = pid
        self._channel = channel

    @classmethod
    def fork(cls, lifeline: tuple[int, int], words: SharedState, config: WorkerConfig) -> TemplateLink:
        """Fork a template from this process, which must have no threads and no sockets yet."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            ours.close()
            os.close(lifeline[1])
            run_template(theirs, lifeline[0], words, config, parent)
        theirs.close()
        return cls(pid, ours)

    @classmethod
    def spawn(cls, lifeline: int, words: SharedState, config: WorkerConfig) -> TemplateLink:
        """Start a template as a program of its own, since this process has threads by now."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inherited = (theirs.fileno(), lifeline, words.descriptor)
        arguments = spawn_arguments(theirs.fileno(), lifeline, words, config, os.getpid())
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        try:
            pid = os.posix_spawn(sys.executable, (sys.executable, *arguments), os.environ)
        finally:
            for descriptor in inherited:
                os.set_inheritable(descriptor, False)
            theirs.close()
        return cls(pid, ours)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._channel.fileno()

    def request(self, number: int, name: str, descriptors: Sequence[int]) -> None:
        """Ask for a worker; raises OSError where the template is gone, or does not listen."""
        socket.send_fds(self._channel, [REQUEST.pack(number) + name.encode()], descriptors)

    def reports(self) -> tuple[list[Report], bool]:
        """What has come, and whether the template is still there."""
        found: list[Report] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                try:
                    data = self._channel.recv(REPORT.size)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return found, False
                found.append(Report._make(REPORT.unpack(data)))
        return found, True

    def close(self) -> None:
        """Let go of the socket; the template ends."""
        self._channel.close()


@dataclass(frozen=True, slots=True)
class Forking:
    """What workers are forked from and with."""

    template: TemplateLink
    lifeline: int
    words: SharedState
    config: WorkerConfig

    @classmethod
    @contextlib.contextmanager
    def begin(cls, config: ClusterConfig) -> Iterator[Forking]:
        """Fork the template; this process must have no threads and no sockets yet.

        From then on this process may have as many files open as the system allows; workers as many as before, since
        programs that walk through all descriptors, or use select(), do not expect more. The host's cache of objects
        exists until the last one of its agents ends. Raises ValueError for a preload that can not be read.
        """
        if config.preload is not None:
            Preload.parse(config.preload)
        limit = config.object_cache_limit
        if limit is None:
            limit = int(CACHE_SHARE * allowed_bytes())
        place = default_directory(limit)
        # Locked as long as this process or one that is forked from it lives.
        with HostDirectory(place) as cache:
            worker_config = WorkerConfig(
                config.preload,
                config.garbage_collect_interval_seconds,
                config.trim_memory_threshold_bytes,
                str(config.object_storage_address or ""),
                str(cache.path),
                min(limit, free_bytes(place)),
                descriptors.limit(),
            )
            lifeline = os.pipe()
            words = SharedState.create(config.num_of_workers + BLOCKED_AND_SPARE)
            template = TemplateLink.fork(lifeline, words, worker_config)
            descriptors.raise_limit()
            yield cls(template, lifeline[0], words, worker_config)
