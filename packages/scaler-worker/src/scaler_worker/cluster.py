"""What `scaler_cluster` does once its template is forked."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
from collections.abc import Callable
from typing import Final

import cloudpickle

from scaler_io import event_loops, logs
from scaler_io.lifecycle import become_subreaper, end_with, terminate_on_signals
from scaler_io.links import Uplink
from scaler_io.zeromq import Dialer, Inner
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_identity, new_incarnation
from scaler_worker.agent import Agent
from scaler_worker.agent_core import AgentCore
from scaler_worker.config import ClusterConfig
from scaler_worker.records import AgentConfig
from scaler_worker.template_link import Forking

LOGGER: Final = logging.getLogger("scaler")
SOFTWARE: Final = "scaler 3.0.0"


def run_cluster(config: ClusterConfig, forking: Forking) -> int:
    """Run the agent to its end; returns the exit code."""
    become_subreaper()
    logs.announce(config.logging_paths, config.logging_config_file)

    async def work() -> int:
        return await _work(config, forking)

    return event_loops.run(work, config.event_loop)


async def _work(config: ClusterConfig, forking: Forking) -> int:
    loop = asyncio.get_running_loop()
    agent = make_agent(config, forking, config.address, lambda pid: False)
    terminate_on_signals(loop, lambda: agent.stop(0, "stopping"))
    if config.parent_pid is not None:
        end_with(config.parent_pid, loop, lambda: agent.stop(0, "the process that started the cluster has ended"))
    return await agent.run()


def make_agent(
    config: ClusterConfig, forking: Forking, scheduler: Address | Inner, is_foreign: Callable[[int], bool]
) -> Agent:
    """The agent that a command line describes, to be run in the loop that runs now.

    It ends all children of this process, tasks' orphans too, but those that are foreign to it.
    """
    LOGGER.info(
        "ClusterProcess: starting %d workers, heartbeat_interval_seconds=%g, object_retention_seconds=%g",
        config.num_of_workers,
        config.heartbeat_interval_seconds,
        config.object_retention_seconds,
    )
    host = socket.gethostname()
    name = f"{host}:{os.getpid()}"
    core = AgentCore(
        AgentConfig(
            config.num_of_workers,
            name,
            host,
            config.worker_names,
            config.task_timeout_seconds,
            config.object_retention_seconds,
            forking.words.secret,
        )
    )
    now = asyncio.get_running_loop().time()
    uplink = Uplink(_hello(config, name, host), now, timeout_seconds=config.death_timeout_seconds)
    return Agent(core, Dialer(scheduler, uplink), forking, config.heartbeat_interval_seconds, is_foreign)


def _hello(config: ClusterConfig, name: str, host: str) -> Hello:
    capabilities = sorted(config.per_worker_capabilities.items())
    return Hello(
        role=Role.AGENT,
        identity=new_identity(),
        incarnation=new_incarnation(),
        name=name,
        host=host,
        pid=os.getpid(),
        software=SOFTWARE,
        python=platform.python_version(),
        cloudpickle=cloudpickle.__version__,
        workers=config.num_of_workers,
        queue_size=config.per_worker_task_queue_size,
        capability_names=[capability for capability, _ in capabilities],
        capability_values=[value for _, value in capabilities],
    )
