"""A scheduler that does what a test says, and real agents that work for it; AWS for worker managers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scaler_protocol.addresses import Address
from support.aws import FakeAws, running_aws
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


@pytest.fixture(scope="session")
def aws_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeAws]:
    """One model of AWS for all tests."""
    with running_aws(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture
def aws(aws_server: FakeAws, monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    """AWS as a manager in this process finds it."""
    for name, value in aws_server.environment().items():
        monkeypatch.setenv(name, value)
    return aws_server
