"""The scheduler's shell: a process with a socket around SchedulerCore."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from scaler_io.links import Hub, Patience
from scaler_io.reception import Reception
from scaler_io.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_incarnation
from scaler_scheduler.config import SchedulerConfig
from scaler_scheduler.core import SchedulerCore
from scaler_scheduler.options import SchedulerOptions
from scaler_scheduler.publication import FigureTaker, Publication, local_monitor

if TYPE_CHECKING:
    from scaler_scheduler.metrics import Metrics

LOGGER = logging.getLogger("scaler")
STORAGE_WAIT_SECONDS = 2.0
STORAGE_START_SECONDS = 10.0
_PROBE_SECONDS = 0.1


class SchedulerService:
    """One running scheduler, behind `listener`, which it closes."""

    def __init__(self, options: SchedulerOptions, listener: Listener) -> None:
        self._options = options
        self._listener = listener
        self._storage: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def serving(self, stop: Callable[[], None]) -> Iterator[None]:
        """Serve on the running loop for as long as this lasts; a client's permitted request calls `stop`."""
        listener = self._listener
        storage = self._options.object_storage_address or listener.address.beside(1)
        monitor = self._options.monitor_address or listener.address.beside(2)
        LOGGER.info("Scheduler: listen to scheduler address %s", listener.address)
        LOGGER.info("Scheduler: connect to object storage server %s", storage)
        core, hub = self._engine(storage, monitor)
        figures = FigureTaker(core.state, hub, listener.address)
        metrics = self._metrics(figures)
        publication = Publication(core.state, figures, monitor, local_monitor(listener.address))
        reception = Reception("Scheduler", listener, hub, core, stop)
        self._say_ready(listener.address)
        keeping = asyncio.ensure_future(self._keep_storage(storage))
        try:
            yield
        finally:
            keeping.cancel()
            reception.close()
            publication.close()
            if metrics is not None:
                metrics.close()
            self._end_storage()
        LOGGER.info("Scheduler: ended")

    def is_storage(self, pid: int) -> bool:
        """Whether that process is the object storage server that this service has started."""
        return self._storage is not None and self._storage.pid == pid

    def _metrics(self, figures: FigureTaker) -> Metrics | None:
        if self._options.metrics_address is None:
            return None
        from scaler_scheduler.metrics import Metrics

        return Metrics(figures, self._options.metrics_address)

    def _engine(self, storage: Address, monitor: Address) -> tuple[SchedulerCore, Hub]:
        options = self._options
        config = SchedulerConfig(
            protected=options.protected,
            allocate_policy=options.allocate_policy,
            max_number_of_tasks_waiting=options.max_number_of_tasks_waiting,
            client_timeout_seconds=options.client_timeout_seconds,
            worker_timeout_seconds=options.worker_timeout_seconds,
            storage_address=str(options.advertised_object_storage_address or storage),
            monitor_address=str(monitor),
        )
        core = SchedulerCore(new_incarnation(), config)

        def patience(hello: Hello) -> Patience:
            if hello.role == Role.AGENT:
                return Patience(config.agent_grace_seconds, config.worker_timeout_seconds)
            return Patience(config.client_timeout_seconds, config.client_timeout_seconds)

        return core, Hub(core.state.incarnation, admit=core.admit, patience=patience)

    def _say_ready(self, address: Address) -> None:
        """Tell the process that started us where we listen."""
        if self._options.ready_fd is not None:
            # It may have ended meanwhile; then we are about to be told.
            with contextlib.suppress(BrokenPipeError), os.fdopen(self._options.ready_fd, "wb", 0) as ready:
                ready.write(f"{address}\n".encode())

    async def _keep_storage(self, address: Address) -> None:
        """See that an object storage server is beside us, unless one was named: start one where none comes up."""
        if self._options.object_storage_address is not None:
            return
        # A local cluster has just picked free ports: nobody else is about to start a server there.
        seconds = 0.0 if self._options.parent_pid else STORAGE_WAIT_SECONDS
        while True:
            if await _comes_up(address, seconds):
                await _until_gone(address)
                seconds = STORAGE_WAIT_SECONDS
            else:
                self._start_storage(address)
                seconds = STORAGE_START_SECONDS

    def _start_storage(self, address: Address) -> None:
        if self._storage is not None:  # it has ended, or hangs
            self._storage.kill()
            self._storage.wait()
        LOGGER.info("Scheduler: no object storage server at %s, starting one", address)
        command = [sys.executable, "-m", "scaler_storage", str(address), "--parent-pid", str(os.getpid())]
        self._storage = subprocess.Popen([*command, *_storage_options(self._options)], stdin=subprocess.DEVNULL)

    def _end_storage(self) -> None:
        if self._storage is not None:
            self._storage.terminate()
            try:
                self._storage.wait(5)
            except subprocess.TimeoutExpired:
                self._storage.kill()
                self._storage.wait()


def _storage_options(options: SchedulerOptions) -> list[str]:
    """What the server that we start has from us."""
    values = {
        "client-timeout-seconds": options.client_timeout_seconds,
        "object-retention-seconds": options.object_retention_seconds,
        "memory-limit": options.memory_limit,
        "segment-directory": options.segment_directory,
        "spill-directory": options.spill_directory,
        "spill-limit": options.spill_limit,
        "logging-level": options.logging_level,
        "log-format": options.log_format,
    }
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    return [*words, *["--insecure"] * options.insecure, "--logging-paths", *options.logging_paths]


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    return await asyncio.open_connection(address.host, address.port)


async def _comes_up(address: Address, seconds: float) -> bool:
    """Whether somebody listens there, now or within so many seconds."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            _, writer = await _connect(address)
        except OSError:
            if loop.time() >= until:
                return False
            await asyncio.sleep(_PROBE_SECONDS)
        else:
            writer.close()
            return True


async def _until_gone(address: Address) -> None:
    """Return when nobody listens there any more: what answered may just have been about to end."""
    with contextlib.suppress(OSError):
        while True:
            reader, writer = await _connect(address)
            try:
                while await reader.read(4096):
                    pass
            finally:
                writer.close()
            await asyncio.sleep(_PROBE_SECONDS)
