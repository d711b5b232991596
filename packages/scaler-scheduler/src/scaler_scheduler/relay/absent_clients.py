"""AbsentClients: those that the core of a relay believes to own the sessions of leased tasks. Pure.

They are clients of the scheduler above, and never connect here: the relay says to the core what the scheduler has told
it, as if they said so, and what the core sends to them goes up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import new_session, session_of
from scaler_protocol.messages import Cancel, Release
from scaler_protocol.operations import TakeProfile
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.relay.leases import Leases

SWEEP_SECONDS: Final = 10.0
"""Sessions without leased tasks are forgotten after one to two times this."""
CLAIMED_SESSIONS: Final = 1024
"""Most sessions that begin between two sweeps because agents claim tasks of them; what is beyond runs again."""
_OPERATOR: Final = bytes(16)
"""Who the core believes to ask for profiles."""


class AbsentClients:
    """Speaks for the clients of leased tasks, and for the scheduler where it asks on its own account."""

    def __init__(self, core: SchedulerCore, leases: Leases, relay: Hello) -> None:
        self._core, self._leases, self._relay = core, leases, relay
        self._known: set[int] = set()
        """Sessions that the core knows."""
        self._idle: set[int] = set()
        """Those of them that had no task at the last sweep."""
        self._claimed = 0
        """Sessions that have begun since the last sweep because agents claimed tasks of them."""
        self._sweep_at = 0.0
        self._asker = new_session()
        """The session that defines functions, and asks for the workers' processes."""
        asker = Hello(Role.CLIENT, _identity(self._asker), 1, session=self._asker, name="the scheduler")
        operator = Hello(Role.OPERATOR, _OPERATOR, 1, name="the scheduler", host=relay.host)
        for peer in (asker, operator):
            core.handle(peer.identity, PeerJoined(peer, False), 0.0)
        core.state.out.clear()  # nobody has connected

    def enter(self, tasks: Iterable[int], now: float) -> None:
        """These tasks are leased: the core must know their sessions."""
        for session in set(map(session_of, tasks)):
            self._idle.discard(session)
            if session not in self._known:
                self._known.add(session)
                relay = self._relay
                hello = Hello(
                    Role.CLIENT, _identity(session), 1, session=session, name=f"session {session}", host=relay.host,
                    python=relay.python, cloudpickle=relay.cloudpickle,
                )  # fmt: skip
                self.say(session, PeerJoined(hello, False), now)

    def may_claim(self, task: int) -> bool:
        """Whether a task that an agent claims may be leased, which begins its session if the core does not know it."""
        is_new = session_of(task) not in self._known
        if is_new and self._claimed >= CLAIMED_SESSIONS:
            return False
        self._claimed += is_new
        return True

    def say(self, session: int, message: Any, now: float) -> None:
        """Have the core hear something of the client of a session."""
        self._core.handle(_identity(session), message, now)

    def end(self, tasks: Iterable[int], how: type[Cancel | Release], now: float) -> None:
        """End the leases of those of these tasks that are leased, and have their clients cancel or release them."""
        for session, leased in self._leases.by_session(tasks).items():
            for task in leased:
                self._leases.end(task)
            self.say(session, how(leased), now)

    def ask(self, message: Any, now: float) -> None:
        """Have the core hear something of the scheduler that is of no client's session."""
        self._core.handle(_OPERATOR if isinstance(message, TakeProfile) else _identity(self._asker), message, now)

    def settle(self, now: float) -> None:
        """Forget sessions that have had no leased tasks for a while."""
        if now < self._sweep_at:
            return
        self._sweep_at, self._claimed = now + SWEEP_SECONDS, 0
        empty = {session for session in self._known if not self._leases.sessions[session]}
        for session in empty & self._idle:
            self._known.discard(session)
            del self._leases.sessions[session]
            self.say(session, PeerLost("it has no tasks", farewell=True), now)
        self._idle = empty - self._idle

    def due(self) -> float:
        """When `settle` has something to do."""
        return self._sweep_at

    def check(self) -> None:
        """Assert that the core knows the sessions of leased tasks; for tests."""
        assert {session for session, count in self._leases.sessions.items() if count} <= self._known


def _identity(session: int) -> bytes:
    """The identity of the client that the core believes to own a session."""
    return session.to_bytes(16, "big")


def is_absent(identity: bytes) -> bool:
    """Whether this is the identity of a client, or of the operator, that only the core believes in."""
    return identity[:12] == bytes(12)
