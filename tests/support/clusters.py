"""Local clusters, shared by many tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaler import SchedulerClusterCombo
from scaler_io.transport.publishing import Subscriber
from scaler_protocol.addresses import Address
from support.gates import SECONDS
from support.own_keys import MONITOR, own
from support.processes import Watched, children, descendants


@contextmanager
def listening_to(scheduler: str) -> Iterator[None]:
    """A subscriber of this scheduler's monitor that reads nothing."""
    subscriber = Subscriber(Address.parse(scheduler).beside(2), credentials=own(MONITOR))
    try:
        assert subscriber.wait(SECONDS)
        yield
    finally:
        subscriber.close()


class LocalCluster:
    """A local cluster that logs to a file, with checks when it has ended."""

    def __init__(self, log: Path, **settings: Any) -> None:
        before = set(children(os.getpid()))
        self.log = log
        self.combo = SchedulerClusterCombo(**{"logging_paths": (str(log),), "logging_level": "INFO", **settings})
        self.address: str = self.combo.get_address()
        self._started = set(children(os.getpid())) - before  # not workers that another cluster starts meanwhile

    def end(self) -> None:
        """Shut down; assert that no process is left and that none has logged a broken invariant."""
        processes = set(self._started)
        for pid in self._started:
            processes.update(descendants(pid))
        watched = Watched(processes)
        try:
            self.combo.shutdown()
            assert watched.wait_gone(5) == []
        finally:
            watched.close()
        assert "Traceback" not in self.log.read_text("utf-8")
