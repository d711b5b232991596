"""`scaler_cluster`: an agent and its workers."""

from __future__ import annotations

import sys

from scaler_io.service.process import main_guard


def main() -> int:
    """Run the agent that the command line describes; returns its exit code."""
    return main_guard("scaler_cluster", _run)


def _run() -> int:
    from scaler_worker.config import COMMAND

    config = COMMAND.read()
    config.begin_log()

    # The template is forked before this process has a thread or a socket, with all that workers need imported.
    from scaler_worker.forking.template_link import Forking

    with Forking.begin(config) as forking:
        from scaler_worker.agent.main import run_cluster

        return run_cluster(config, forking)


if __name__ == "__main__":
    sys.exit(main())
