"""The program `scaler_relay`."""

from __future__ import annotations

import sys

from scaler_io.service.process import main_guard


def main() -> int:
    """Run a relay until a signal; returns the exit code."""
    return main_guard("scaler_relay", _main)


def _main() -> None:
    from scaler_scheduler.relay.options import COMMAND

    options = COMMAND.read()
    options.check()
    from scaler_io.service.base import serve
    from scaler_io.transport.zeromq import Listener
    from scaler_scheduler.relay.shell import RelayService

    options.begin_log()
    service = RelayService(options, Listener(options.address, options.authorized()))
    serve("Relay", options, service.serving)
    service.raise_failure()


if __name__ == "__main__":
    sys.exit(main())
