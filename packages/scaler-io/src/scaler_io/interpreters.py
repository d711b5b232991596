"""How our programs start each other with Python: without the modules of the current directory.

`python -m` searches the current directory first, so that a file `queue.py` in it would be imported in place of the
standard library's module and break the program. Python 3.10 has no option against that. Tasks are to find such modules
all the same: workers search what SCALER_WORKER_PATH names before everything else.

This module imports little because every local cluster imports it at its start.
"""

from __future__ import annotations

import os
from typing import Final

_RUN: Final = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "import runpy; runpy.run_module(sys.argv.pop(1), None, '__main__', True)"
)
WORKER_PATH: Final = "SCALER_WORKER_PATH"
"""The environment variable with the directories that workers search first, separated as in PYTHONPATH."""


def words_of(module: str) -> tuple[str, ...]:
    """The arguments of the interpreter that run a module, or a package's `__main__`, as `python -m` does."""
    return ("-c", _RUN, module)


def environment_of_workers() -> dict[str, str]:
    """The environment of a program whose workers search SCALER_WORKER_PATH or, if that is not set, this directory."""
    return {WORKER_PATH: os.getcwd(), **os.environ}
