"""Quantities of the cluster: what each way of starting a run counts, and what gives it back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerJoined, PeerLost, SendFailed
from scaler_protocol.capacity import ManagerStatus
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role
from scaler_protocol.ids import worker_id
from scaler_protocol.messages import Reconcile, Returned, Run, Status, Withdraw
from scaler_protocol.payloads import NONE
from scaler_scheduler.core.config import SchedulerConfig

if TYPE_CHECKING:
    from conftest import SchedulerDriver

Running = tuple["SchedulerDriver", bytes, bytes, dict[int, int]]
NEEDING: dict[str, Any] = {"capability_names": ("license",), "capability_values": (1,)}


@pytest.fixture
def licensed(make_driver: type[SchedulerDriver]) -> SchedulerDriver:
    """A scheduler that has two licenses, and has just been started."""
    driver = make_driver(SchedulerConfig(cluster_capabilities=(("license", 2),)), monitored=True)
    driver.settle()
    return driver


def used(driver: SchedulerDriver) -> int:
    assert driver.core.state.cluster is not None
    return driver.core.state.cluster.used.get("license", 0)


def submit(driver: SchedulerDriver, client: bytes, agents: list[bytes], way: str) -> list[int]:
    """A task for each agent, which are started this way."""
    if way == "pinned":
        return [task for agent in agents for task in driver.submit(client, **NEEDING, worker=worker_id(agent, 1))]
    tasks, state = driver.submit(client, len(agents), **NEEDING), driver.core.state
    for record in [record for record in map(state.find, tasks) if record is not None and way != "plain"]:
        setattr(record.note(), way, True)
        state.waiting.remove(record)
        state.queue([record], driver.now)
    return tasks


@pytest.mark.parametrize("way", ["plain", "pinned", "suspect", "exclusive"])
def test_however_tasks_are_started_they_are_not_too_many(licensed: SchedulerDriver, way: str) -> None:
    client, agents = licensed.client(), [licensed.agent(b"agent%d" % number, workers=2) for number in range(4)]
    tasks = submit(licensed, client, agents, way)
    assert not any(map(licensed.runs, agents)), "it is not known what runs of an earlier scheduler have taken"
    licensed.later(licensed.config.recovery_seconds)
    for _ in range(4):
        given = {agent: licensed.runs(agent) for agent in agents}
        assert sum(map(len, given.values())) <= 2
        for agent, runs in given.items():
            licensed.done(agent, runs)
    assert licensed.outcomes(client).keys() == set(tasks)
    assert not used(licensed)


@pytest.fixture
def running(licensed: SchedulerDriver) -> Running:
    """Two of three tasks run on an agent: the scheduler, the client, the agent, and these runs."""
    licensed.later(licensed.config.recovery_seconds)
    client, agent = licensed.client(), licensed.agent(workers=4, lives_on_seconds=100.0)
    licensed.submit(client, 3, **NEEDING)
    runs = licensed.runs(agent)
    assert len(runs) == used(licensed) == 2
    return licensed, client, agent, runs


def test_a_lost_agent_has_it_until_it_must_have_ended(running: Running) -> None:
    driver, _, agent, _ = running
    driver.feed(agent, PeerLost("silent"))
    other = driver.agent(b"other", workers=4)
    assert not driver.runs(other) and used(driver) == 2
    driver.later(99.0)
    assert not driver.runs(other)
    assert driver.core.due() == driver.now + 1.0
    driver.later(1.0)
    assert len(driver.runs(other)) == 2


def test_an_agent_that_ends_its_processes_gives_all_back(running: Running) -> None:
    driver, _, agent, _ = running
    other = driver.agent(b"other", workers=4)
    driver.feed(agent, PeerLost("stopping", farewell=True))
    assert len(driver.runs(other)) == 2


def test_runs_that_are_returned_or_cannot_be_sent_give_it_back(running: Running) -> None:
    driver, client, agent, runs = running
    driver.feed(agent, Returned(list(runs.values())[:1]))
    [(task, run)] = driver.runs(agent).items()
    assert used(driver) == 2
    driver.feed(agent, SendFailed(Run(run, (), (task,), NONE), "too long"))
    assert len(driver.outcomes(client)) == 1
    assert len(driver.runs(agent)) == 1 and used(driver) == 2


def test_a_withdrawn_run_that_only_another_scheduler_knows_counts_until_it_is_over(licensed: SchedulerDriver) -> None:
    agent = licensed.agent(workers=4, peer_incarnation=99)
    said = Reconcile(running=[5], runs=[1], takers=[1, 2], taken_names=["license"] * 2, taken_values=[1, 1])
    licensed.feed(agent, said)
    licensed.later(2 * licensed.config.recovery_seconds)
    assert used(licensed) == 2
    assert [message.runs for message in licensed.take(agent, Withdraw)] == [(1,)], "no client wants it"
    client = licensed.client()
    licensed.submit(client, **NEEDING)
    assert not licensed.runs(agent)
    licensed.done(agent, {6: 2}, Status.CANCELLED)
    assert len(licensed.runs(agent)) == 1 and used(licensed) == 2
    licensed.done(agent, {5: 1}, Status.CANCELLED)
    assert used(licensed) == 1


def test_an_agent_that_comes_back_has_what_it_reports(running: Running) -> None:
    driver, _, agent, runs = running
    [(task, kept), _] = runs.items()
    other = driver.agent(b"other", workers=4)
    hello = Hello(Role.AGENT, agent, 1, workers=4, queue_size=9, peer_incarnation=7, lives_on_seconds=100.0)
    driver.feed(agent, PeerJoined(hello, False))
    assert not driver.runs(other) and used(driver) == 2
    driver.feed(agent, Reconcile([task], [kept], more=True, takers=[kept], taken_names=["license"], taken_values=[1]))
    assert used(driver) == 2, "it has not said all"
    driver.feed(agent, Reconcile())
    assert used(driver) == 2 and len(driver.runs(other)) + len(driver.runs(agent)) == 1


def test_an_agent_cannot_take_over_what_another_one_has(running: Running) -> None:
    driver, _, agent, runs = running
    other = driver.agent(b"other", workers=4)
    claim = list(runs.values())
    driver.feed(other, Reconcile(takers=claim, taken_names=["license"] * 2, taken_values=[1, 1]), Reconcile())
    assert used(driver) == 2 and not driver.runs(other) and not driver.runs(agent)


def test_a_client_that_comes_from_an_earlier_scheduler_holds_nothing_back(licensed: SchedulerDriver) -> None:
    client, agent = licensed.client(), licensed.agent(b"agent", workers=4)
    licensed.later(licensed.config.recovery_seconds)
    late = b"late".ljust(16, b".")
    licensed.feed(late, PeerJoined(Hello(Role.CLIENT, late, 1, session=99, peer_incarnation=5), False))
    licensed.submit(client, 3, **NEEDING)
    assert len(licensed.runs(agent)) == 2


def test_others_may_not_offer_what_the_cluster_has(licensed: SchedulerDriver) -> None:
    offers: dict[str, Any] = {"capability_names": ("license",), "capability_values": (1,)}
    refused = licensed.core.admit(Hello(Role.AGENT, b"a" * 16, 1, workers=1, queue_size=1, **offers))
    assert isinstance(refused, Refused) and "license is in the scheduler's --cluster-capabilities" in refused.reasons[0]
    manager = b"manager".ljust(16, b".")
    licensed.feed(manager, PeerJoined(Hello(Role.MANAGER, manager, 1, name="grid"), False))
    status = ManagerStatus("test", 4, ("license=1",), ("",), ("",), (1,), ("",))
    with pytest.raises(ProtocolError, match="offer of worker manager grid: license is in the scheduler's"):
        licensed.feed(manager, status)
    licensed.feed(manager, replace(status, offer_capabilities=("gpu=1",)))
    [offered] = licensed.core.state.offered
    assert dict(offered.capabilities) == {"gpu": 1, "license": 2}
