"""Peers: who may connect, and what begins and ends with a peer. Pure, no IO.

A peer is a client, an agent, an operator or a worker manager, as its Hello says, and stays that until it is lost. With
a client its session begins and ends, unless the session has a name; with an agent its runs end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from scaler_io.links.admission import admit
from scaler_io.links.events import PeerJoined, PeerLost
from scaler_io.links.streams import Frames, message_of
from scaler_protocol.capacity import ListProcesses, ListWorkers, ProcessList
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import RESULT_CREDIT, Hello, Refused, Role, ServiceKind, Welcome
from scaler_protocol.messages import Run
from scaler_protocol.monitoring import EventKind
from scaler_protocol.operations import Resized
from scaler_protocol.plurals import counted
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.consumables import Consumables
from scaler_scheduler.core.dispatch import Dispatch
from scaler_scheduler.core.managers import Managers
from scaler_scheduler.core.named_sessions import NamedSessions
from scaler_scheduler.core.operators import Operators
from scaler_scheduler.core.process_queries import ProcessQueries
from scaler_scheduler.core.records import AgentRecord, KeyShare, SessionRecord
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.session_ends import SessionEnds
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_credits import TaskCredits
from scaler_scheduler.core.worker_queries import WorkerQueries
from scaler_scheduler.requirements import runtime_of, worker_class_of

RESIZED_SECONDS = 1.0
"""How long changes of the numbers of workers are collected before they are logged: an agent may report many."""
_ROLES = (Role.CLIENT, Role.AGENT, Role.OPERATOR, Role.MANAGER)


class Peers:
    """The connected peers; `key_of` tells the key that a peer has proved, empty without keys."""

    def __init__(
        self,
        state: SchedulerState,
        completion: Completion,
        session_ends: SessionEnds,
        dispatch: Dispatch,
        recovery: Recovery,
        named_sessions: NamedSessions,
        managers: Managers,
        operators: Operators,
        key_of: Callable[[bytes], bytes],
    ) -> None:
        self.clients: dict[bytes, SessionRecord] = {}
        """The sessions of the connected clients; the other peers are in the tables of their roles."""
        self._state = state
        self._completion, self._session_ends = completion, session_ends
        self._dispatch, self._recovery = dispatch, recovery
        self._named_sessions, self._managers, self._operators = named_sessions, managers, operators
        self._task_credits = TaskCredits(state)
        self._worker_queries = WorkerQueries(state)
        self._process_queries = ProcessQueries(state)
        self._absent_until: float | None = None
        """After a restart: when clients of the earlier incarnation that have not come back are given up."""
        self._resized: dict[AgentRecord, int] = {}
        """How many workers agents had whose changes are to be logged, at `_log_sizes_at`."""
        self._log_sizes_at = math.inf
        self._key_of = key_of
        self._shares: dict[bytes, KeyShare] = {}
        """By key; as many as there are keys of clients."""

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Decide whether a peer may connect; a refusal lists every reason."""
        refusals = list(filter(None, (self._changed(hello),)))
        ended = self._has_ended_session(hello.identity)
        named = bool(hello.session_name) and not ended
        if hello.role == Role.CLIENT:
            known = self._state.sessions.get(hello.session)
            if named and (refused := self._named_sessions.refusal(hello)):
                return refused
            begins = not (named and self._named_sessions.has(hello.session_name))
            if begins and known is not None and known.peer != hello.identity:
                refusals.append(f"session {hello.session} is taken: connect again with another number")
        elif hello.role == Role.AGENT:
            refusals += self._faults_of_agent(hello)
        elif hello.role == Role.MANAGER and (problem := self._managers.refusal(hello)):
            refusals.append(problem)
        storage = self._state.config.storage_address
        welcome = Welcome(self._state.incarnation, storage_address=storage)
        if hello.role == Role.CLIENT:
            clients = len({*self.clients, hello.identity})
            welcome = replace(
                welcome,
                task_credit=self._task_credits.credit(clients),
                session_credit=self._state.budgets.credit(clients),
            )
            if named:
                welcome = self._named_sessions.welcome(hello, welcome)
            elif ended:
                welcome = replace(welcome, session=self.clients[hello.identity].number)
        return admit(hello, welcome, service=ServiceKind.SCHEDULER, roles=_ROLES, refusals=refusals, other=storage)

    def _faults_of_agent(self, hello: Hello) -> Iterator[str]:
        """Why an agent may not connect, as text."""
        if not (hello.queue_size and (hello.workers or hello.relay)):
            yield "an agent has at least one worker and room for one task"
        if self._state.cluster is not None and (both := self._state.cluster.conflict(hello.capability_names)):
            yield both
        if self._state.cluster is not None and hello.relay:
            yield "this scheduler has --cluster-capabilities, which relays do not count: connect agents to it directly"

    def _changed(self, hello: Hello) -> str:
        """How the Hello of a known peer contradicts its earlier one, as text; empty if it does not."""
        peer = hello.identity
        session = self.clients.get(peer)
        known = self._role_of(peer)
        if known is None:
            return ""
        if hello.role != known:
            return f"identity {peer.hex()} has role {known}, not {hello.role}: use one identity per process"
        if self._has_ended_session(peer):
            return ""
        if session and (session.named.name if session.named else "") != hello.session_name:
            return f"identity {peer.hex()} has another session than {hello.session_name!r}: use one per session"
        if session and session.named is None and hello.session != session.number:
            return f"identity {peer.hex()} has session {session.number}, not {hello.session}: use one per session"
        return ""

    def _has_ended_session(self, peer: bytes) -> bool:
        """Whether a connected client has ended its session: it comes back to hear so, and then leaves."""
        session = self.clients.get(peer)
        return session is not None and self._state.sessions.get(session.number) is not session

    def _role_of(self, peer: bytes) -> int | None:
        """The role of a connected peer."""
        roles: Sequence[tuple[int, Container[object]]] = (
            (Role.CLIENT, self.clients),
            (Role.AGENT, self._state.agents),
            (Role.MANAGER, self._managers),
            (Role.OPERATOR, self._operators),
        )
        return next((role for role, peers in roles if peer in peers), None)

    def joined(self, peer: bytes, event: PeerJoined, now: float) -> None:
        """A peer has connected, or has connected again."""
        hello = event.hello
        if hello.role == Role.CLIENT:
            self._client_joined(peer, hello, now)
        elif hello.role == Role.OPERATOR:
            self._operators.joined(peer, hello)
        elif hello.role == Role.MANAGER:
            if not event.resumed:
                self._managers.joined(peer, hello)
        elif not event.resumed:
            self._agent_joined(peer, hello, now)
        self._task_credits.announce(self.clients)
        if self._was_elsewhere(hello):
            self._managers.hold(now)
            if hello.role in (Role.CLIENT, Role.AGENT):
                self._recovery.open(now, by_agent=hello.role == Role.AGENT)

    def _agent_joined(self, peer: bytes, hello: Hello, now: float) -> None:
        if peer in self._state.agents:
            # The same process connects with a new session: it is alive and will report what it still runs. No run can
            # have reached it without the Welcome of this incarnation.
            welcomed = hello.peer_incarnation == self._state.incarnation
            unsent = frozenset() if welcomed else frozenset(self._state.agents[peer].runs)
            self._agent_lost(peer, "it began anew", now, charged=False, unsent=unsent)
        worker_class = worker_class_of(
            tuple(sorted(zip(hello.capability_names, hello.capability_values, strict=True))),
            runtime_of(hello),
            dict(zip(hello.consumable_names, hello.consumable_totals, strict=True)),
        )
        if self._state.cluster is not None:
            worker_class = self._state.cluster.widened(worker_class)
        no_runs = self._state.runs_after(0)
        agent = AgentRecord(peer, hello.name, hello.host, hello.workers, hello.queue_size, worker_class, no_runs)
        agent.number, agent.reported_at = self._state.event_log.next_number(), now
        agent.manager, agent.unit = self._managers.unit_of(hello)
        if worker_class.consumables:
            totals = zip(hello.consumable_names, hello.consumable_totals, strict=True)
            agent.consumables = Consumables(peer, dict(totals), self._state.cluster)
        agent.lives_on_seconds = hello.lives_on_seconds
        agent.relay_incarnation = hello.incarnation if hello.relay else 0
        agent.resuming = bool(hello.peer_incarnation)
        agent.returning = agent.resuming or hello.relay  # its agents may have been connected before
        agent.was_elsewhere = self._was_elsewhere(hello)
        self._state.agents[peer] = agent
        self._dispatch.joined(agent, now)
        self._managers.agent_changed(agent)
        self._worker_queries.answer()
        if self._state.recorder is not None:
            self._state.recorder.agent_joined(agent)
        workers = counted(agent.workers, "worker")
        self._state.log(f"agent {agent.name or agent.host} ({workers}) connected", EventKind.AGENT, subject=agent.host)
        if peer in self._state.drained:
            self._managers.drain(agent, "it was told before")

    def _client_joined(self, peer: bytes, hello: Hello, now: float) -> None:
        if self._has_ended_session(peer):
            return
        if hello.session_name:
            session = self._named_sessions.attach(peer, hello, now)
            self.displace(session)
        elif (known := self._state.sessions.get(hello.session)) is not None:
            session = known
        else:
            session = self._state.sessions[hello.session] = SessionRecord(
                hello.session,
                peer,
                runtime=runtime_of(hello),
                name=hello.name,
                host=hello.host,
                result_credit=min(hello.result_credit, RESULT_CREDIT),
            )
            if self._state.recorder is not None:
                self._state.recorder.session(session)
            text = f"client {hello.name or hello.session} connected from {hello.host}"
            self._state.log(text, EventKind.CLIENT, logging.DEBUG, subject=hello.name)
        session.attached, session.was_elsewhere = True, self._was_elsewhere(hello)
        if key := self._key_of(peer):
            session.join(self._shares.setdefault(key, KeyShare()))
        self.clients[peer] = session

    def _was_elsewhere(self, hello: Hello) -> bool:
        """Whether a peer was connected to an earlier incarnation just before."""
        return hello.peer_incarnation not in (0, self._state.incarnation)

    def displace(self, session: SessionRecord) -> None:
        """No client has this session any more: one that had it is refused when its connection is back."""
        self.clients = {peer: each for peer, each in self.clients.items() if each is not session}

    def lost(self, peer: bytes, event: PeerLost, now: float) -> None:
        """A peer has said Goodbye, or is lost."""
        if peer in self._state.agents:
            if event.farewell:
                self._state.drained.pop(peer, None)
                if self._state.cluster is not None:
                    self._state.cluster.left(peer)
            self._agent_lost(
                peer,
                event.reason,
                now,
                charged=not event.farewell,
                unsent=_runs_of(event.unwritten),
                objects_left=event.objects_left,
            )
        elif session := self.clients.pop(peer, None):
            if session.named is not None:
                self._named_sessions.detach(session, now)
            else:
                self._session_ends.end(session, now)
            self._worker_queries.forget(peer)
            self._process_queries.forget(peer)
            text = f"client {session.name or session.number} is gone: {event.reason}"
            self._state.log(text, EventKind.CLIENT, logging.DEBUG, subject=session.name)
        elif peer in self._managers:
            self._managers.left(peer, event)
        elif peer in self._operators:
            self._operators.left(peer)
        self._task_credits.announce(self.clients)

    def _agent_lost(
        self,
        peer: bytes,
        reason: str,
        now: float,
        *,
        charged: bool,
        unsent: AbstractSet[int],
        objects_left: int = 0,
    ) -> None:
        agent = self._state.agents.pop(peer)
        self._resized.pop(agent, None)
        charged = charged and not agent.relay_incarnation  # its agents run on
        self._managers.agent_changed(agent)
        self._dispatch.left(agent)
        self._recovery.agent_left(agent, now)
        self._process_queries.agent_left(peer)
        self._operators.profiling.agent_left(peer)
        if self._state.recorder is not None:
            self._state.recorder.agent_left(peer)
        how = f"has left {counted(objects_left, 'object')} behind" if objects_left else "is gone"
        level = logging.WARNING if charged or objects_left else logging.INFO
        self._state.log(f"agent {agent.name or agent.host} {how}: {reason}", EventKind.AGENT, level, subject=agent.host)
        if self._state.cluster is not None:
            self._state.cluster.lost(peer, unsent, now + agent.lives_on_seconds)
        if agent.relay_incarnation:
            self._recovery.relay_lost(agent, now)
            self._state.pinned.relay_lost(agent)
        self._completion.agent_lost(agent, reason, now, charged=charged, unsent=unsent)
        for session in [session for session in self._state.sessions.values() if session.peer == peer]:
            self._session_ends.end(session, now)

    def restored(self, now: float) -> None:
        """A journal has restored the earlier incarnation's sessions: their clients have the usual time to come back."""
        if self._state.sessions:
            self._absent_until = now + self._state.config.client_timeout_seconds

    def settle(self, now: float) -> None:
        """Give up clients of the earlier incarnation that have not come back in time; log changes of agents."""
        if now >= self._log_sizes_at:
            self._log_sizes()
        if self._absent_until is None or now < self._absent_until:
            return
        self._absent_until = None
        for session in [
            session for session in self._state.sessions.values() if not session.attached and session.named is None
        ]:
            self._session_ends.end(session, now)
            text = f"client {session.name or session.number} has not come back"
            self._state.log(text, EventKind.CLIENT, logging.DEBUG, subject=session.name)

    def due(self) -> float | None:
        """When `settle` has something to do."""
        times = [self._absent_until, self._log_sizes_at if self._log_sizes_at < math.inf else None]
        return min([time for time in times if time is not None], default=None)

    def _log_sizes(self) -> None:
        resized, self._resized, self._log_sizes_at = self._resized, {}, math.inf
        for agent, before in resized.items():
            if agent.workers != before:
                text = f"agent {agent.name or agent.host} has {counted(agent.workers, 'worker')}, {before} before"
                self._state.log(text, EventKind.AGENT, subject=agent.host)

    def resized(self, agent: AgentRecord, event: Resized, now: float) -> None:
        """Workers of an agent were drained or added."""
        if event.workers != agent.workers:
            self._resized.setdefault(agent, agent.workers)
            self._log_sizes_at = min(self._log_sizes_at, now + RESIZED_SECONDS)
        if agent.is_draining != (not event.workers):
            self._managers.agent_changed(agent)
        agent.workers = event.workers
        agent.window = max(agent.window, agent.workers)
        self._state.with_room[agent] = None
        self._worker_queries.answer()
        self._task_credits.announce(self.clients)

    def list_workers(self, peer: bytes, event: ListWorkers, now: float) -> None:
        """Answer a client that asks for the workers, or waits for them; raises ProtocolError for another peer."""
        if peer not in self.clients:
            raise ProtocolError("only a client may ask for the workers")
        self._worker_queries.ask(peer, event)

    def list_processes(self, peer: bytes, event: ListProcesses, now: float) -> None:
        """Ask the agents, for a client; raises ProtocolError for another peer."""
        if peer not in self.clients:
            raise ProtocolError("only a client may ask for the workers' processes")
        self._process_queries.ask(peer, event)

    def processes_listed(self, agent: AgentRecord, event: ProcessList) -> None:
        """An agent has answered."""
        self._process_queries.answered(agent, event)


def _runs_of(unwritten: Iterable[Frames]) -> frozenset[int]:
    """The runs of messages that were not sent."""
    sent = [message for message in map(message_of, unwritten) if isinstance(message, Run)]
    return frozenset(
        run for message in sent for run in range(message.first_run, message.first_run + len(message.tasks))
    )
