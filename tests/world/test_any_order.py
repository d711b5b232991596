"""Any interleaving of work, faults and time: every core keeps its invariants, every wanted future ends once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scaler_protocol.messages import Group, Status
from support.examples import examples
from world.callers import WorldClient, WorldFuture
from world.cluster import CONFIG, World
from world.hosts import SimulatedHost
from world.plans import FUNCTION, Plan
from world.relays import RELAY_ADDRESS, RelayLife

EXAMPLES = examples(15)
EXAMPLES_BEHIND_RELAYS = examples(8)
STEPS = 30
MOST = 4
"""Hosts and clients at a time."""
TIMEOUT_SECONDS = 15.0
ALWAYS = 1000
LIMITED = Group(FUNCTION, speculate=True, capability_names=("license",), capability_values=(1,))
"""Tasks of which each host runs one at a time."""


def plain(*seconds: float) -> st.SearchStrategy[Plan]:
    return st.builds(
        Plan,
        seconds=st.sampled_from(seconds),
        value=st.sampled_from(["a", "b"]),
        raises=st.sampled_from([0, 0, 0, ALWAYS]),
        kills_worker=st.sampled_from([0, 0, 0, 0, 0, 0, 1, ALWAYS]),
    )


leaves = plain(0.0001, 0.0001, 0.005, 0.05, 0.5, 3.0)
parents = st.builds(
    Plan,
    seconds=st.sampled_from([0.001, 0.1]),
    children=st.lists(leaves, min_size=1, max_size=3).map(tuple),
    tells=st.booleans(),
    waits=st.sampled_from([True, True, True, False]),
)
grandparents = st.builds(Plan, children=st.lists(parents, min_size=1, max_size=2).map(tuple))
some_plan = st.one_of(leaves, leaves, parents, grandparents)
moments = st.sampled_from([0.0, 0.0003, 0.002, 0.02, 0.2, 1.0, 4.0])
whiles = st.sampled_from([0.01, 0.5, 2.0, 7.0])
chosen = st.integers(0, 99)


class AnyFaults(RuleBasedStateMachine):
    """Clients work, everything breaks; at the end everything is healed."""

    @initialize(
        seed=st.integers(0, 9),
        hosts=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        queue=st.booleans(),
        journal=st.booleans(),
    )
    def start(self, seed: int, hosts: list[int], queue: bool, journal: bool) -> None:
        self.world = World(
            seed,
            hosts=hosts,
            clients=2,
            queue_size=2 if queue else 1000,
            client_timeout_seconds=TIMEOUT_SECONDS,
            host_timeout_seconds=TIMEOUT_SECONDS,
            journal=journal,
            consumables={"license": 1},
        )
        self.agents_in_trouble = 0
        self.clients_in_trouble = False
        self.world_is_up = True

    # --- who ----------------------------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[SimulatedHost]:
        return [host for host in self.world.hosts if host.alive]

    def some_client(self, number: int) -> WorldClient:
        return self.world.present[number % len(self.world.present)]

    def some_host(self, number: int) -> SimulatedHost:
        return self.hosts[number % len(self.hosts)]

    def some_process(self, number: int) -> WorldClient | SimulatedHost:
        self.world.run(0.001)  # those that have just come have a connection then
        processes: list[WorldClient | SimulatedHost] = [*self.world.present, *self.hosts]
        return processes[number % len(processes)]

    def some_future(self, client: WorldClient, number: int) -> WorldFuture | None:
        futures = list(client.futures.values())
        return futures[number % len(futures)] if futures else None

    # --- work ---------------------------------------------------------------------------------------------------

    @rule(
        who=chosen,
        plans=st.lists(some_plan, min_size=1, max_size=3),
        repeat=st.sampled_from([1, 1, 10]),
        group=st.sampled_from([Group(FUNCTION), Group(FUNCTION, speculate=True), LIMITED]),
    )
    def submit(self, who: int, plans: list[Plan], repeat: int, group: Group) -> None:
        self.some_client(who).submit(*plans * repeat, group=group)

    @rule(who=chosen, plan=plain(0.0001, 0.005, 0.05), count=st.integers(1, 60))
    def map(self, who: int, plan: Plan, count: int) -> None:
        self.some_client(who).map(*[plan] * count)

    @rule(who=chosen, needs=st.lists(chosen, min_size=1, max_size=2), plan=some_plan, block=st.booleans())
    def depend(self, who: int, needs: list[int], plan: Plan, block: bool) -> None:
        client = self.some_client(who)
        found = {future for need in needs if (future := self.some_future(client, need))}
        submit = client.map if block else client.submit
        submit(plan, needs=sorted(found, key=lambda future: future.task_id))

    @rule(who=chosen, which=st.lists(chosen, min_size=1, max_size=10))
    def cancel(self, who: int, which: list[int]) -> None:
        client = self.some_client(who)
        client.cancel(*{future for number in which if (future := self.some_future(client, number))})

    @rule(seconds=moments)
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    # --- who comes and goes -------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.hosts) < MOST)
    @rule(workers=st.integers(1, 3))
    def host_joins(self, workers: int) -> None:
        self.world.add_host(workers)

    @precondition(lambda self: self.hosts)
    @rule(who=chosen, how=st.sampled_from(["kill", "vanish", "leave"]))
    def host_goes(self, who: int, how: str) -> None:
        self.agents_in_trouble += 1
        getattr(self.some_host(who), how)()

    @precondition(lambda self: len(self.world.present) < MOST)
    @rule()
    def client_joins(self) -> None:
        self.world.add_client()

    @precondition(lambda self: len(self.world.present) > 1)
    @rule(who=chosen, politely=st.booleans())
    def client_goes(self, who: int, politely: bool) -> None:
        client = self.some_client(who)
        if politely:
            client.leave(self.world.now)
        else:
            client.kill()

    # --- faults -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.hosts)
    @rule(who=chosen, busy=st.booleans())
    def worker_is_killed(self, who: int, busy: bool) -> None:
        self.world.kill_worker(self.some_host(who), busy=busy)

    @precondition(lambda self: self.hosts)
    @rule(who=chosen, which=chosen, seconds=whiles)
    def worker_is_stopped(self, who: int, which: int, seconds: float) -> None:
        workers = list(self.some_host(who).workers.values())
        if workers:
            workers[which % len(workers)].stop(seconds)

    @rule(who=chosen, dialer=st.booleans(), listener=st.booleans())
    def connection_breaks(self, who: int, dialer: bool, listener: bool) -> None:
        self.agents_in_trouble += 1
        self.clients_in_trouble = True
        self.world.connection(self.some_process(who)).cut(dialer_notices=dialer, listener_notices=listener)

    @rule(who=chosen, seconds=whiles, up=st.booleans(), down=st.booleans())
    def connection_stalls(self, who: int, seconds: float, up: bool, down: bool) -> None:
        self.agents_in_trouble += 1
        self.world.connection(self.some_process(who)).stall(seconds, up=up, down=down)

    @rule(who=chosen, seconds=whiles)
    def process_is_stopped(self, who: int, seconds: float) -> None:
        self.agents_in_trouble += 1
        self.some_process(who).shell.stop(seconds)

    @rule(seconds=whiles)
    def scheduler_is_stopped(self, seconds: float) -> None:
        if self.world_is_up:
            self.world.scheduler.shell.stop(seconds)

    @rule(proxy=st.booleans())
    def scheduler_is_killed(self, proxy: bool) -> None:
        if self.world_is_up:
            self.world_is_up = False
            self.clients_in_trouble = True
            if proxy:
                self.world.replace_scheduler()
                self.world_is_up = True
            else:
                self.world.kill_scheduler()

    @rule()
    def scheduler_is_started(self) -> None:
        if not self.world_is_up:
            self.world_is_up = True
            self.world.start_scheduler()

    # --- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """All faults end and time passes: every wanted future ends, and no process keeps any state."""
        if not hasattr(self, "world"):
            return
        self.world.check()
        self.scheduler_is_started()
        self.world.add_host(2)
        self.world.run(2 * TIMEOUT_SECONDS + CONFIG.client_timeout_seconds)
        self.world.finish(300.0)
        self.world.rest(10.0)
        for client in self.world.present:
            for future in client.futures.values():
                self.check_fate(future)
        for host in self.world.hosts:
            assert self.world.most_taken(host, "license") <= 1
        for execution in self.world.history:
            before = [run for run in self.world.history if run.task == execution.task and run.began < execution.began]
            cut_short = sum(run.how != "value" for run in before)
            assert execution.attempt <= 1 + cut_short + self.agents_in_trouble, "what did not run was charged"

    def check_fate(self, future: WorldFuture) -> None:
        """A future ended as its plan and its needs say, or as a fault explains."""
        outcome = future.outcome()
        assert outcome is not None
        status, payload = outcome
        needs = [need.outcome() for need in future._needs]
        if status == Status.VALUE:
            assert payload == self.value_of(future)
        elif any(need is not None and need[0] == status for need in needs):
            pass  # it shares the fate of what it needs
        elif status == Status.CANCELLED:
            assert future.cancelled
        elif status == Status.RAISED:
            assert future.plan.raises or future.plan.children
        elif type(future.error).__name__ == "SchedulerLostError":
            assert self.clients_in_trouble
        else:
            assert type(future.error).__name__ == "WorkerDiedError", future.error

    def value_of(self, future: WorldFuture) -> bytes:
        """What a future's task returns. One that was cancelled may have ended, and been passed on, before."""
        assert future.plan.fate() == Status.VALUE
        for need in future._needs:
            assert need.cancelled or need.status == Status.VALUE
        return future.plan.result([self.value_of(need) for need in future._needs])


