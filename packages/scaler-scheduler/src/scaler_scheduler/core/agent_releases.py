"""AgentReleases: tells agents which outcomes they need not keep, and watching sessions which nodes have ended. Pure.

Both are collected, for longer where many agents are told, since a message costs as much as many releases in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from scaler_protocol.messages import Ended
from scaler_scheduler.core.records import AgentRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.state import SchedulerState

RELEASE_SECONDS = 0.05
"""How long they are collected at least."""
RELEASES_PER_SECOND = 250
"""Messages to agents, beyond which they are collected for longer, up to LONGEST_RELEASE_SECONDS."""
LONGEST_RELEASE_SECONDS = 4.0


class AgentReleases:
    """Collects what agents and sessions are told, and sends it in `post`."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self.agents: dict[AgentRecord, None] = {}
        """Agents to be told of what is in their `released`; some may be gone."""
        self._ended: dict[SessionRecord, list[int]] = {}
        """Intermediate nodes, by the sessions that watch them."""
        self._at: float | None = None
        self._from = 0.0
        """When messages may be sent again."""

    def add(self, agent: AgentRecord, task: int, now: float) -> None:
        """An agent need not keep the outcome of a task."""
        agent.released[task] = None
        self.agents[agent] = None
        if self._at is None:
            self.added(now)

    def add_ended(self, nodes: Iterable[TaskRecord], now: float) -> None:
        """Intermediate nodes have ended with values: their sessions are told if they watch."""
        self.added(now)
        for node in nodes:
            session = node.group.session
            if session.watched:
                self._ended.setdefault(session, []).append(node.id)

    def added(self, now: float) -> None:
        """There is something to send."""
        if self._at is None:
            self._at = max(now + RELEASE_SECONDS, self._from)

    def due(self) -> float | None:
        """When `post` sends something."""
        return self._at

    def post(self, now: float) -> None:
        """Send what was collected, if it is time."""
        if self._at is None or now < self._at:
            return
        self._at = None
        for session, ended in self._ended.items():
            self._state.send(session.peer, Ended(ended))
        self._ended.clear()
        agents, self.agents = self.agents, {}
        for agent in agents:
            self._state.send_released(agent)
        self._from = now + min(LONGEST_RELEASE_SECONDS, len(agents) / RELEASES_PER_SECOND)
