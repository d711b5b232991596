"""The agent's link to the template: start it, request workers, read its reports."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from scaler_io import descriptors
from scaler_io.service.memory_limits import allowed_bytes, default_directory, free_bytes
from scaler_io.service.runtime_dirs import HostDirectory
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.plurals import counted
from scaler_worker.config import WORKERS_LIMIT, ClusterConfig, WorkerConfig
from scaler_worker.forking.host_gpus import find_gpus, nvidia_listing
from scaler_worker.forking.template import REPORT, REQUEST, run_template, spawn_arguments
from scaler_worker.ipc.shared_state import SharedState
from scaler_worker.worker.environment import worker_environment
from scaler_worker.worker.preload import Preload

CACHE_SHARE = 0.2
"""Share of the allowed memory for objects whose storage is on another host."""
AGENT_FILES = 80
"""Files that an agent needs beside those of its workers; enough for the scheduler of a local cluster, too."""
FILES_PER_WORKER = 4
"""Files that an agent has open for a worker."""
WORKER_FILES = 64
"""Files that a worker may have open at least: it needs half of them, and leaves some to its tasks."""
BLOCKED_AND_SPARE = 1024
"""Workers beyond the slots that have cells in shared memory: blocked ones and spares."""


class Report(NamedTuple):
    """A report of the template: FORKED, ENDED (with wait status) or NOT_FORKED (with errno)."""

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
    def fork(cls, lifeline: tuple[int, int], shared: SharedState, config: WorkerConfig) -> TemplateLink:
        """Fork a template from this process, which must not have threads or sockets yet."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # a collection would change, and so copy, all memory that both have
        pid = os.fork()
        if not pid:
            ours.close()
            os.close(lifeline[1])
            run_template(theirs, lifeline[0], shared, config)
        theirs.close()
        return cls(pid, ours)

    @classmethod
    def spawn(cls, lifeline: int, shared: SharedState, config: WorkerConfig) -> TemplateLink:
        """Start a template as a new program, since this process has threads by now."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        inherited = (theirs.fileno(), lifeline, shared.descriptor)
        arguments = spawn_arguments(theirs.fileno(), lifeline, shared, config)
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

    def request(self, number: int, name: str, gpu: str | None, descriptors: Sequence[int]) -> None:
        """Request a worker; raises OSError if the template has exited or its queue is full."""
        socket.send_fds(self._channel, [REQUEST.pack(number) + json.dumps([name, gpu]).encode()], descriptors)

    def reports(self) -> tuple[list[Report], bool]:
        """The reports that have arrived, and whether the template is alive."""
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
        """Close the socket; the template exits."""
        self._channel.close()


@dataclass(frozen=True, slots=True)
class Forking:
    """The template, and the resources that workers inherit."""

    template: TemplateLink
    lifeline: int
    shared: SharedState
    config: WorkerConfig
    gpus: tuple[str, ...] = ()
    """The GPUs that workers are given, one each."""

    @classmethod
    @contextlib.contextmanager
    def begin(cls, config: ClusterConfig) -> Iterator[Forking]:
        """Fork the template; this process must not have threads or sockets yet.

        Afterwards this process may open as many files as the system allows. Workers keep the previous limit, since
        programs that iterate over all descriptors, or use select(), do not expect more. The host's object cache exists
        until its last agent exits. Raises PreloadError for a preload that cannot be parsed, and OSError where agent or
        workers may open too few files: they would start and end for ever.
        """
        agent = f"an agent of {counted(config.num_of_workers, 'worker')}"
        needed = AGENT_FILES + FILES_PER_WORKER * config.num_of_workers
        descriptors.require_limit(agent, needed, descriptors.highest_limit())
        descriptors.require_limit("each worker", WORKER_FILES, descriptors.limit())
        if config.preload is not None:
            Preload.parse(config.preload)
        limit = config.object_cache_limit
        if limit is None:
            limit = int(CACHE_SHARE * allowed_bytes())
        gpus = find_gpus(config.gpus, os.environ, nvidia_listing)
        directory = default_directory(limit)
        # Locked while this process, or one forked from it, lives.
        with HostDirectory(directory) as cache:
            worker_config = WorkerConfig(
                config.preload,
                config.garbage_collect_interval_seconds,
                config.trim_memory_threshold_bytes,
                str(config.object_storage_address or ""),
                str(cache.path),
                min(limit, free_bytes(directory)),
                descriptors.limit(),
                str(config.key_place() or ""),
                worker_environment(config, os.environ),
                config.output_limit_per_task,
                config.log_format == "json",
                config.allow_functions,
            )
            lifeline = os.pipe()
            shared = SharedState.create(WORKERS_LIMIT + BLOCKED_AND_SPARE)
            template = TemplateLink.fork(lifeline, shared, worker_config)
            descriptors.raise_limit()
            yield cls(template, lifeline[0], shared, worker_config, gpus)
