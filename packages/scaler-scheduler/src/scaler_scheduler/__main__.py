"""The program `scaler_scheduler`."""

from __future__ import annotations

import sys

from scaler_io.lifecycle import ending, main_guard


def main() -> int:
    """Run a scheduler until it is told to end; returns the exit code."""
    return main_guard("scaler_scheduler", _main)


def _main() -> None:
    from scaler_io import event_loops, logs
    from scaler_scheduler.options import COMMAND

    options = COMMAND.read()
    options.check()
    from scaler_io.zeromq import Listener
    from scaler_scheduler.service import SchedulerService
    from scaler_scheduler.storage_server import StorageServer

    logs.configure(options.logging_paths, options.logging_level, options.logging_config_file, options.log_format)
    logs.announce(options.logging_paths, options.logging_config_file)

    async def serve() -> None:
        stop = ending(options.parent_pid)
        listener = Listener(options.address)
        with SchedulerService(options, listener, StorageServer(options, listener.address)).serving(stop.set):
            await stop.wait()

    event_loops.run(serve, options.event_loop)


if __name__ == "__main__":
    sys.exit(main())
