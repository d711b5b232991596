"""Worker managers: who may be one, what they are told, and which agents are drained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol.capacity import DesiredWorkers, ManagerStatus, UnitState
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role, Welcome
from scaler_protocol.messages import Returned, Status
from scaler_protocol.operations import Drain, Resized
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.foreign_runtimes import PATIENCE_SECONDS
from scaler_scheduler.core.snapshot import ProcessStats
from scaler_scheduler.scaling.capacity import CapacitySnapshot, Target

if TYPE_CHECKING:
    from conftest import SchedulerDriver

MANAGER = b"manager".ljust(16, b".")


class Policy:
    """Wants what the test says, and keeps what it was shown."""

    def __init__(self) -> None:
        self.wanted: tuple[int, ...] | None = (0,)
        self.seen: list[CapacitySnapshot] = []
        self.reason = "the test wants it"

    def decide(self, snapshot: CapacitySnapshot, now: float) -> Sequence[Target]:
        self.seen.append(snapshot)
        return [Target(manager.id, self.wanted, self.reason) for manager in snapshot.managers]


@pytest.fixture
def policy() -> Policy:
    return Policy()


@pytest.fixture
def managed(make_driver: type[SchedulerDriver], policy: Policy) -> SchedulerDriver:
    return make_driver(SchedulerConfig(scaling=lambda: policy), monitored=True)


def hello(name: str = "grid", identity: bytes = MANAGER) -> Hello:
    return Hello(Role.MANAGER, identity, 1, name=name, host="there")


def join(driver: SchedulerDriver, name: str = "grid", identity: bytes = MANAGER, **status: Any) -> None:
    assert isinstance(driver.core.admit(hello(name, identity)), Welcome)
    driver.feed(identity, PeerJoined(hello(name, identity), False))
    report(driver, identity, **status)


def report(driver: SchedulerDriver, identity: bytes = MANAGER, **status: Any) -> None:
    driver.feed(identity, ManagerStatus(**{
        "kind": "test", "maximum": -1, "offer_capabilities": ("",), "offer_pythons": ("",),
        "offer_cloudpickles": ("",), "unit_sizes": (2,), "offer_quantities": ("",), **status,
    }))  # fmt: skip


def told(driver: SchedulerDriver) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    return [
        (tuple(message.workers), dict(zip(message.units, message.unit_states, strict=True)))
        for message in driver.take(MANAGER, DesiredWorkers)
    ]


def test_a_manager_is_told_what_is_wanted_with_every_report_and_on_every_change(
    managed: SchedulerDriver, policy: Policy
) -> None:
    policy.wanted = (4,)
    join(managed)
    assert {workers for workers, _ in told(managed)} == {(4,)}
    report(managed)
    assert told(managed) == [((4,), {})]
    policy.wanted = (6,)
    managed.later(0.5)
    assert told(managed) == []
    managed.later(0.6)
    assert told(managed) == [((6,), {})]
    assert "the test wants it" in managed.logs[-1] and "6 workers wanted" in managed.logs[-1]


def test_a_manager_keeps_what_it_has_until_a_policy_wants_a_number(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = None
    join(managed, pending_units=("u-1",), pending_offers=(0,))
    assert told(managed) == [((), {})], "a total of 0 would cancel its units"
    managed.core.check()
    policy.wanted = (4,)
    managed.later(1.1)
    assert told(managed) == [((4,), {})]
    policy.wanted = None
    managed.later(1.1)
    report(managed)
    assert told(managed) == [((4,), {})], "the last number stands"


def test_monitors_see_what_a_manager_without_orders_has(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = None
    join(managed, pending_units=("u-1",), pending_offers=(0,))
    status = managed.core.snapshot(ProcessStats("ipc:///x", 0.0, 1.0, 0.0, 0), managed.now)
    assert (status.manager_desired, status.manager_starting) == ([2], [2])


def test_units_are_reported_when_they_join_drain_and_leave(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = (2,)
    join(managed, pending_units=("u1",), pending_offers=(0,))
    managed.later(1.1)
    assert policy.seen[-1].managers[0].offers[0].starting == 2
    told(managed)
    agent = managed.agent(workers=2, manager="grid", unit="u1")
    assert told(managed) == [((2,), {"u1": UnitState.JOINED})]
    managed.later(1.1)
    (offer,) = policy.seen[-1].managers[0].offers
    assert (offer.joined, offer.starting, offer.draining) == (2, 0, 0), "a pending unit that has joined counts once"
    policy.wanted = (0,)
    managed.later(1.1)
    assert managed.take(agent, Drain) == [Drain(managed.core.state.agents[agent].number, 0)]
    assert told(managed)[-1] == ((0,), {"u1": UnitState.DRAINING})
    managed.later(1.1)
    (offer,) = policy.seen[-1].managers[0].offers
    assert (offer.joined, offer.draining) == (0, 2)
    managed.feed(agent, PeerLost("it has left", farewell=True))
    assert told(managed)[-1] == ((0,), {"u1": UnitState.GONE})


def test_idle_and_young_units_are_drained_first(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = (3,)
    join(managed, unit_sizes=(1,))
    client = managed.client()
    agents = [managed.agent(b"a%d" % at, manager="grid", unit=f"u{at}") for at in range(3)]
    managed.submit(client)
    (busy,) = [agent for agent in agents if managed.core.state.agents[agent].runs]
    policy.wanted = (1,)
    managed.later(1.1)
    assert {agent for agent in agents if managed.take(agent, Drain)} == set(agents) - {busy}


def test_a_draining_agent_is_given_no_task_and_returns_its_queue(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = (2,)
    join(managed)
    client = managed.client()
    agent = managed.agent(workers=2, manager="grid", unit="u1")
    tasks = managed.submit(client, 4)
    runs = managed.runs(agent)
    policy.wanted = (0,)
    managed.later(1.1)
    other = managed.agent(b"other", workers=8)
    queued = dict(list(runs.items())[2:])
    managed.feed(agent, Resized(0), Returned(list(queued.values())))
    assert managed.runs(agent) == {}
    assert managed.runs(other).keys() == set(tasks) - set(list(runs)[:2])


def test_a_unit_that_is_larger_than_the_surplus_stays(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = (4,)
    join(managed, unit_sizes=(4,))
    agent = managed.agent(workers=4, manager="grid", unit="u1")
    policy.wanted = (3,)
    managed.later(1.1)
    assert managed.take(agent, Drain) == []


def test_two_managers_need_two_ids(managed: SchedulerDriver) -> None:
    join(managed)
    refused = managed.core.admit(hello(identity=b"x" * 16))
    assert isinstance(refused, Refused) and "'grid' is connected already, from there" in refused.reasons[0]
    unnamed = managed.core.admit(hello("", b"x" * 16))
    assert isinstance(unnamed, Refused) and "--worker-manager-id" in unnamed.reasons[0]
    managed.feed(MANAGER, PeerLost("gone"))
    assert isinstance(managed.core.admit(hello(identity=b"x" * 16)), Welcome)


def test_a_manager_that_is_back_is_told_all_of_its_units(managed: SchedulerDriver, policy: Policy) -> None:
    join(managed)
    managed.agent(workers=2, manager="grid", unit="u1")
    managed.agent(b"other", workers=2, manager="another", unit="u1")
    managed.feed(MANAGER, PeerLost("gone"))
    told(managed)
    policy.wanted = None
    join(managed)
    assert {unit: state for _, units in told(managed) for unit, state in units.items()} == {"u1": UnitState.JOINED}
    (snapshot,) = policy.seen[-1:]
    assert sum(workers for _, workers in snapshot.unmanaged) == 2


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        ({"offer_capabilities": ("gpu=x",)}, "gpu=x"),
        ({"pending_units": ("u",), "pending_offers": (1,)}, "beyond 1 offers"),
        ({"offer_quantities": ("license",)}, "give a quantity"),
        ({"offer_capabilities": (), "offer_pythons": (), "offer_cloudpickles": (), "unit_sizes": (),
          "offer_quantities": ()}, "offers no workers"),
    ],
)  # fmt: skip
def test_a_report_that_contradicts_itself_changes_nothing(
    managed: SchedulerDriver, status: dict[str, Any], fault: str
) -> None:
    join(managed)
    with pytest.raises(ProtocolError, match=fault):
        report(managed, **status)
    managed.later(1.1)
    with pytest.raises(ProtocolError, match="only a worker manager"):
        report(managed, managed.client())


def test_monitors_see_managers(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = (4,)
    join(managed, failure="no quota", paused_seconds=3.0, pending_units=("u1",), pending_offers=(0,))
    managed.agent(workers=2, manager="grid", unit="u2")
    managed.later(1.1)
    status = managed.core.snapshot(ProcessStats("ipc:///x", 0.0, 1.0, 0.0, 0), managed.now)
    assert (status.managers, status.manager_desired, status.manager_joined) == (["grid"], [4], [2])
    assert (status.manager_starting, status.manager_failures, status.manager_pauses) == ([2], ["no quota"], [3.0])
    assert (status.agent_managers, status.agent_units, status.agent_draining) == (["grid"], ["u2"], [False])
    assert (status.offer_managers, status.offer_capabilities, status.offer_runtimes) == (["grid"], [""], [""])


def test_tasks_wait_for_a_python_that_a_manager_can_start(managed: SchedulerDriver, policy: Policy) -> None:
    managed.agent(python="3.11.7", cloudpickle="3.1.2")
    join(managed, offer_pythons=("3.12.4",), offer_cloudpickles=("3.1.2",))
    client = managed.client(python="3.12.1", cloudpickle="3.1.2")
    tasks = managed.submit(client)
    assert managed.outcomes(client) == {}
    managed.later(1.1)
    (demand,) = policy.seen[-1].demands
    assert (demand.tasks, demand.requirement.runtime) == (1, ("3.12", "3.1"))
    unit = managed.agent(b"unit", python="3.12.9", cloudpickle="3.1.0", manager="grid", unit="u1")
    assert list(managed.runs(unit)) == tasks


def test_a_warning_names_only_what_no_manager_can_start(managed: SchedulerDriver) -> None:
    managed.agent()
    join(managed, offer_capabilities=("gpu",))
    client = managed.client()
    managed.submit(client, capability_names=("gpu",), capability_values=(-1,))
    assert not any("tasks that need it wait" in line for line in managed.logs)
    managed.submit(client, capability_names=("tpu",), capability_values=(-1,))
    assert "no connected worker offers tpu: tasks that need it wait" in managed.logs[-1]


def test_an_offer_is_what_its_units_turn_out_to_be(managed: SchedulerDriver, policy: Policy) -> None:
    wrong: dict[str, Any] = {"offer_pythons": ("3.12.4",), "offer_cloudpickles": ("3.1.2",)}
    join(managed, pending_units=("u1",), pending_offers=(0,), **wrong)
    agent = managed.agent(python="3.11.7", cloudpickle="3.1.2", manager="grid", unit="u1")
    report(managed, **wrong)
    managed.later(1.1)
    assert policy.seen[-1].managers[0].offers[0].worker_class.runtime == ("3.11", "3.1")
    managed.feed(agent, PeerLost("it has left", farewell=True))
    report(managed, **wrong)
    managed.later(1.1)
    assert policy.seen[-1].managers[0].offers[0].worker_class.runtime == ("3.11", "3.1"), "it is not forgotten"
    client = managed.client(python="3.12.1", cloudpickle="3.1.2")
    managed.agent(b"other", python="3.11.7", cloudpickle="3.1.2")
    (task,) = managed.submit(client)
    managed.later(PATIENCE_SECONDS)
    assert managed.outcomes(client)[task][0] == Status.FAILED


def test_an_agent_that_names_no_manager_is_a_unit_that_a_worker_adapter_has_started(
    make_driver: type[SchedulerDriver], policy: Policy
) -> None:
    managed = make_driver(SchedulerConfig(scaling=lambda: policy, adapters=frozenset({"grid"})), monitored=True)
    policy.wanted = (4,)
    join(managed, pending_units=("u1", "u2"), pending_offers=(0, 0))
    named = managed.agent(b"named", workers=2, manager="grid", unit="u2")
    unnamed = [managed.agent(b"a%d" % at, workers=2) for at in range(2)]
    agents = managed.core.state.agents
    assert (agents[named].manager, agents[named].unit) == ("grid", "u2")
    assert [(agents[each].manager, agents[each].unit) for each in unnamed] == [("grid", "u1"), ("", "")]


def test_other_managers_have_no_agents_that_do_not_name_them(managed: SchedulerDriver) -> None:
    join(managed, kind="webhook", pending_units=("u1",), pending_offers=(0,))
    assert managed.core.state.agents[managed.agent(workers=2)].manager == ""


def test_a_new_scheduler_decides_nothing_before_the_others_are_back(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = (0,)
    managed.feed(MANAGER, PeerJoined(replace(hello(), peer_incarnation=managed.incarnation + 1), False))
    agent = managed.agent(workers=2, manager="grid", unit="u1")
    report(managed)
    managed.later(4.0)
    assert told(managed) == [] and managed.take(agent, Drain) == [] and policy.seen == []
    managed.later(1.1)
    assert managed.take(agent, Drain) and told(managed)[0][0] == (0,)


def test_an_agent_of_an_earlier_scheduler_is_not_drained_before_clients_are_back(
    managed: SchedulerDriver, policy: Policy
) -> None:
    policy.wanted = (0,)
    join(managed, pending_units=("u1",), pending_offers=(0,))
    told(managed)
    agent = managed.agent(workers=2, manager="grid", unit="u1", peer_incarnation=managed.incarnation + 1)
    managed.later(4.0)
    report(managed)
    assert told(managed) == [] and managed.take(agent, Drain) == []
    managed.agent(b"other", peer_incarnation=managed.incarnation + 1)
    managed.later(1.1)
    assert managed.take(agent, Drain), "the others do not prolong it"


def test_only_the_first_manager_of_an_earlier_scheduler_holds_decisions(
    managed: SchedulerDriver, policy: Policy
) -> None:
    join(managed)
    other = b"other".ljust(16, b".")
    for _ in range(10):
        managed.feed(other, PeerJoined(replace(hello("other", other), peer_incarnation=3), False))
        managed.later(3.0)
    policy.wanted = (2,)
    managed.feed(other, PeerJoined(replace(hello("other", other), peer_incarnation=3), False))
    managed.later(1.0)
    assert told(managed)[-1][0] == (2,)


def test_a_unit_is_gone_when_its_last_agent_is(managed: SchedulerDriver, policy: Policy) -> None:
    join(managed)
    policy.wanted = None
    agents = [managed.agent(name, workers=2, manager="grid", unit="g-1") for name in (b"first", b"second")]
    told(managed)
    managed.feed(agents[0], Resized(0))
    managed.feed(agents[0], PeerLost("silent"))
    assert all(units == {} for _, units in told(managed)), "its second agent is there"
    managed.feed(agents[1], PeerLost("silent"))
    assert told(managed)[-1][1] == {"g-1": UnitState.GONE}


def test_what_is_not_told_yet_takes_no_memory(managed: SchedulerDriver, policy: Policy) -> None:
    policy.wanted = None
    managed.feed(MANAGER, PeerJoined(hello(), False))
    for number in range(3):
        managed.feed(managed.agent(b"a", manager="grid", unit=f"g-{number}"), PeerLost("gone"))
    (manager,) = managed.core._managers
    assert not manager.changed_units and not manager.unit_states
    managed.agent(b"b", manager="grid", unit="g-9")
    report(managed)
    assert told(managed)[-1][1] == {"g-9": UnitState.JOINED}


def test_long_reasons_are_shortened(managed: SchedulerDriver, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    join(managed)
    policy.wanted = (2,)
    monkeypatch.setattr(policy, "reason", "r" * 100_000)
    managed.later(1.0)
    assert told(managed)[-1][0] == (2,)


def test_failures_are_logged_once_per_decision(managed: SchedulerDriver) -> None:
    join(managed)
    for number in range(100):
        report(managed, failure=f"no quota, attempt {number}")
    managed.later(1.0)
    assert sum("no quota" in text for text in managed.logs) == 1


def test_more_workers_than_a_message_holds_are_refused(managed: SchedulerDriver) -> None:
    join(managed)
    units = [f"g-{number}" for number in range(40_000)]
    with pytest.raises(ProtocolError, match="are more than a manager can have"):
        report(managed, unit_sizes=(65_535,), pending_units=units, pending_offers=[0] * len(units))
