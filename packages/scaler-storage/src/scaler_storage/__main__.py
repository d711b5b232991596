"""The program `scaler_object_storage_server`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from scaler_io.service.process import main_guard

if TYPE_CHECKING:
    from scaler_storage.options import StorageOptions

PROGRAM: Final = "scaler_object_storage_server"


def main() -> int:
    """Run an object storage server until a signal; returns the exit code."""
    return main_guard(PROGRAM, _main)


def _main() -> None:
    from scaler_storage.options import COMMAND

    serve(COMMAND.read())


def serve(options: StorageOptions) -> None:
    """Serve until a signal, within `main_guard`."""
    options.check()
    from scaler_io.service import base
    from scaler_storage.service import StorageService

    options.begin_log()
    base.serve(options.identity, options, StorageService(options).serving)


if __name__ == "__main__":
    sys.exit(main())
