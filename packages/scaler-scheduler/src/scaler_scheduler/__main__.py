"""The program `scaler_scheduler`."""

from __future__ import annotations

import signal
import sys

from scaler_io.service.process import main_guard


def main() -> int:
    """Run a scheduler until a signal; returns the exit code."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until it can write a dump
    return main_guard("scaler_scheduler", _main)


def _main() -> None:
    from scaler_scheduler.service.options import COMMAND

    options = COMMAND.read()
    options.check()
    options = options.with_port()
    from scaler_io.service.base import serve
    from scaler_io.transport.zeromq import Listener
    from scaler_scheduler.service.shell import SchedulerService
    from scaler_scheduler.service.storage_server import StorageServer

    options.begin_log()
    listener = Listener(options.address, options.authorized())
    serve("Scheduler", options, SchedulerService(options, listener, StorageServer(options, listener.address)).serving)


if __name__ == "__main__":
    sys.exit(main())