class AnyFaultsBehindRelays(AnyFaults):
    """Some hosts are behind a relay, which is lost, too."""

    @initialize(
        seed=st.integers(0, 9),
        hosts=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        direct=st.integers(0, 1),
        journal=st.booleans(),
    )
    def start(self, seed: int, hosts: list[int], direct: int, journal: bool) -> None:
        self.world = World(
            seed,
            hosts=direct,
            clients=2,
            client_timeout_seconds=TIMEOUT_SECONDS,
            host_timeout_seconds=TIMEOUT_SECONDS,
            journal=journal,
        )
        self.agents_in_trouble, self.clients_in_trouble, self.world_is_up = 0, False, True
        self.world.add_relay()
        self.world.run(0.1)
        for workers in hosts:
            self.world.add_host(workers, address=RELAY_ADDRESS)

    @rule(
        who=chosen,
        plans=st.lists(some_plan, min_size=1, max_size=3),
        repeat=st.sampled_from([1, 1, 10]),
        group=st.sampled_from([Group(FUNCTION), Group(FUNCTION, speculate=True)]),
    )
    def submit(self, who: int, plans: list[Plan], repeat: int, group: Group) -> None:
        self.some_client(who).submit(*plans * repeat, group=group)

    @property
    def relay(self) -> RelayLife | None:
        relay = self.world.relays[-1]
        return relay if relay.shell.alive else None

    @precondition(lambda self: len(self.hosts) < MOST and self.relay is not None)
    @rule(workers=st.integers(1, 3))
    def host_joins_the_relay(self, workers: int) -> None:
        self.world.add_host(workers, address=RELAY_ADDRESS)

    @precondition(lambda self: self.relay is not None)
    @rule()
    def relay_is_killed(self) -> None:
        self.agents_in_trouble += 1
        self.world.relays[-1].shell.kill()

    @precondition(lambda self: self.relay is None)
    @rule()
    def relay_is_started(self) -> None:
        self.world.add_relay()

    @precondition(lambda self: self.relay is not None)
    @rule(seconds=whiles)
    def relay_is_stopped(self, seconds: float) -> None:
        self.agents_in_trouble += 1
        self.world.relays[-1].shell.stop(seconds)

    @precondition(lambda self: self.relay is not None and self.relay.dialer.connections)
    @rule(dialer=st.booleans(), listener=st.booleans())
    def relay_loses_its_connection(self, dialer: bool, listener: bool) -> None:
        self.agents_in_trouble += 1
        self.world.relays[-1].dialer.connection.cut(dialer_notices=dialer, listener_notices=listener)


@pytest.mark.parametrize(("machine", "count"), [(AnyFaults, EXAMPLES), (AnyFaultsBehindRelays, EXAMPLES_BEHIND_RELAYS)])
def test_any_order(machine: type[RuleBasedStateMachine], count: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=count, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
