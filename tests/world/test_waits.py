"""No task waits for longer than a moment while a worker that could run it is idle, whatever it waits behind."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaler_protocol.addresses import Address
from scaler_protocol.messages import Group
from support.examples import examples
from world.cluster import ADDRESS, World
from world.plans import FUNCTION, OTHER_FUNCTION, Plan
from world.waits import IdleWatch

BOUND_SECONDS = 0.8
"""A run is overdue after 0.5 s at most; then what is behind it is offered to others. Messages and sweeps add to it."""
SHAPES = ([2, 2], [1, 1, 1], [2, 1], [2, 2, 2], [1, 1], [4, 2, 1])
DURATIONS = (0.0005, 0.001, 0.001, 0.004, 0.02, 0.1, 0.5, 3.0, 3.0, 6.0)
MOMENTS = (0.0003, 0.002, 0.01, 0.05, 0.3, 1.5)
OFFERS = ((), ("gpu",), ("big",), ("gpu", "big"))
EXAMPLES = examples(8)


class UnequalWork:
    """Clients submit tasks of a function that were short so far, and some take long; hosts come and are slow."""

    def __init__(self, seed: int, *, capabilities: bool = False, relays: int = 0, busy: float = 0.0) -> None:
        self.draw, self.busy = Random(seed), busy
        self.world = World(seed, hosts=[], clients=self.draw.choice([1, 2]))
        self.watch = IdleWatch(self.world)
        self.offers = OFFERS if capabilities else OFFERS[:1]
        self.addresses = [ADDRESS]
        for number in range(relays):
            self.addresses.append(Address(path=f"/world/relay{number}"))
            self.world.add_relay(self.addresses[-1])
        self.world.run(0.3)
        for workers in self.draw.choice(SHAPES):
            self.add_host(workers)
        self.hopeless = self.world.client.submit(Plan(), group=Group(FUNCTION, ("none offers it",), (-1,)))
        self.world.run(0.1)

    def add_host(self, workers: int) -> None:
        offers, address = self.draw.choice(self.offers), self.draw.choice(self.addresses)
        if offers:
            address = ADDRESS  # the hosts of a relay are alike
        queue_size = self.draw.choice([1000, 1000, 3])
        self.world.add_host(workers, capabilities=offers, address=address, queue_size=queue_size)

    def plan(self, *, nested: bool = True) -> Plan:
        """Of a task that is short with even odds; some submit tasks, and most of these wait for them."""
        draw = self.draw
        seconds = draw.choice(DURATIONS) if draw.random() < 0.5 else 0.001
        # What tasks submit behind a relay stays there, and the scheduler does not know of it.
        if len(self.addresses) > 1 or not nested or draw.random() < 0.8:
            return Plan(seconds)
        children = tuple(self.plan(nested=False) for _ in range(draw.choice([1, 2, 4])))
        return Plan(seconds, children=children, tells=draw.random() < 0.6, waits=draw.random() < 0.8)

    def group(self) -> Group:
        there = [offers for offers in self.offers if any(set(offers) <= set(h.capabilities) for h in self.world.hosts)]
        names = self.draw.choice([(), *there])
        function, priority = self.draw.choice([FUNCTION, FUNCTION, OTHER_FUNCTION]), self.draw.choice([0, 0, 0, 1, 5])
        return Group(function, names, (-1,) * len(names), priority=priority)

    def step(self) -> None:
        draw, client = self.draw, self.draw.choice(self.world.present)
        if self.busy:  # what it measures itself falls slowly
            self.world.scheduler.hub.busy = self.busy
            self.world.scheduler.core.note_busy(self.busy)
        chance = draw.random()
        if chance < 0.6:
            client.submit(*[self.plan() for _ in range(draw.choice([1, 1, 1, 2, 3, 8, 30]))], group=self.group())
        elif chance < 0.75:
            client.map(*[Plan(draw.choice(DURATIONS) if draw.random() < 0.1 else 0.001) for _ in range(100)])
        elif chance < 0.85 and (unfinished := set(client.unfinished.values()).difference(self.hopeless)):
            client.cancel(*draw.sample(sorted(unfinished, key=lambda each: each.task_id), min(3, len(unfinished))))
        elif chance < 0.9:
            self.add_host(draw.choice([1, 2]))
        elif chance < 0.95:
            draw.choice(self.world.hosts).slowness = draw.choice([0.2, 1.0, 3.0])
        self.watch.run(draw.choice(MOMENTS))

    def check(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.world.client.cancel(*self.hopeless)
        self.watch.finish(2000.0)
        seconds, what = self.watch.longest
        assert seconds <= BOUND_SECONDS, what


any_seed = st.integers(0, 2**32)
some = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@some
@given(seed=any_seed)
def test_equal_hosts(seed: int) -> None:
    UnequalWork(seed).check(10)


@some
@given(seed=any_seed)
def test_hosts_that_offer_different_capabilities(seed: int) -> None:
    UnequalWork(seed, capabilities=True).check(10)


@some
@given(seed=any_seed, busy=st.sampled_from([0.75, 1.0]))
def test_a_busy_scheduler(seed: int, busy: float) -> None:
    UnequalWork(seed, capabilities=True, busy=busy).check(10)


@some
@given(seed=any_seed, relays=st.sampled_from([1, 2]))
def test_hosts_behind_relays_and_others(seed: int, relays: int) -> None:
    UnequalWork(seed, relays=relays).check(10)


@pytest.mark.parametrize("relays", [1, 2])
def test_what_waits_on_a_host_behind_relays_goes_to_an_idle_host_elsewhere(relays: int) -> None:
    world, above = World(hosts=[]), ADDRESS
    for number in range(relays):
        address = Address(path=f"/world/relay{number}")
        world.add_relay(address, above)
        world.run(0.3)
        above = address
    world.add_host(1, address=above)
    world.client.map(*[Plan(0.001)] * 50)  # the function is known to be short
    world.finish()
    world.client.submit(Plan(40.0))
    world.run(0.01)
    short = world.client.submit(Plan(), Plan())
    world.run(0.01)
    assert not any(world.executions(future) for future in short)
    world.add_host(1)
    world.until(lambda: all(future.outcome() for future in short), BOUND_SECONDS)
    world.finish()
    world.rest()


@pytest.mark.parametrize("relays", [1, 2])
def test_much_that_waits_behind_relays_goes_to_an_idle_host_part_by_part(relays: int) -> None:
    world, above = World(hosts=[]), ADDRESS
    for number in range(relays):
        address = Address(path=f"/world/relay{number}")
        world.add_relay(address, above)
        world.run(0.3)
        above = address
    world.add_host(2, address=above)
    world.run(4.0)
    world.client.map(*[Plan(0.001)] * 400)  # the function is known to be short
    world.finish()
    world.client.submit(Plan(4.0), Plan(4.0))
    short = world.client.submit(*[Plan(0.001)] * 38)
    world.run(0.05)
    world.add_host(1)
    world.until(lambda: all(future.outcome() for future in short), BOUND_SECONDS)
    world.finish()
    world.rest()
