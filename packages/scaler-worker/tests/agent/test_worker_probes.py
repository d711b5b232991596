"""WorkerProbes: the order of reading, and when answers come."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

from scaler_worker.agent.core.events import (
    CpuRead,
    ReadCpu,
    ReadRun,
    RecallTail,
    RunRead,
    RunSeen,
    TailRecalled,
)
from scaler_worker.agent.worker_probes import REVOCATION_SECONDS, WorkerProbes


class ProbeParts:
    """WorkerProbes of worker 0 between stubs; `log` is what happened in order."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.channel = SimpleNamespace(pid=os.getpid(), recall=self._recall)
        self.channels: dict[int, Any] = {0: self.channel}
        self.turns = SimpleNamespace(closed=False, soon=lambda: self.log.append("soon"))
        core = SimpleNamespace(handle=lambda number, event, now: self.log.append(event))
        processes = SimpleNamespace(
            channels=self.channels,
            current_run=self._current_run,
            revoke=lambda number, sequence: self.log.append(("revoke", sequence)),
        )
        reader = SimpleNamespace(take_results=lambda number: self.log.append("results"))
        kind: Any = WorkerProbes
        self.probes: WorkerProbes = kind(core, processes, reader, self.turns)

    def _recall(self) -> TailRecalled:
        self.log.append("recall")
        return TailRecalled((3,), (5,))

    def _current_run(self, number: int) -> int:
        self.log.append("run")
        return 77


def test_what_is_recalled_comes_first_then_the_run_is_read_before_the_results_and_told_last() -> None:
    async def main() -> None:
        parts = ProbeParts()
        parts.probes.recall_tail(RecallTail(0))
        assert parts.log == ["recall", TailRecalled((3,), (5,)), "soon", "run", "results", RunSeen(77), "soon"]

    asyncio.run(main())


def test_the_run_is_read_well_after_the_revocation() -> None:
    async def main() -> None:
        parts, began = ProbeParts(), time.monotonic()
        parts.probes.read_run(ReadRun(0, 9))
        assert parts.log == [("revoke", 9)]
        while "soon" not in parts.log:
            await asyncio.sleep(0.0005)
        assert time.monotonic() - began >= REVOCATION_SECONDS
        assert parts.log[1:] == ["run", "results", RunRead(9, 77), "soon"]

    asyncio.run(main())


def test_nobody_asks_a_worker_that_has_ended_or_an_agent_that_has() -> None:
    async def main() -> None:
        gone, ended = ProbeParts(), ProbeParts()
        for parts in (gone, ended):
            parts.probes.read_run(ReadRun(0, 9))
        gone.channels[0] = SimpleNamespace(pid=1)  # its successor has the same number
        ended.turns.closed = True
        await asyncio.sleep(5 * REVOCATION_SECONDS)
        assert gone.log == ended.log == [("revoke", 9)]

    asyncio.run(main())


def test_cpu_time() -> None:
    async def main() -> None:
        parts = ProbeParts()
        parts.probes.read_cpu(ReadCpu(0))
        assert isinstance(parts.log[0], CpuRead) and parts.log[0].nanoseconds > 0 and parts.log[1:] == ["soon"]

    asyncio.run(main())
