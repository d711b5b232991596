"""Watches a World for tasks that wait although a worker that could run them is idle."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from scaler_protocol.addresses import Address
from world.callers import WorldFuture
from world.cluster import ADDRESS, World
from world.hosts import SimulatedHost

LOOK_SECONDS = 0.05


class IdleWatch:
    """Notes how long each task has waited while one idle worker or another could have run it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[WorldFuture, float] = {}
        self.longest: tuple[float, str] = (0.0, "")
        """The longest such wait in seconds, and what waited."""

    def run(self, seconds: float) -> None:
        """Let time pass, and look."""
        end = self._world.now + seconds
        while self._world.now < end:
            self._world.network.run(min(LOOK_SECONDS, end - self._world.now))
            self.look()
        self._world.check()

    def finish(self, seconds: float) -> None:
        """Let every wanted future end, and look meanwhile."""
        end = self._world.now + seconds
        while any(client.unfinished for client in self._world.present):
            assert self._world.now < end, "not all futures have ended"
            self.run(LOOK_SECONDS)

    def look(self) -> None:
        """Compare the tasks that wait now with the workers that are idle now."""
        begun = {execution.task for execution in self._world.history}
        idle = [host for host in self._world.hosts if host.alive and _has_idle_worker(host)]
        now, waiting = self._world.now, dict[WorldFuture, float]()
        for future, home in self._unfinished():
            if future.task_id in begun or any(need.outcome() is None for need in future.needs):
                continue
            could = [host.name for host in idle if future.runs_on(host.capabilities) and home in (None, host.address)]
            if could:
                since = waiting[future] = self._since.get(future, now)
                if now - since > self.longest[0]:
                    self.longest = now - since, f"{future} waits until {now}, and {could} are idle"
        self._since = waiting

    def _unfinished(self) -> Iterator[tuple[WorldFuture, Address | None]]:
        """All futures, and the relay whose hosts alone can run the task; None if all hosts can."""
        for client in self._world.present:
            yield from zip(client.unfinished.values(), repeat(None))
        for host in self._world.hosts:
            home = host.address if host.address != ADDRESS else None
            for worker in host.workers.values():
                if host.alive and worker.alive and worker.nested is not None:
                    yield from zip(worker.nested.unfinished.values(), repeat(home))


def _has_idle_worker(host: SimulatedHost) -> bool:
    workers = host.core.workers
    return bool(workers.idle) and len(workers.running) < workers.slots and not workers.draining
