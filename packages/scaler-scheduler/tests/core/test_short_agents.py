"""Short agents: who goes first where tasks of several classes wait for what the cluster has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scaler_scheduler.core.config import SchedulerConfig

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def needing(license: int = 1, **others: int) -> dict[str, Any]:
    needs = {"license": license, **others}
    return {"capability_names": tuple(needs), "capability_values": tuple(needs.values())}


def test_the_earlier_one_goes_first_if_it_can_go_and_later_ones_have_the_rest(
    make_driver: type[SchedulerDriver],
) -> None:
    driver = make_driver(SchedulerConfig(cluster_capabilities=(("license", 4),), recovery_seconds=0.0))
    driver.settle()
    client, plain = driver.client(), driver.agent(b"plain", 8)
    driver.submit(client, 4, **needing())
    runs = driver.runs(plain)
    fast = driver.agent(b"fast", 1, ("fast",))
    [big], [first, *_] = driver.submit(client, **needing(3, fast=-1)), driver.submit(client, 5, **needing())
    for task in list(runs)[:2]:
        driver.done(plain, {task: runs.pop(task)})
    assert not driver.runs(plain) and not driver.runs(fast), "two of four would be enough for later ones"
    driver.done(plain, runs)
    assert (list(driver.runs(fast)), list(driver.runs(plain))) == ([big], [first])


def test_one_that_waits_for_a_worker_leaves_it_to_others(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver(SchedulerConfig(cluster_capabilities=(("license", 3),), recovery_seconds=0.0))
    driver.settle()
    client, fast = driver.client(), driver.agent(b"fast", 1, ("fast",))
    driver.submit(client)
    driver.submit(client, **needing(3, fast=-1))
    plain = driver.agent(b"plain", 8)
    assert len(driver.runs(fast)) == 1
    driver.submit(client, 5, **needing())
    assert len(driver.runs(plain)) == 3
