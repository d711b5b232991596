"""A limit of processes and threads, by a control group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from support.waiting import wait_until

_PIDS = Path("/sys/fs/cgroup/pids")


class ProcessLimit:
    """The processes in a group can start no process and no thread while it is `exhausted`."""

    def __init__(self, group: Path) -> None:
        self._group = group

    def add(self, pid: int) -> None:
        """Move a process with all its threads into the group."""
        (self._group / "cgroup.procs").write_text(str(pid))

    @contextmanager
    def exhausted(self) -> Iterator[None]:
        """While this context is open no more can be started."""
        (self._group / "pids.max").write_text("1")
        try:
            yield
        finally:
            (self._group / "pids.max").write_text("max")


@contextmanager
def process_limit() -> Iterator[ProcessLimit]:
    """A group of its own. Skips the test where none can be made."""
    group = _PIDS / f"scaler-test-{uuid4().hex}"
    if os.getuid() or not os.access(_PIDS / "cgroup.procs", os.W_OK):
        pytest.skip("control groups that limit processes can not be made here")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups that limit processes can not be made here: {error}")
    try:
        yield ProcessLimit(group)
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (_PIDS / "cgroup.procs").write_text(pid)
        wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()
