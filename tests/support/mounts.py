"""A small file system in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_memory(folder: Path, mebibytes: int) -> Iterator[None]:
    """A tmpfs of so many MiB on an empty folder. Skips the test where none can be mounted."""
    if os.getuid():
        pytest.skip("only root may mount a tmpfs")
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a tmpfs can not be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
