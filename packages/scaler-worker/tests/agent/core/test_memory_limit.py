"""The memory limit: whom it stops, what it allows a lone task, when it measures."""

from __future__ import annotations

import math
from typing import Any

import pytest

from scaler_io.links.effects import Log
from scaler_io.links.events import LinkUp
from scaler_protocol.errors import MemoryLimitError, restore
from scaler_protocol.handshake import Welcome
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Done, Group, Run, Status
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_worker.agent.core import events
from scaler_worker.agent.core.core import AgentCore
from scaler_worker.agent.core.events import SCHEDULER
from scaler_worker.agent.core.memory_limit import FASTEST_GROWTH, LONGEST_SECONDS, SHORTEST_SECONDS
from scaler_worker.agent.core.records import NO_RUN, AgentConfig
from scaler_worker.ipc.frames import RunsEnded, WorkerReady

LIMIT = 1 << 30


FUNCTION = function_id(b"body")


class Host:
    """A core with two ready workers, and one run for each of them unless told otherwise."""

    def __init__(self, runs: int = 2, limit: int = LIMIT) -> None:
        self.core = AgentCore(AgentConfig(2, "agent", "host", memory_limit_per_worker=limit))
        self.now = 100.0
        self.effects: list[Any] = []
        self.feed(SCHEDULER, LinkUp(Welcome(1), False))
        for worker in range(2):
            self.feed(worker, WorkerReady(1000 + worker))
        functions = {"functions": (FUNCTION,), "names": ("f",), "bodies": Payloads([b"body"])}
        message = Run(1, (Group(FUNCTION),), list(range(11, 11 + runs)), Payloads([b"call"] * runs), **functions)  # type: ignore[arg-type]
        self.feed(SCHEDULER, message)
        self.worker_of = {effect.entries[0][0]: effect.worker for effect in self.take(events.SendTasks)}

    def feed(self, peer: int, *happened: Any) -> None:
        for event in happened:
            self.core.handle(peer, event, self.now)
        self.effects += self.core.settle(self.now)
        self.core.check()

    def take(self, kind: type) -> list[Any]:
        """Effects of this kind since the last call."""
        taken = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def used(self, run: int, size: int, current: int | None = None) -> list[Any]:
        """The worker of the run uses so much memory; returns what is killed."""
        self.feed(self.worker_of[run], events.MemoryUsed(size, run if current is None else current))
        return self.take(events.KillWorker)

    def pass_time(self) -> list[int]:
        """Go to the next measurement; returns the workers that are measured."""
        self.now = max(self.now, self.core._memory.due())
        self.feed(SCHEDULER)
        return sorted(effect.worker for effect in self.take(events.ReadMemory))

    def lost(self) -> dict[int, MemoryLimitError]:
        """The runs that were reported as lost for their memory."""
        dones = [effect.message for effect in self.take(events.SendToScheduler) if isinstance(effect.message, Done)]
        found = {}
        for done in dones:
            for run, status, payload in zip(done.runs, done.statuses, done.results, strict=True):
                error = restore(payload)
                assert status == Status.LOST and isinstance(error, MemoryLimitError)
                found[run] = error
        return found


def test_a_run_beyond_the_limit_is_stopped_and_lost() -> None:
    host = Host()
    assert host.used(1, LIMIT) == [] and host.used(2, LIMIT + 1) == [events.KillWorker(host.worker_of[2])]
    host.feed(host.worker_of[2], events.WorkerDied("was killed by SIGKILL", 2))
    (error,) = host.lost().values()
    assert error.details["used_bytes"] == LIMIT + 1 and error.details["limit_bytes"] == LIMIT
    assert "used 1,024 MiB of memory on host and was stopped: the limit per worker is 1,024 MiB" in str(error)


def test_a_lone_run_may_use_what_all_may_use_together() -> None:
    host = Host(runs=1)
    assert host.used(1, 2 * LIMIT) == []
    assert host.used(1, 2 * LIMIT + 1) == [events.KillWorker(host.worker_of[1])]
    assert [log.text for log in host.take(Log) if "is killed to stop task b: the task used 2,048 MiB" in log.text]
    host.feed(host.worker_of[1], events.WorkerDied("was killed by SIGKILL", 1))
    (error,) = host.lost().values()
    assert error.details["limit_bytes"] == 2 * LIMIT and "2,048 MiB for a task alone on its host" in str(error)


def test_a_result_that_came_before_the_worker_was_killed_counts() -> None:
    host = Host()
    assert host.used(2, LIMIT + 1)
    host.feed(host.worker_of[2], RunsEnded([2], [Status.VALUE], [5], [NO_PROFILE], [b"result"], []))
    host.feed(host.worker_of[2], events.WorkerDied("was killed by SIGKILL", 0))
    dones = [effect.message for effect in host.take(events.SendToScheduler) if isinstance(effect.message, Done)]
    assert [status for done in dones for status in done.statuses] == [Status.VALUE]


def test_a_worker_that_is_large_between_tasks_is_replaced_and_nothing_is_lost() -> None:
    host = Host()
    assert host.used(2, LIMIT + 1, current=NO_RUN) == [events.KillWorker(host.worker_of[2])]
    host.feed(host.worker_of[2], events.WorkerDied("was killed by SIGKILL", NO_RUN))
    assert host.lost() == {} and host.take(events.StartWorker)


def test_it_is_measured_sooner_the_nearer_it_is_to_its_limit() -> None:
    host = Host()
    assert host.pass_time() == [0, 1]
    assert host.core.due() == host.now + LONGEST_SECONDS
    host.used(1, LIMIT - FASTEST_GROWTH // 10)
    assert host.core._memory.due() - host.now == pytest.approx(0.1)
    host.used(2, LIMIT)
    assert host.core._memory.due() - host.now == pytest.approx(SHORTEST_SECONDS)
    assert host.pass_time() == [0, 1]


def test_nothing_is_measured_without_tasks_or_without_a_limit() -> None:
    idle = Host(runs=0)
    assert idle.core._memory.due() == math.inf
    unlimited = Host(limit=0)
    assert unlimited.core._memory.due() == math.inf
