"""The program `scaler_scheduler`."""

from __future__ import annotations

import sys

from scaler_io.lifecycle import main_guard


def main() -> int:
    """Run a scheduler until it is told to end; returns the exit code."""
    return main_guard("scaler_scheduler", _main)


def _main() -> None:
    from scaler_io import event_loops, logs
    from scaler_scheduler.options import COMMAND

    options = COMMAND.read()
    from scaler_io.exposure import refuse_exposed
    from scaler_io.options import STORAGE_OPTIONS, check_storage
    from scaler_scheduler.service import SchedulerService

    if options.object_storage_address is not None:
        for option in STORAGE_OPTIONS:
            if getattr(options, option.destination) is not None:
                raise ValueError(f"{option.names[0]} is for the server at --object-storage-address: give it there")
    check_storage(options.spill_directory, options.spill_limit)
    for address in (options.address, options.metrics_address):
        if address is not None:
            refuse_exposed(address, options.insecure)
    logs.configure(options.logging_paths, options.logging_level, options.logging_config_file, options.log_format)
    logs.announce(options.logging_paths, options.logging_config_file)
    event_loops.run(lambda: SchedulerService(options).run(), options.event_loop)


if __name__ == "__main__":
    sys.exit(main())
