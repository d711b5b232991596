"""Tasks that take licenses, and what breaks while they run."""

from __future__ import annotations

from scaler_protocol.messages import Group
from world.cluster import World, plans
from world.plans import FUNCTION


def needing(license: int = 1, **others: int) -> Group:
    """A group of tasks that need so much."""
    needs = {"license": license, **others}
    return Group(FUNCTION, capability_names=tuple(needs), capability_values=tuple(needs.values()))


def restarted(world: World) -> None:
    world.restart_scheduler()


def cut_off(world: World) -> None:
    """The scheduler gives the host up, whose runs go on, and gets it back."""
    world.connection(world.host).stall(8.0)
    world.run(12.0)


def cancelled(world: World) -> None:
    world.client.cancel(*world.client.unfinished.values())
    world.client.submit(*plans(20, 0.5), group=needing())


def worker_killed(world: World) -> None:
    for _ in range(2):
        world.kill_worker(world.host)


def host_killed(world: World) -> None:
    world.host.kill()
    world.add_host(4)
