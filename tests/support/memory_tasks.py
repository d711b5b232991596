"""Tasks that use memory."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from scaler import current_task

_FILL = "import sys, time; filled = b'x' * int(sys.argv[1]); time.sleep(float(sys.argv[2]))"


def attempt_with(size: int, seconds: float) -> int:
    """Use `size` bytes for `seconds`; return the number of the attempt."""
    filled = b"x" * size
    time.sleep(seconds)
    del filled
    return _attempt()


def attempt_with_child(size: int, seconds: float) -> int:
    """The same in a child process."""
    subprocess.run([sys.executable, "-c", _FILL, str(size), str(seconds)], check=True)
    return _attempt()


def oom_score() -> int:
    """How much the kernel prefers to kill this process when memory runs out."""
    return int(Path("/proc/self/oom_score_adj").read_text("ascii"))


def _attempt() -> int:
    task = current_task()
    assert task is not None
    return task.attempt
