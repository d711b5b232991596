"""Quantities of the whole cluster: all runs together never have more at one time, whatever breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scaler_io.links.uplink import longest_absence
from world.cluster import CONFIG, World, plans
from world.licenses import cancelled, cut_off, host_killed, needing, restarted, worker_killed
from world.plans import Plan

SEEDS = range(2)
DEATH_SECONDS = 6.0
"""After which hosts without a scheduler end."""


def cluster(seed: int = 0, license: int = 2, **options: Any) -> World:
    """A world that has licenses."""
    config = replace(CONFIG, cluster_capabilities=(("license", license),))
    world = World(seed, config=config, host_timeout_seconds=DEATH_SECONDS, **options)
    world.run(config.recovery_seconds)
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_all_hosts_share_it(seed: int) -> None:
    world = cluster(seed, hosts=[4, 4])
    limited = world.client.submit(*plans(20, 0.1), group=needing())
    others = world.client.submit(*plans(60, 0.1))
    began = world.now
    world.finish()
    assert world.most_taken(None, "license") == 2
    assert world.now - began < 1.3, "a worker was idle though a task could have run"
    world.check_as_expected([*limited, *others])
    world.rest()


def test_it_goes_with_quantities_of_hosts() -> None:
    world = cluster(hosts=[4, 4], consumables={"dongle": 1}, license=3)
    both = world.client.submit(*plans(20, 0.1), group=needing(dongle=1))
    ours = world.client.submit(*plans(20, 0.1), group=needing())
    world.finish()
    assert [world.most_taken(host, "dongle") for host in world.hosts] == [1, 1]
    assert world.most_taken(None, "license") == 3
    world.check_as_expected([*both, *ours])
    world.rest()


@pytest.mark.parametrize("seed", SEEDS)
def test_big_ones_are_not_overtaken_not_even_by_those_of_other_hosts(seed: int) -> None:
    world = cluster(seed, hosts=[2], license=3)
    world.add_host(2, capabilities=["fast"])
    world.run(0.1)
    world.client.submit(Plan(0.1), Plan(0.15), Plan(0.2), group=needing())
    world.run(0.02)
    (big,) = world.client.submit(Plan(0.1), group=needing(3, fast=-1))
    small = world.client.submit(*plans(30, 0.1), group=needing())
    world.until(lambda: big.outcome(), 0.35)
    assert not any(map(world.executions, small))
    world.finish()
    assert world.most_taken(None, "license") == 3


def restarted_and_others_come_first(world: World) -> None:
    """The hosts, which try to connect once a second by now, come after a client and a host that know of nothing."""
    world.kill_scheduler()
    world.run(3.0)
    world.start_scheduler()
    world.add_host(4)
    world.add_client().submit(*plans(5, 0.5), group=needing())


def host_leaves(world: World) -> None:
    world.host.leave()
    world.run(0.1)
    (soon,) = world.client.submit(Plan(0.1), group=needing())
    world.until(lambda: soon.outcome(), 30.0)


FAULTS = [restarted, restarted_and_others_come_first, cut_off, cancelled, worker_killed, host_killed, host_leaves]


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_never_more_at_once(fault: Callable[[World], None], journal: bool) -> None:
    world = cluster(hosts=[2, 2], journal=journal)
    world.client.submit(*plans(3, 0.5), *plans(6, 8.0), group=needing())
    world.client.submit(*plans(50, 0.001))
    world.run(1.5)
    fault(world)
    world.client.submit(*plans(6, 0.5), group=needing())
    world.finish(120.0)
    assert world.most_taken(None, "license") == 2
    world.rest(10.0)


def test_a_journal_tells_what_hosts_have_that_stay_away() -> None:
    world = cluster(hosts=[2, 2], journal=True)
    world.client.submit(*plans(4, 9.0), group=needing())
    world.run(1.5)
    world.scheduler.shell.vanish()  # its peers do not notice before they miss its heartbeats
    world.start_scheduler()
    world.add_host(4)
    world.add_client().submit(*plans(5, 0.5), group=needing())
    world.finish(120.0)
    assert world.most_taken(None, "license") == 2
    world.rest(10.0)


def test_what_a_lost_host_has_taken_is_free_when_it_cannot_live_any_more() -> None:
    world = cluster(hosts=[1], license=1)
    (lost,) = world.client.submit(Plan(60.0), group=needing())
    world.until(lambda: world.running(lost))
    world.host.vanish()
    world.add_host(1)
    began = world.now
    world.until(lambda: len(world.executions(lost)) == 2)
    assert world.now - began >= longest_absence(DEATH_SECONDS)
    assert world.now - began < longest_absence(DEATH_SECONDS) + 2 * CONFIG.worker_timeout_seconds


def test_what_is_missing_is_named() -> None:
    world = cluster(hosts=[4, 1])
    futures = world.client.submit(*plans(6, 5.0), group=needing())
    world.run(1.0)
    waiting = [future for future in futures if not world.running(future)]
    assert world.scheduler.core.why(waiting[0].task_id, world.now) == ["it waits for license (2 of 2 in use)"]
    world.host.vanish()
    world.run(CONFIG.worker_timeout_seconds + 1.0)
    [said, *_] = world.scheduler.core.why(waiting[-1].task_id, world.now)
    assert said.startswith("it waits for license (2 of 2 in use, ") and said.endswith(" of that by lost agents)")
    world.restart_scheduler()
    world.run(1.0)
    (new,) = world.client.submit(Plan(), group=needing())
    world.run(0.1)
    [said, *_] = world.scheduler.core.why(new.task_id, world.now)
    assert said == "it waits for license (agents of an earlier scheduler have not yet reported what they use)"


def test_a_host_that_offers_it_is_refused() -> None:
    world = cluster()
    host = world.add_host(1, capabilities=["license"])
    world.until(lambda: host.ended)
    assert host.ended is not None and "license is in the scheduler's --cluster-capabilities" in host.ended[0]
