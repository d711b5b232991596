"""A memory that is small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.mounts import small_memory


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a tmpfs of so many MiB."""
    with ExitStack() as mounted:

        def mount(mebibytes: int) -> Path:
            folder = tmp_path / f"tmpfs-{mebibytes}"
            folder.mkdir()
            mounted.enter_context(small_memory(folder, mebibytes))
            return folder

        yield mount
