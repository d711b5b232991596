"""Runs a proxy agent, from its settings to its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from scaler_client import task_context
from scaler_io.links.uplink import Uplink
from scaler_io.security.keyring import WORKER_KEYS
from scaler_io.service import event_loops
from scaler_io.service.process import ending
from scaler_io.transport.zeromq import Dialer
from scaler_worker.hello import agent_hello
from scaler_worker.ipc.shared_state import SharedState
from scaler_worker.symphony.codec import CallCodec, ProxyRuntime
from scaler_worker.symphony.proxy_agent import ProxyAgent
from scaler_worker.symphony.proxy_core import ProxyConfig, ProxyCore
from scaler_worker.symphony.proxy_options import SymphonyOptions
from scaler_worker.symphony.session import SymphonySession, TaskReply
from scaler_worker.worker.object_store import WorkerObjectStore
from scaler_worker.worker.process import collect_garbage, use_path_of_caller

LOGGER: Final = logging.getLogger("scaler")


def run_proxy(options: SymphonyOptions, label: str = "") -> int:
    """Run a proxy agent until it ends; returns its exit code. `label` begins the name that it makes up."""

    use_path_of_caller()  # results are unpickled here

    async def run() -> int:
        drain = asyncio.Event()
        stop = ending(options.parent_pid, on_terminate=drain.set)
        agent = _agent(options, label)
        running = asyncio.ensure_future(agent.run())
        running.add_done_callback(lambda ended: stop.set())
        draining = asyncio.ensure_future(_drain(agent, drain))
        collecting = asyncio.ensure_future(_collect(agent, options))
        await stop.wait()
        draining.cancel()
        collecting.cancel()
        agent.stop(0, "stopping")
        return await running

    return event_loops.run(run, options.event_loop)


def _store(options: SymphonyOptions, shared: SharedState, name: str) -> WorkerObjectStore:
    own = str(options.object_storage_address or "")
    return WorkerObjectStore(
        lambda: own or shared.storage, shared.secret, name, keys=options.key_place(), token=lambda: shared.token
    )


def _agent(options: SymphonyOptions, label: str) -> ProxyAgent:
    host = socket.gethostname()
    name = options.worker_name or ":".join(filter(None, (label, host, str(os.getpid()))))
    LOGGER.info(
        "ClusterProcess: at most %d unnested tasks at a time in the service %s of Symphony, "
        "heartbeat_interval_seconds=%g, object_retention_seconds=%g",
        options.base_concurrency,
        options.service_name,
        options.heartbeat_interval_seconds,
        options.object_retention_seconds,
    )
    shared = SharedState.create(0)
    store = _store(options, shared, name)
    runtime = ProxyRuntime(store, lambda: shared.scheduler)
    reached_at = options.worker_scheduler_address
    task_context.install_forwarding(runtime, lambda given: str(reached_at or given or options.address))
    config = ProxyConfig(
        options.base_concurrency,
        name,
        host,
        os.getpid(),
        options.task_timeout_seconds,
        options.object_retention_seconds,
        options.drain_timeout_seconds,
        str(options.address),
    )
    uplink = Uplink(
        agent_hello(
            name=name,
            host=host,
            workers=options.base_concurrency,
            queue_size=options.per_worker_task_queue_size,
            death_timeout_seconds=options.death_timeout_seconds,
            capabilities=options.per_worker_capabilities,
        ),
        asyncio.get_running_loop().time(),
        timeout_seconds=options.death_timeout_seconds,
    )

    def open_session(replied: Callable[[int, TaskReply], object], lost: Callable[[str], object]) -> SymphonySession:
        return SymphonySession(options.service_name, name, replied, lost)

    return ProxyAgent(
        ProxyCore(config),
        CallCodec(runtime, store, options.allow_functions),
        Dialer(options.address, uplink, credentials=options.credentials(WORKER_KEYS)),
        shared,
        open_session,
        options.heartbeat_interval_seconds,
    )


async def _drain(agent: ProxyAgent, requested: asyncio.Event) -> None:
    await requested.wait()
    agent.drain("SIGTERM")


async def _collect(agent: ProxyAgent, options: SymphonyOptions) -> None:
    """Maintain the memory of this process between calls."""
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(options.garbage_collect_interval_seconds)
            agent.maintain(partial(collect_garbage, options.trim_memory_threshold_bytes))
