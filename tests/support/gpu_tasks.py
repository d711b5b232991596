"""Tasks that say which GPU they see."""

from __future__ import annotations

import os
from pathlib import Path

from scaler import Client
from support.gates import SECONDS
from support.tasks import alone


def seen() -> str | None:
    """The GPUs that CUDA would show to this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def with_gpu_alone(folder: Path) -> tuple[str, bool]:
    """The GPU of this process, and whether no other task has it."""
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    return gpu, alone(folder / gpu)


def through_child(client: Client, folder: Path) -> tuple[str, bool]:
    """What a task sees that this one submits."""
    return client.submit_verbose(with_gpu_alone, (folder,), {}, capabilities={"gpu": 1}).result(SECONDS)
