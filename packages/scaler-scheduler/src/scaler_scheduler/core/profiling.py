"""Profiling: one profile at a time, which an operator asks for and all agents take. Pure, no IO."""

from __future__ import annotations

import itertools
import logging
from dataclasses import field
from typing import Final

from scaler_protocol.errors import ProtocolError
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import EventKind
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_protocol.plurals import counted
from scaler_scheduler.core.records import AgentRecord
from scaler_scheduler.core.state import SchedulerState

LONGEST_SECONDS: Final = 600.0
PATIENCE_SECONDS: Final = 10.0
"""How long agents may take to answer after the end."""
STACK_BYTES: Final = 16 * 2**20
"""Bytes of the stacks of all agents together; each has an equal share."""
SHARE: Final = (4 * 2**10, 256 * 2**10)
"""The least and the most of one agent."""


@dataclass(slots=True, eq=False)
class RunningProfile:
    """A profile that is taken."""

    number: int
    operator: bytes
    name: str
    asked: TakeProfile
    limit: int
    until: float
    missing: set[bytes] = field(default_factory=set)
    """Agents that have not answered."""


class Profiling:
    """The profile that is taken, if there is one."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._numbers = itertools.count(1)
        self._running: RunningProfile | None = None

    def ask(self, operator: bytes, name: str, asked: TakeProfile, now: float) -> None:
        """Have all agents take a profile, or say why not."""
        agents = [agent for agent in self._state.agents.values() if agent.workers]
        if problem := self._refusal(len(agents), now):
            self._state.send(operator, ProfilePart(asked.request, problem=problem))
            return
        least, most = SHARE
        limit = min(most, max(least, STACK_BYTES // len(agents)))
        number, until = next(self._numbers), now + asked.seconds
        missing = {agent.peer for agent in agents}
        self._running = RunningProfile(number, operator, name, asked, limit, until, missing)
        for agent in agents:
            self._state.send(agent.peer, TakeProfile(number, asked.function, asked.seconds, limit))
        what = asked.function or "all functions"
        self._state.log(f"{name} takes a profile of {what} for {asked.seconds:g} s", EventKind.SCHEDULER, logging.INFO)

    def _refusal(self, agents: int, now: float) -> str:
        if (running := self._running) is not None:
            left = max(1.0, running.until - now)
            what = running.asked.function or "all functions"
            return f"{running.name} takes a profile of {what} now: ask again in {left:.0f} s"
        return "" if agents else "no workers are connected"

    def answered(self, agent: AgentRecord, part: ProfilePart) -> None:
        """An agent has answered; a late answer is ignored. Raises ProtocolError for one that is far too long."""
        running = self._running
        if running is None or part.request != running.number or agent.peer not in running.missing:
            return
        if sum(map(len, part.stacks)) > 2 * running.limit:
            raise ProtocolError(f"the stacks of a profile have more than {2 * running.limit:,} characters")
        running.missing.discard(agent.peer)
        left = len(running.missing)
        answer = ProfilePart(running.asked.request, part.stacks, part.counts, part.workers, left, part.problem)
        self._state.send(running.operator, answer)
        if not left:
            self._running = None

    def agent_left(self, peer: bytes) -> None:
        """An agent is gone, and what its workers have sampled."""
        running = self._running
        if running is not None and peer in running.missing:
            running.missing.discard(peer)
            if not running.missing:
                self._end("the last host left before it had answered")

    def operator_left(self, peer: bytes) -> None:
        """An operator is gone: another one may ask; agents end by themselves."""
        if self._running is not None and self._running.operator == peer:
            self._running = None

    def due(self) -> float | None:
        """When the profile ends although agents have not answered."""
        return None if self._running is None else self._running.until + PATIENCE_SECONDS

    def settle(self, now: float) -> None:
        """End a profile that agents have not answered."""
        due = self.due()
        if due is not None and now >= due and self._running is not None:
            self._end(f"{counted(len(self._running.missing), 'host')} did not answer")

    def _end(self, problem: str) -> None:
        if self._running is not None:
            self._state.send(self._running.operator, ProfilePart(self._running.asked.request, problem=problem))
            self._running = None
