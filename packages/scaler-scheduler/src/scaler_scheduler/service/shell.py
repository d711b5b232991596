"""The scheduler's shell: a process with a socket around SchedulerCore."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from scaler_io.links.hub import Hub, PeerTimeouts
from scaler_io.service.server_loop import ServerLoop
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_incarnation
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.monitoring.publisher import MonitorPublisher, StatusSampler, local_monitor
from scaler_scheduler.service.idle import give_back_when_idle
from scaler_scheduler.service.options import SchedulerOptions
from scaler_scheduler.service.storage_server import StorageServer

if TYPE_CHECKING:
    from scaler_scheduler.monitoring.metrics import Metrics

LOGGER = logging.getLogger("scaler")


class SchedulerService:
    """One running scheduler, behind `listener`, which it closes, and beside `storage`, which it keeps up and ends."""

    def __init__(self, options: SchedulerOptions, listener: Listener, storage: StorageServer) -> None:
        self._options = options
        self._listener = listener
        self._storage = storage

    @contextlib.contextmanager
    def serving(self, stop: Callable[[], None]) -> Iterator[None]:
        """Serve on the running loop for as long as this lasts; a client's permitted request calls `stop`."""
        listener = self._listener
        storage = self._storage.address
        monitor = self._options.monitor_address or listener.address.beside(2)
        LOGGER.info("Scheduler: listen to scheduler address %s", listener.address)
        LOGGER.info("Scheduler: connect to object storage server %s", storage)
        core, hub = self._engine(storage, monitor)
        figures = StatusSampler(core.state, hub, listener.address)
        metrics = self._metrics(figures, storage)
        publication = MonitorPublisher(core.state, figures, storage, monitor, local_monitor(listener.address))
        reception = ServerLoop("Scheduler", listener, hub, core, stop)
        self._say_ready(listener.address)
        keeping = [
            asyncio.ensure_future(self._storage.keep()),
            asyncio.ensure_future(give_back_when_idle(core.state.event_log)),
        ]
        try:
            yield
        finally:
            for task in keeping:
                task.cancel()
            reception.close()
            publication.close()
            if metrics is not None:
                metrics.close()
            self._storage.end()
        LOGGER.info("Scheduler: ended")

    def _metrics(self, figures: StatusSampler, storage: Address) -> Metrics | None:
        if self._options.metrics_address is None:
            return None
        from scaler_scheduler.monitoring.metrics import Metrics

        return Metrics(figures, storage, self._options.metrics_address)

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

        def timeouts(hello: Hello) -> PeerTimeouts:
            if hello.role == Role.AGENT:
                return PeerTimeouts(config.agent_grace_seconds, config.worker_timeout_seconds)
            return PeerTimeouts(config.client_timeout_seconds, config.client_timeout_seconds)

        return core, Hub(core.state.incarnation, admit=core.admit, timeouts=timeouts)

    def _say_ready(self, address: Address) -> None:
        """Tell the process that started us where we listen."""
        if self._options.ready_fd is not None:
            # It may have ended meanwhile; then we are about to be told.
            with contextlib.suppress(BrokenPipeError), os.fdopen(self._options.ready_fd, "wb", 0) as ready:
                ready.write(f"{address}\n".encode())
