"""The main function of `scaler_cluster` after the template is forked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from scaler_io import descriptors
from scaler_io.links.uplink import Uplink
from scaler_io.objects.host_cache import UNUSED_SECONDS, HostCache
from scaler_io.security.keyring import WORKER_KEYS, Credentials
from scaler_io.service import event_loops
from scaler_io.service.memory_limits import allowed_bytes
from scaler_io.service.process import become_subreaper, ending
from scaler_io.transport.in_process import AnyDialer, InProcessDialer, InProcessListener
from scaler_io.transport.zeromq import Dialer
from scaler_protocol.addresses import Address
from scaler_protocol.gpus import GPU
from scaler_protocol.handshake import Hello
from scaler_protocol.plurals import counted
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.records import AgentConfig
from scaler_worker.agent.host_replicas import HostReplicas, LeftBehind
from scaler_worker.agent.resize_channel import ResizeChannel
from scaler_worker.agent.shell import Agent
from scaler_worker.config import HAND_OVER_SECONDS, ClusterConfig
from scaler_worker.forking.template_link import Forking
from scaler_worker.hello import agent_hello
from scaler_worker.ipc.families import end_children

LOGGER: Final = logging.getLogger("scaler")


def run_cluster(config: ClusterConfig, forking: Forking) -> int:
    """Run the agent until it ends; returns the exit code."""
    become_subreaper()

    async def main() -> int:
        drain = asyncio.Event()
        stop = ending(config.parent_pid, drain.set, end_children)
        return await work(config, forking, config.address, stop, lambda pid: False, lambda failure: None, drain)

    return event_loops.run(main, config.event_loop)


async def work(
    config: ClusterConfig,
    forking: Forking,
    scheduler: Address | InProcessListener,
    stop: asyncio.Event,
    is_foreign: Callable[[int], bool],
    tell_started: Callable[[str], None],
    drain: asyncio.Event | None = None,
) -> int:
    """Run an agent until it ends or `stop` is set; returns the exit code. It drains, and ends, once `drain` is set.

    At the end it kills all children of this process, orphans of tasks included, except foreign ones. `tell_started` is
    called once: with an empty string when the first worker is ready, or with the reason why the agent ended before.
    """
    _say_start(config)
    host = socket.gethostname()
    name = f"{host}:{os.getpid()}"
    core = AgentCore(_agent_config(config, forking, name, host))
    loop = asyncio.get_running_loop()
    in_process = isinstance(scheduler, InProcessListener)
    hello = _hello(config, forking, name, host)
    uplink = Uplink(hello, loop.time(), timeout_seconds=config.death_timeout_seconds, in_process=in_process)
    credentials = config.credentials(WORKER_KEYS)
    replicas = _host_replicas(forking, name, credentials)
    dialer = _dialer(scheduler, uplink, credentials)
    hand_over = partial(_hand_over, replicas, config.drain_timeout_seconds)
    agent = Agent(core, dialer, forking, config.heartbeat_interval_seconds, is_foreign, hand_over)
    running = loop.create_task(agent.run())
    running.add_done_callback(lambda ended: stop.set())
    maintaining = loop.create_task(_maintain(replicas, agent.connected))
    telling = loop.create_task(_tell_started(agent, tell_started))
    _take_sizes(agent, config.resize_fd, running)
    draining = loop.create_task(_drain(agent, config, drain or asyncio.Event()))
    await stop.wait()
    draining.cancel()
    agent.stop(0, "stopping")
    await telling
    maintaining.cancel()
    code = await running
    await asyncio.to_thread(replicas.close)
    if code and not in_process:
        # The log may go elsewhere; a worker manager reads this.
        print(f"scaler_cluster: {agent.failure}", file=sys.stderr, flush=True)
    return code


def _dialer(scheduler: Address | InProcessListener, uplink: Uplink, credentials: Credentials | None) -> AnyDialer:
    if isinstance(scheduler, InProcessListener):
        return InProcessDialer(scheduler, uplink)
    return Dialer(scheduler, uplink, credentials=credentials)


def _say_start(config: ClusterConfig) -> None:
    LOGGER.info(
        "ClusterProcess: starting %s, heartbeat_interval_seconds=%g, object_retention_seconds=%g",
        counted(config.num_of_workers, "worker"),
        config.heartbeat_interval_seconds,
        config.object_retention_seconds,
    )
    descriptors.log_limit("ClusterProcess")
    if config.memory_limit_per_worker > (allowed := allowed_bytes()):
        LOGGER.warning(
            "ClusterProcess: --memory-limit-per-worker is %s MiB, but all programs here may use %s MiB together: "
            "no task reaches the limit before the memory is full",
            f"{config.memory_limit_per_worker >> 20:,}", f"{allowed >> 20:,}",
        )  # fmt: skip


def _hand_over(replicas: HostReplicas, timeout_seconds: float, drained: float) -> LeftBehind:
    """Hand the replicas of this host over; `drained`: when draining had to end at the latest, maybe never."""
    return replicas.hand_over(min(drained, time.monotonic() + timeout_seconds) + HAND_OVER_SECONDS)


def _agent_config(config: ClusterConfig, forking: Forking, name: str, host: str) -> AgentConfig:
    return AgentConfig(
        config.num_of_workers,
        name,
        host,
        config.worker_names,
        config.task_timeout_seconds,
        config.object_retention_seconds,
        forking.shared.secret,
        config.preload or "",
        config.drain_timeout_seconds,
        config.memory_limit_per_worker,
        str(config.address),
        tuple(_consumables(config, forking).items()),
        forking.gpus,
    )


def _consumables(config: ClusterConfig, forking: Forking) -> dict[str, int]:
    return {**config.host_capabilities, **({GPU: len(forking.gpus)} if forking.gpus else {})}


def _host_replicas(forking: Forking, name: str, credentials: Credentials | None) -> HostReplicas:
    cache, storage = forking.config.object_cache, forking.config.object_storage_address
    host_cache = HostCache(Path(cache), forking.config.object_cache_limit)
    return HostReplicas(
        host_cache, lambda: storage or forking.shared.storage, name, credentials, lambda: forking.shared.token
    )


async def _drain(agent: Agent, config: ClusterConfig, requested: asyncio.Event) -> None:
    """Drain the agent when that is requested, or so long before its time limit as draining may take."""
    limit = config.time_limit_seconds
    working = limit - config.drain_timeout_seconds - HAND_OVER_SECONDS
    try:
        await asyncio.wait_for(requested.wait(), working if limit else None)
    except asyncio.TimeoutError:
        agent.drain(f"its time limit of {limit:g} s is near")
    else:
        agent.drain("SIGTERM")


def _take_sizes(agent: Agent, descriptor: int | None, running: asyncio.Task[int]) -> None:
    """While the agent runs, resize it as the program that started it asks on this socket."""
    if descriptor is not None:
        channel = ResizeChannel(descriptor, agent.resize)
        running.add_done_callback(lambda ended: channel.close())


async def _tell_started(agent: Agent, tell: Callable[[str], None]) -> None:
    tell(await agent.started.wait())


async def _maintain(replicas: HostReplicas, connected: asyncio.Event) -> None:
    """Maintain replicas at intervals, and for each new scheduler, which may announce another storage."""
    await connected.wait()
    while True:
        connected.clear()
        # In a thread: freeing the memory of big files takes long, and the server may be unreachable.
        await asyncio.to_thread(replicas.maintain)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(connected.wait(), UNUSED_SECONDS / 2)


def _hello(config: ClusterConfig, forking: Forking, name: str, host: str) -> Hello:
    return agent_hello(
        name=name,
        host=host,
        workers=config.num_of_workers,
        queue_size=config.per_worker_task_queue_size,
        death_timeout_seconds=config.death_timeout_seconds,
        capabilities={
            **config.per_worker_capabilities,
            **config.host_capabilities,
            **({GPU: 1} if forking.gpus else {}),
        },
        consumables=_consumables(config, forking),
        manager=config.worker_manager_id,
        unit=config.unit_id,
    )
