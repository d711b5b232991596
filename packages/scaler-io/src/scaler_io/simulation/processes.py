"""Processes on a network in memory: when they take turns, and how they end. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaler_io.simulation.network import MemoryNetwork

_SPIN_LIMIT = 10_000


class MemoryEndpoint(ABC):
    """What a process has on the network."""

    shell: MemoryShell | None = None

    @abstractmethod
    def readable(self) -> bool:
        """Whether a message is there."""

    @abstractmethod
    def kill(self) -> None:
        """Its process is killed."""

    @abstractmethod
    def vanish(self) -> None:
        """Its host is gone."""

    def wake(self) -> None:
        """Let its process take a turn."""
        if self.shell is not None:
            self.shell.wake()


class MemoryShell:
    """A process: `turn` is called when something has arrived at its endpoints, and when it asked to be called."""

    def __init__(
        self, network: MemoryNetwork, turn: Callable[[float], float], endpoints: Iterable[MemoryEndpoint]
    ) -> None:
        self.alive = True
        self._network = network
        self._turn = turn
        self._endpoints = list(endpoints)
        self._due = math.inf
        self._stopped_until = -math.inf
        self._turned_at, self._turns = -math.inf, 0
        for endpoint in self._endpoints:
            endpoint.shell = self

    def kill(self) -> None:
        """SIGKILL: it does nothing any more; its host closes its connections."""
        self.alive = False
        for endpoint in self._endpoints:
            endpoint.kill()

    def vanish(self) -> None:
        """Its host is gone: nobody closes its connections, and peers are told nothing."""
        self.alive = False
        for endpoint in self._endpoints:
            endpoint.vanish()

    def stop(self, seconds: float = math.inf) -> None:
        """SIGSTOP for so long: connections stay, and what arrives piles up."""
        self._stopped_until = self._network.now + seconds
        self.wake()

    def resume(self) -> None:
        """SIGCONT."""
        self._stopped_until = -math.inf
        self.wake()

    def wake(self) -> None:
        """Something is there to be read, or was asked of it from outside: take a turn."""
        self._plan(self._network.now)

    def take_turn(self, planned: float) -> None:
        """The time has come that was planned."""
        now = self._network.now
        if not self.alive or planned != self._due:
            return
        if now < self._stopped_until:
            self._plan(self._stopped_until, again=True)
            return
        self._turns = self._turns + 1 if now == self._turned_at else 0
        self._turned_at = now
        if self._turns > _SPIN_LIMIT:
            raise RuntimeError(f"a shell took {_SPIN_LIMIT} turns at {now}: it asks for a time that has come")
        self._due = math.inf
        due = self._turn(now)
        self._plan(now if any(endpoint.readable() for endpoint in self._endpoints) else due)

    def _plan(self, at: float, again: bool = False) -> None:
        if again or at < self._due:
            self._due = at
            self._network.at(at, lambda: self.take_turn(at))
