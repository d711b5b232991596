"""`scaler_symphony_cluster`: an agent whose tasks run in Symphony."""

from __future__ import annotations

import sys

from scaler_io.service.process import main_guard


def main() -> int:
    """Run the agent that the command line describes; returns its exit code."""
    return main_guard("scaler_symphony_cluster", _run)


def _run() -> int:
    from scaler_worker.symphony.proxy_options import CLUSTER

    options = CLUSTER.read()
    options.begin_log()

    from scaler_worker.symphony.proxy_process import run_proxy

    return run_proxy(options)


if __name__ == "__main__":
    sys.exit(main())
