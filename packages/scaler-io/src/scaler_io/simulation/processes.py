"""Processes on a network in memory: their turns, and how they stop and end. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from scaler_io.simulation.virtual_time import VirtualTime

_SPIN_LIMIT = 10_000


class MemoryEndpoint(ABC):
    """A listener or dialer of a process."""

    shell: MemoryShell | None = None

    @abstractmethod
    def readable(self) -> bool:
        """Whether a message is there."""

    @abstractmethod
    def kill(self) -> None:
        """End with its process."""

    @abstractmethod
    def vanish(self) -> None:
        """End with its host."""

    def wake(self) -> None:
        """Have its process take a turn now."""
        if self.shell is not None:
            self.shell.wake()


class MemoryShell:
    """A process: `turn` is called when a message has arrived at its endpoints, and when the last turn asked for it."""

    def __init__(self, time: VirtualTime, turn: Callable[[float], float], endpoints: Iterable[MemoryEndpoint]) -> None:
        self.alive = True
        self._time = time
        self._turn = turn
        self._endpoints: list[MemoryEndpoint] = []
        self._due = math.inf
        self._stopped_until = -math.inf
        self._turned_at, self._turns = -math.inf, 0
        for endpoint in endpoints:
            self.add(endpoint)

    def add(self, endpoint: MemoryEndpoint) -> None:
        """The process has another listener or dialer."""
        self._endpoints.append(endpoint)
        endpoint.shell = self

    def kill(self) -> None:
        """Kill the process; its host closes its connections."""
        self.alive = False
        for endpoint in self._endpoints:
            endpoint.kill()

    def vanish(self) -> None:
        """End the host: its connections are not closed, and peers do not notice."""
        self.alive = False
        for endpoint in self._endpoints:
            endpoint.vanish()

    def stop(self, seconds: float = math.inf) -> None:
        """Stop the process for this time, as SIGSTOP: its connections stay, and messages wait for it."""
        self._stopped_until = self._time.now + seconds
        self.wake()

    def resume(self) -> None:
        """Continue the process, as SIGCONT."""
        self._stopped_until = -math.inf
        self.wake()

    def wake(self) -> None:
        """Take a turn now: a message has arrived, or something outside the network asks for it."""
        self._plan(self._time.now)

    def take_turn(self, planned: float) -> None:
        """Take the turn that was planned for this time, unless another time is planned now."""
        now = self._time.now
        if not self.alive or planned != self._due:
            return
        if now < self._stopped_until:
            self._plan(self._stopped_until, again=True)
            return
        self._turns = self._turns + 1 if now == self._turned_at else 0
        self._turned_at = now
        if self._turns > _SPIN_LIMIT:
            raise RuntimeError(f"a shell took {_SPIN_LIMIT} turns at {now}: each turn asked for another one at once")
        self._due = math.inf
        due = self._turn(now)
        self._plan(now if any(endpoint.readable() for endpoint in self._endpoints) else due)

    def _plan(self, at: float, again: bool = False) -> None:
        if again or at < self._due:
            self._due = at
            self._time.at(at, lambda: self.take_turn(at))
