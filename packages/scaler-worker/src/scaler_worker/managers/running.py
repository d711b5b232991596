"""Runs a worker manager of any kind, from its settings and its provisioner to its exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scaler_io import descriptors
from scaler_io.provisioning.core import ManagerConfig
from scaler_io.provisioning.provisioner import Provisioner
from scaler_io.security.keyring import WORKER_KEYS
from scaler_io.service import event_loops
from scaler_io.service.manager import WorkerManager
from scaler_io.service.process import ending
from scaler_worker.managers.options import ManagerOptions


def run_manager(options: ManagerOptions, provisioner: Callable[[], Provisioner], config: ManagerConfig) -> int:
    """Run a manager until it has ended; returns its exit code. `provisioner` raises ValueError for wrong settings."""
    descriptors.raise_limit()
    credentials = options.credentials(WORKER_KEYS)

    async def main() -> int:
        force = asyncio.Event()
        stop = ending(options.parent_pid, again=force.set)
        manager = WorkerManager(
            config,
            options.address,
            provisioner(),
            timeout_seconds=options.death_timeout_seconds,
            credentials=credentials,
        )
        running = asyncio.ensure_future(manager.run())
        for signalled in (stop, force):  # the first signal stops the units, a second one stops them by force
            waiting = asyncio.ensure_future(signalled.wait())
            await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            manager.stop()
        return await running

    return event_loops.run(main, options.event_loop)
