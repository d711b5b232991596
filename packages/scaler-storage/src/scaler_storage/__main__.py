"""The program `scaler_object_storage_server`."""

from __future__ import annotations

import sys

from scaler_io.service.process import main_guard


def main() -> int:
    """Run an object storage server until a signal; returns the exit code."""
    return main_guard("scaler_object_storage_server", _main)


def _main() -> None:
    from scaler_storage.options import COMMAND

    options = COMMAND.read()
    options.check()
    from scaler_io.service.base import serve
    from scaler_storage.service import StorageService

    options.begin_log()
    serve(options.identity, options, StorageService(options).serving)


if __name__ == "__main__":
    sys.exit(main())
