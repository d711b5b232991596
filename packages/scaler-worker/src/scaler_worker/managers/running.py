"""How the manager of any kind runs: from its settings and its provisioner to its exit code."""

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
        stop = ending(options.parent_pid)
        manager = WorkerManager(
            config,
            options.address,
            provisioner(),
            timeout_seconds=options.death_timeout_seconds,
            credentials=credentials,
        )
        running = asyncio.ensure_future(manager.run())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        manager.stop()
        return await running

    return event_loops.run(main, options.event_loop)
