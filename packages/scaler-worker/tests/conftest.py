"""A scheduler that does what a test says, and real agents that work for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler_protocol.addresses import Address
from support.fake_scheduler import AgentProcess, FakeScheduler


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[FakeScheduler]:
    made = FakeScheduler(Address(path=str(tmp_path / "s")))
    yield made
    made.close()


@pytest.fixture
def cluster(scheduler: FakeScheduler, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts agents, waits until they have joined, and ends them."""
    agents: list[AgentProcess] = []
    expected_tracebacks: list[int] = []

    def start(*options: str, join: bool = True, tracebacks: int = 0, **how: Any) -> AgentProcess:
        expected_tracebacks.append(tracebacks)
        agent = AgentProcess(scheduler.address, tmp_path / f"log{len(agents)}", *options, **how)
        agents.append(agent)
        if join:
            try:
                scheduler.until(lambda: scheduler.agent is not None)
            except AssertionError:
                raise AssertionError(f"the agent did not join:\n{agent.log()}") from None
        return agent

    yield start
    for agent, tracebacks in zip(agents, expected_tracebacks, strict=True):
        if agent.process.poll() is None:
            agent.end()
        log = agent.log()
        assert log.count("Traceback") == tracebacks, log
