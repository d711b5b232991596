"""A small file system in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_memory(folder: Path, mebibytes: int) -> Iterator[None]:
    """A tmpfs of so many MiB on an empty folder. Skips the test where none can be mounted."""
    with mounted_memory(folder, mebibytes) as problem:
        if problem:
            pytest.skip(problem)
        yield


@contextmanager
def mounted_memory(folder: Path, mebibytes: int) -> Iterator[str]:
    """The same; gives why none can be mounted, and then the folder is as before. Empty if it is mounted."""
    if os.getuid():
        yield "only root may mount a tmpfs"
        return
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        yield f"a tmpfs can not be mounted here: {done.stderr.strip()}"
        return
    try:
        yield ""
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Take all room that a file system has."""
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(4096)):
            pass
