"""The program `scaler_object_storage_server`."""

from __future__ import annotations

import sys

from scaler_io.lifecycle import ending, main_guard


def main() -> int:
    """Run an object storage server until it is told to end; returns the exit code."""
    return main_guard("scaler_object_storage_server", _main)


def _main() -> None:
    from scaler_io import event_loops, logs
    from scaler_storage.options import COMMAND

    options = COMMAND.read()
    from scaler_io.exposure import refuse_exposed
    from scaler_io.options import check_storage
    from scaler_storage.service import StorageService

    refuse_exposed(options.address, options.insecure)
    check_storage(options.spill_directory, options.spill_limit)
    logs.configure(options.logging_paths, options.logging_level, options.logging_config_file, options.log_format)
    logs.announce(options.logging_paths, options.logging_config_file)

    async def serve() -> None:
        stop = ending(options.parent_pid)
        with StorageService(options).serving(stop.set):
            await stop.wait()

    event_loops.run(serve, options.event_loop)


if __name__ == "__main__":
    sys.exit(main())
