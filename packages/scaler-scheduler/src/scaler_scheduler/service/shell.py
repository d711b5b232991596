"""The scheduler's shell: a process with a socket around SchedulerCore."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scaler_io.descriptors import worker_connections
from scaler_io.links.hub import Hub
from scaler_io.links.link_record import PeerTimeouts
from scaler_io.security.keyring import Credentials, KeyRole
from scaler_io.service.memory_limits import allowed_bytes
from scaler_io.service.server_loop import ServerLoop
from scaler_io.service.session_tokens import TokenDesk
from scaler_io.transport.zeromq import Listener
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_incarnation
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.permissions import PERMITTED
from scaler_scheduler.core.state import SendToStorage
from scaler_scheduler.monitoring.dumps import Dumps
from scaler_scheduler.monitoring.publisher import MonitorPublisher, StatusSampler, local_monitor
from scaler_scheduler.service.idle import give_back_when_idle
from scaler_scheduler.service.options import SchedulerOptions
from scaler_scheduler.service.storage_orders import StorageOrders
from scaler_scheduler.service.storage_server import StorageServer

if TYPE_CHECKING:
    from scaler_scheduler.journal.journal import Journal
    from scaler_scheduler.monitoring.metrics import Metrics
    from scaler_scheduler.service.webhook import Webhooks

LOGGER = logging.getLogger("scaler")


class SchedulerService:
    """One running scheduler. It closes `listener`, and keeps `storage` running until it ends.

    Its clients wait for it to come back, unless this is the end of the cluster: because a client has asked for it, or
    whenever it ends with `ends_cluster`. A scheduler with a journal always comes back.
    """

    def __init__(
        self, options: SchedulerOptions, listener: Listener, storage: StorageServer, *, ends_cluster: bool = False
    ) -> None:
        self._options = options
        self._ends_cluster = "its process was told to end" if ends_cluster else ""
        self._listener = listener
        self._storage = storage

    @property
    def _credentials(self) -> Credentials | None:
        return self._options.credentials([KeyRole.SERVER])

    @contextlib.contextmanager
    def serving(self, stop: Callable[[], None]) -> Iterator[None]:
        """Serve on the running loop within this context; `stop` is called when a client shuts the scheduler down."""
        listener = self._listener
        storage = self._storage.address
        monitor = self._options.monitor_address or listener.address.beside(2)
        LOGGER.info("Scheduler: listen to scheduler address %s", listener.address)
        LOGGER.info("Scheduler: connect to object storage server %s", storage)
        core, hub = self._engine(storage)
        sampler = StatusSampler(core, hub, listener.address)
        metrics = self._metrics(sampler, storage)
        local = local_monitor(listener.address)
        publication = MonitorPublisher(core, sampler, storage, monitor, local, self._options.authorized())
        dumps = Dumps(sampler, hub, self._options.logging_paths, listener.address)
        journal, stored = self._journal(core), StorageOrders(storage, self._credentials)
        perform: dict[type, Callable[[Any], object]] = {WriteDump: dumps.answer, SendToStorage: stored.send}
        hold = journal.hold if journal else None

        def shut_down() -> None:
            self._ends_cluster = "a client has shut it down"
            stop()

        reception = ServerLoop("Scheduler", listener, hub, core, shut_down, perform, hold, core.note_busy)
        if journal is not None:
            journal.serve(reception.write)
        self._say_ready(listener.address)
        keeping = [
            asyncio.ensure_future(self._storage.keep()),
            asyncio.ensure_future(give_back_when_idle(lambda: core.submitted)),
        ]
        webhooks = self._webhooks(listener.address)
        try:
            yield
        finally:
            if webhooks is not None:
                webhooks.close()
            for task in keeping:
                task.cancel()
            dumps.close()
            if journal is not None:
                journal.close()
            elif self._ends_cluster:
                core.end(self._ends_cluster)
                reception.turn()
            reception.close()
            stored.close()
            publication.close()
            if metrics is not None:
                metrics.close()
            self._storage.end()
        LOGGER.info("Scheduler: ended")

    def _journal(self, core: SchedulerCore) -> Journal | None:
        if self._options.journal is None:
            return None
        from scaler_scheduler.journal.journal import Journal

        return Journal(self._options.journal, self._options.journal_sync, core, self._options.journal_key_limit)

    def _metrics(self, sampler: StatusSampler, storage: Address) -> Metrics | None:
        if self._options.metrics_address is None:
            return None
        from scaler_scheduler.monitoring.metrics import Metrics

        return Metrics(sampler, storage, self._options.metrics_address, self._credentials)

    def _webhooks(self, address: Address) -> Webhooks | None:
        if not self._options.adapter_webhook_urls:
            return None
        from scaler_scheduler.service.webhook import Webhooks

        reachable = replace(address, host="127.0.0.1") if address.host in ("0.0.0.0", "::") else address
        token = self._options.adapter_webhook_token
        return Webhooks(self._options.adapter_webhook_urls, token, reachable, self._credentials)

    def _adapters(self) -> frozenset[str]:
        if not self._options.adapter_webhook_urls:
            return frozenset()
        from scaler_scheduler.service.webhook import manager_of

        return frozenset(map(manager_of, self._options.adapter_webhook_urls))

    def _engine(self, storage: Address) -> tuple[SchedulerCore, Hub]:
        options = self._options
        policies = options.policies()
        config = SchedulerConfig(
            measured=self._options.metrics_address is not None,
            protected=options.protected,
            allocate_policy=policies.allocate,
            scaling=policies.scaling,
            adapters=self._adapters(),
            max_number_of_tasks_waiting=options.max_number_of_tasks_waiting,
            max_session_bytes=options.max_session_bytes or allowed_bytes() // 4,
            client_timeout_seconds=options.client_timeout_seconds,
            worker_timeout_seconds=options.worker_timeout_seconds,
            result_retention_seconds=options.result_retention_seconds,
            result_limit=options.result_limit,
            replicas=options.replicas,
            cluster_capabilities=tuple(sorted(options.cluster_capabilities.items())),
            storage_address=str(options.advertised_object_storage_address or storage),
        )
        incarnation = new_incarnation()
        core = SchedulerCore(incarnation, config, lambda peer: hub.is_connected(peer), lambda peer: hub.key_of(peer))

        def timeouts(hello: Hello) -> PeerTimeouts:
            if hello.role in (Role.AGENT, Role.MANAGER):
                return PeerTimeouts(config.agent_grace_seconds, config.worker_timeout_seconds)
            return PeerTimeouts(config.client_timeout_seconds, config.client_timeout_seconds)

        principal = self._listener.principal
        own = self._credentials
        hub = Hub(
            incarnation,
            admit=core.admit,
            timeouts=timeouts,
            principal=principal,
            permitted=PERMITTED,
            token=TokenDesk(own.secret).token if own is not None else None,
            left=core.left_by,
            worker_links=worker_connections,
        )
        return core, hub

    def _say_ready(self, address: Address) -> None:
        """Write the address to the process that started this one."""
        if self._options.ready_fd is not None:
            # That process may have ended; then this one is about to be stopped, too.
            with contextlib.suppress(BrokenPipeError), os.fdopen(self._options.ready_fd, "wb", 0) as ready:
                ready.write(f"{address}\n".encode())
