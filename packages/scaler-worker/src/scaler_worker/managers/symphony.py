"""`symphony`: Symphony starts and stops its services itself; this runs the agent that submits tasks to it."""

from __future__ import annotations

from scaler_worker.symphony.proxy_options import MANAGER, SymphonyManagerOptions
from scaler_worker.symphony.proxy_process import run_proxy

COMMAND = MANAGER


def run(options: SymphonyManagerOptions) -> int:
    """Run the agent until it has ended; returns its exit code."""
    return run_proxy(options, options.worker_manager_id)
