"""SchedulerCore: which task runs where, and which messages report it. Events in, effects out, no IO.

A task is WAITING in a lane, HELD while it lacks inputs, function bytes or its call, or is a suspect without an agent of
its own, ASSIGNED to an agent, DONE once its owner was sent the outcome, GONE when it is no longer wanted:

    Submit ─▶ WAITING ◀──inputs, function bytes── HELD        Cancel, owner or parent ended: any ─▶ GONE
                 │ ▲
         Run     │ │ Returned; agent lost; LOST below the limit; RAISED with retries left
                 ▼ │
              ASSIGNED ──Done──▶ DONE ──Release──▶ forgotten

A run is one dispatch; run ids are never reused. An outcome of user code (VALUE, RAISED) is accepted from any run of a
task that is not DONE, and the first one wins; FAILED, LOST and CANCELLED count only from the current run.

Invariants (`check`): an ASSIGNED task is in its agent's table of runs, under its run id, and in no other; the task
queue counts the WAITING tasks; a session's table holds exactly its tasks that are not forgotten.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any, Final

from scaler_io.links.admission import Permissions, admit
from scaler_io.links.effects import Effect, Stop
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_io.links.hub import LinkFigures
from scaler_protocol import messages
from scaler_protocol.capacity import ListWorkers, ManagerStatus
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role, ServiceKind, Welcome
from scaler_protocol.ids import session_of
from scaler_protocol.monitoring import MonitorStatus, TaskEvents
from scaler_protocol.operations import Drain, Dump, Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.plurals import counted
from scaler_protocol.sessions import ConfirmTasks, EndSession, LabelTask, ListTasks
from scaler_protocol.storage import DeleteObjects
from scaler_scheduler.core.checks import check_done, check_functions, check_inputs, check_submit
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.definitions import Definitions
from scaler_scheduler.core.dispatch import Dispatch
from scaler_scheduler.core.dump import Row, dump
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.intake import Intake
from scaler_scheduler.core.managers import Managers
from scaler_scheduler.core.named_sessions import NamedSessions
from scaler_scheduler.core.operators import Operators
from scaler_scheduler.core.records import ASSIGNED, DONE, GONE, HELD, WAITING, AgentRecord, KeyShare, SessionRecord
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.restoration import Restoration
from scaler_scheduler.core.snapshot import ProcessStats, monitor_status
from scaler_scheduler.core.state import SchedulerState, SendToStorage
from scaler_scheduler.core.task_credits import TaskCredits
from scaler_scheduler.core.worker_queries import WorkerQueries
from scaler_scheduler.requirements import WorkerClass, runtime_of

_ROLES = (Role.CLIENT, Role.AGENT, Role.OPERATOR, Role.MANAGER)

PERMITTED: Final[Permissions] = {
    Role.CLIENT: frozenset(
        {
            messages.Submit,
            messages.Cancel,
            messages.Release,
            messages.Functions,
            messages.Inputs,
            messages.Reconcile,
            ListWorkers,
            ListTasks,
            LabelTask,
            EndSession,
            ConfirmTasks,
            messages.Shutdown,
        }
    ),
    Role.AGENT: frozenset(
        {
            messages.Submit,
            messages.Cancel,
            messages.Release,
            messages.Functions,
            messages.Inputs,
            messages.Reconcile,
            messages.Done,
            messages.Returned,
            messages.Blocked,
            messages.NeedFunctions,
            messages.Output,
            messages.AgentStatus,
            DeleteObjects,
            Resized,
        }
    ),
    Role.OPERATOR: frozenset({messages.Cancel, Drain, Dump, ListTasks, EndSession}),
    Role.MANAGER: frozenset({ManagerStatus}),
}
"""What peers of each role may send to the scheduler; the first ones of an agent come from clients in its tasks."""


class SchedulerCore:
    """All of the scheduler but its sockets. `handle` is the only way in, `settle` the only way out."""

    def __init__(
        self,
        incarnation: int,
        config: SchedulerConfig,
        is_connected: Callable[[bytes], bool] = lambda peer: True,
        key_of: Callable[[bytes], bytes] = lambda peer: b"",
    ) -> None:
        """`is_connected` tells whether a client's link has a connection: another client may displace it otherwise.

        `key_of` tells the key that a peer has proved, empty without keys: sessions of one key share what one gets.
        """
        self._config = config
        self.state = SchedulerState(incarnation, config)
        self._recovery = Recovery(self.state)
        self._completion = Completion(self.state, self._recovery)
        self._dispatch = Dispatch(self.state, self._completion)
        self._intake = Intake(self.state, self._completion, self._dispatch)
        self._definitions = Definitions(self.state, self._completion, self._dispatch)
        self._operators = Operators(self.state, self._completion)
        self._managers = Managers(self.state, config.scaling)
        self._named_sessions = NamedSessions(
            self.state, self._completion, self._session_over, is_connected, self._recovery.is_resuming
        )
        self._worker_queries = WorkerQueries(self.state)
        self._task_credits = TaskCredits(self.state)
        self.restoration = Restoration(self.state, self._intake, self._definitions, self._completion, self._recovery)
        self._absent_until: float | None = None
        self._clients: dict[bytes, SessionRecord] = {}
        self._key_of = key_of
        self._shares: dict[bytes, KeyShare] = {}
        """By key; as many as there are keys of clients."""
        self._handlers = self._event_handlers()

    def _event_handlers(self) -> dict[type[Any], Callable[[bytes, Any, float], None]]:
        return {
            PeerJoined: self._joined,
            PeerLost: self._lost,
            SendFailed: self._send_failed,
            messages.Submit: self._submit,
            messages.Done: self._done,
            messages.Cancel: self._cancel,
            messages.Release: self._release,
            messages.Returned: self._returned,
            messages.Blocked: self._blocked,
            messages.Functions: self._functions,
            messages.NeedFunctions: self._need_functions,
            messages.Inputs: self._inputs,
            DeleteObjects: self._delete_objects,
            messages.Reconcile: self._resume,
            messages.Output: self._output,
            messages.AgentStatus: self._status,
            Drain: self._operators.drain,
            Dump: self._operators.dump,
            Resized: self._resized,
            ManagerStatus: self._managers.status,
            ListWorkers: self._list_workers,
            ListTasks: self._list_tasks,
            LabelTask: self._label_task,
            EndSession: self._end_session,
            ConfirmTasks: lambda peer, event, now: self._named_sessions.confirm(self._clients.get(peer), event),
            messages.Shutdown: self._shutdown,
        }

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Decide whether a peer may connect; a refusal lists every reason."""
        refusals: list[str] = []
        if problem := self._changed(hello):
            refusals.append(problem)
        if hello.role == Role.CLIENT:
            known = self.state.sessions.get(hello.session)
            if hello.session_name and (refused := self._named_sessions.refusal(hello)):
                return refused
            if not hello.session_name and known is not None and known.peer != hello.identity:
                refusals.append(f"session {hello.session} is taken: connect again with another number")
        elif hello.role == Role.AGENT and not (hello.workers and hello.queue_size):
            refusals.append("an agent has at least one worker and room for one task")
        elif hello.role == Role.MANAGER and (problem := self._managers.refusal(hello)):
            refusals.append(problem)
        welcome = Welcome(self.state.incarnation, storage_address=self._config.storage_address)
        if hello.role == Role.CLIENT:
            welcome = replace(welcome, task_credit=self._task_credits.credit(len({*self._clients, hello.identity})))
            if hello.session_name:
                welcome = self._named_sessions.welcome(hello, welcome)
        return admit(hello, welcome, service=ServiceKind.SCHEDULER, roles=_ROLES, refusals=refusals)

    def _changed(self, hello: Hello) -> str:
        """How the Hello of a known peer contradicts its earlier one, as text; empty if it does not."""
        peer = hello.identity
        session = self._clients.get(peer)
        known = self._role_of(peer)
        if known is None:
            return ""
        if hello.role != known:
            return f"identity {peer.hex()} has role {known}, not {hello.role}: use one identity per process"
        if session and (session.named.name if session.named else "") != hello.session_name:
            return f"identity {peer.hex()} has another session than {hello.session_name!r}: use one per session"
        if session and session.named is None and hello.session != session.number:
            return f"identity {peer.hex()} has session {session.number}, not {hello.session}: use one per session"
        return ""

    def _role_of(self, peer: bytes) -> int | None:
        """The role of a connected peer."""
        roles: Sequence[tuple[int, Container[object]]] = (
            (Role.CLIENT, self._clients),
            (Role.AGENT, self.state.agents),
            (Role.MANAGER, self._managers),
            (Role.OPERATOR, self._operators),
        )
        return next((role for role, peers in roles if peer in peers), None)

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Handle one event. Raises ProtocolError, without any change, for a message that this peer may not send."""
        handler = self._handlers.get(type(event))
        if handler is None:
            raise ProtocolError(f"unexpected message {type(event).__name__}")
        self.state.event_log.now = now
        handler(peer, event, now)

    def settle(self, now: float) -> list[Effect | SendToStorage | WriteDump]:
        """Make every pending decision once; returns the effects to perform."""
        state = self.state
        state.event_log.now = now
        self._recovery.settle(now)
        if self._absent_until is not None and now >= self._absent_until:
            self._end_absent(now)
        self._completion.dependencies.queue_ready(now)
        # A run that is not wanted must not begin because another one, which was sent after it, has ended.
        state.send_withdrawn()
        self._dispatch.assign()
        self._dispatch.rebalance(now)
        self._managers.settle(now)
        self._completion.post(now)
        if self._named_sessions:
            self._named_sessions.settle(now)
        out, state.out = state.out, []
        return out

    def due(self) -> float | None:
        """The time at which `settle` must be called even if no event arrives; None if never."""
        times = [
            self._completion.due(),
            self._dispatch.due(),
            self._recovery.due(),
            self._managers.due(),
            self._absent_until,
            self._named_sessions.due(),
        ]
        return min([time for time in times if time is not None], default=None)

    def restored(self, now: float) -> None:
        """All records of the earlier life were told to `restoration`: continue from there."""
        self.restoration.finish(now)
        self._named_sessions.restored(now)
        if self.state.sessions:
            self._absent_until = now + self._config.client_timeout_seconds

    def refuse_new_work(self, reason: str) -> None:
        """Take no new work for this reason, or take it again if there is none."""
        self.state.refusal = reason
        if reason:
            self.state.log(f"refuses new work: {reason}", logging.ERROR)
        else:
            self.state.log("takes new work again")

    def _end_absent(self, now: float) -> None:
        """Clients of the earlier life that have not come back are gone."""
        self._absent_until = None
        for session in [
            session for session in self.state.sessions.values() if not session.attached and session.named is None
        ]:
            self._session_over(session, now)
            self.state.log(f"client {session.name or session.number} has not come back", logging.DEBUG)

    # --- monitors ---------------------------------------------------------------------------------------------------

    def snapshot(self, stats: ProcessStats, now: float, *, first: bool = False) -> MonitorStatus:
        """The status that monitors are sent; `first` marks the one that TaskEvents with all open tasks follow."""
        return monitor_status(self.state, stats, now, snapshot=first, managers=self._managers)

    def left_by(self, peer: bytes, exact: bool) -> int:
        """Bytes of the calls that end with a client: at most, or if `exact` precisely."""
        session = self._clients.get(peer)
        if session is None or session.named is not None:
            return 0
        return self.state.budgets.calls_of(session, exact=exact)

    def dump(self, stats: ProcessStats, links: Sequence[LinkFigures], now: float) -> dict[str, Row]:
        """Who waits for what, and why, as values for JSON; `links` are those of the hub."""
        return dump(self.state, stats, links, now, self._managers)

    def start_events(self, now: float) -> None:
        """A monitor has subscribed: record events from now on, beginning with the state of all open tasks."""
        tasks = (task for session in self.state.sessions.values() for task in session.tasks.values())
        self.state.event_log.now = now
        self.state.event_log.start(self.state.agents.values(), tasks)

    def take_events(self, since: float) -> TaskEvents | None:
        """Events since the last call; `since` is the Unix time, in seconds, at which the core's clock was 0."""
        return self.state.event_log.take(since)

    def stop_events(self) -> None:
        """No monitor is subscribed any more: record totals only."""
        self.state.event_log.stop()

    @property
    def submitted(self) -> int:
        """Tasks submitted since the start."""
        return self.state.event_log.submitted

    # --- peers ------------------------------------------------------------------------------------------------------

    def _joined(self, peer: bytes, event: PeerJoined, now: float) -> None:
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
        self._task_credits.announce(self._clients)
        if hello.peer_incarnation not in (0, self.state.incarnation):
            self._managers.hold(now)
            if hello.role in (Role.CLIENT, Role.AGENT):
                self._recovery.open(now)

    def _agent_joined(self, peer: bytes, hello: Hello, now: float) -> None:
        if peer in self.state.agents:
            # The same process connects with a new session: it is alive and will report what it still runs. No run can
            # have reached it without the Welcome of this incarnation.
            welcomed = hello.peer_incarnation == self.state.incarnation
            self._agent_lost(peer, "it began anew", now, charged=False, received=welcomed)
        worker_class = WorkerClass(
            tuple(sorted(zip(hello.capability_names, hello.capability_values, strict=True))), runtime_of(hello)
        )
        agent = AgentRecord(peer, hello.name, hello.host, hello.workers, hello.queue_size, worker_class)
        agent.number, agent.reported_at = self.state.event_log.next_number(), now
        agent.manager, agent.unit = self._managers.unit_of(hello)
        agent.resuming = agent.returning = bool(hello.peer_incarnation)
        self.state.agents[peer] = agent
        self._dispatch.joined(agent, now)
        self._managers.agent_changed(agent)
        self._worker_queries.answer()
        if self.state.recorder is not None:
            self.state.recorder.agent_joined(agent)
        self.state.log(f"agent {agent.name or agent.host} ({counted(agent.workers, 'worker')}) connected")
        if peer in self.state.drained:
            self._managers.drain(agent, "it was told before")

    def _client_joined(self, peer: bytes, hello: Hello, now: float) -> None:
        if hello.session_name:
            session = self._named_sessions.attach(peer, hello, now)
            self._clients = {other: each for other, each in self._clients.items() if each is not session}
        elif (known := self.state.sessions.get(hello.session)) is not None:
            session = known
        else:
            session = self.state.sessions[hello.session] = SessionRecord(
                hello.session, peer, runtime=runtime_of(hello), name=hello.name, host=hello.host
            )
            if self.state.recorder is not None:
                self.state.recorder.session(session)
            self.state.log(f"client {hello.name or hello.session} connected from {hello.host}", logging.DEBUG)
        session.attached = True
        if key := self._key_of(peer):
            session.join(self._shares.setdefault(key, KeyShare()))
        self._clients[peer] = session

    def _lost(self, peer: bytes, event: PeerLost, now: float) -> None:
        if peer in self.state.agents:
            if event.farewell:
                self.state.drained.pop(peer, None)
            self._agent_lost(peer, event.reason, now, charged=not event.farewell)
        elif session := self._clients.pop(peer, None):
            if session.named is not None:
                self._named_sessions.detach(session, now)
            else:
                self._session_over(session, now)
            self._worker_queries.forget(peer)
            self.state.log(f"client {session.number} is gone: {event.reason}", logging.DEBUG)
        elif peer in self._managers:
            self._managers.left(peer, event)
        elif peer in self._operators:
            self._operators.left(peer)
        self._task_credits.announce(self._clients)

    def _agent_lost(self, peer: bytes, reason: str, now: float, *, charged: bool = True, received: bool = True) -> None:
        agent = self.state.agents.pop(peer)
        self._managers.agent_changed(agent)
        self._dispatch.left(agent)
        self._recovery.agent_left(agent, now)
        if self.state.recorder is not None:
            self.state.recorder.agent_left(peer)
        text = f"agent {agent.name or agent.host} is gone: {reason}"
        self.state.log(text, logging.WARNING if charged else logging.INFO)
        self._completion.agent_lost(agent, reason, now, charged=charged, received=received)
        for session in [session for session in self.state.sessions.values() if session.peer == peer]:
            self._session_over(session, now)

    def _session_over(self, session: SessionRecord, now: float) -> None:
        self._completion.cancel_known(list(session.tasks), now)
        self.state.sessions.pop(session.number, None)
        if self.state.recorder is not None and not session.nested:
            self.state.recorder.session_over(session.number)
        self._recovery.session_over(session)
        self.state.waiting.drop_session(session)
        session.end()

    def _send_failed(self, peer: bytes, event: SendFailed, now: float) -> None:
        """A Run message could not be encoded: its tasks fail with the reason."""
        if isinstance(event.message, messages.Run) and (agent := self.state.agents.get(peer)):
            runs = range(event.message.first_run, event.message.first_run + len(event.message.tasks))
            error = ProtocolError(f"the task cannot be sent to a worker: {event.reason}")
            self._completion.fail_runs(agent, runs, error, now)

    def _status(self, peer: bytes, event: messages.AgentStatus, now: float) -> None:
        agent = self._agent(peer)
        agent.status, agent.reported_at = event, now
        for death in event.deaths:
            self.state.event_log.add_text(logging.WARNING, f"{agent.name or agent.host}: {death}")
        agent.running, agent.first_unreported = frozenset(run for run in event.runs if run), self.state.next_run
        self.state.suspects.reported(agent, now)

    def _resized(self, peer: bytes, event: Resized, now: float) -> None:
        """Workers of an agent were drained or added."""
        agent = self._agent(peer)
        if event.workers != agent.workers:
            self.state.log(
                f"agent {agent.name or agent.host} has {counted(event.workers, 'worker')}, {agent.workers} before"
            )
        if agent.is_draining != (not event.workers):
            self._managers.agent_changed(agent)
        agent.workers = event.workers
        self.state.with_room[agent] = None
        self._worker_queries.answer()
        self._task_credits.announce(self._clients)

    def _list_workers(self, peer: bytes, event: ListWorkers, now: float) -> None:
        if peer not in self._clients:
            raise ProtocolError("only a client may ask for the workers")
        self._worker_queries.ask(peer, event)

    def _list_tasks(self, peer: bytes, event: ListTasks, now: float) -> None:
        self._named_sessions.list(peer, self._clients.get(peer), event, now, any_key=peer in self._operators)

    def _label_task(self, peer: bytes, event: LabelTask, now: float) -> None:
        self._named_sessions.label(self._clients.get(peer), event)

    def _end_session(self, peer: bytes, event: EndSession, now: float) -> None:
        self._named_sessions.end(peer, self._clients.get(peer), event, now, any_key=peer in self._operators)

    def _shutdown(self, peer: bytes, event: messages.Shutdown, now: float) -> None:
        if self._config.protected:
            self.state.send(peer, messages.ShutdownAnswer(False, "Scheduler is in protected mode. Can't shutdown"))
            return
        self.state.send(peer, messages.ShutdownAnswer(True))
        for agent in self.state.agents:
            self.state.send(agent, messages.Shutdown())
        self.state.out.append(Stop("a client asked for it"))

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _submit(self, peer: bytes, event: messages.Submit, now: float) -> None:
        try:
            check_submit(event)
            if self.state.refusal and not event.parent:
                raise ProtocolError(f"the scheduler refuses new work: {self.state.refusal}")
            submitter = self._intake.submitter(peer, event) if event.tasks else None
            if submitter is not None and submitter.session is not None:
                self.state.budgets.take(submitter.session, event, now)
        except ProtocolError as error:
            self._intake.refuse(peer, event, error)
            self.state.forget_nested(map(session_of, event.tasks[:1]))
            raise
        self._definitions.take(event, now)
        if submitter is not None:
            self._intake.submit(submitter, event, now)
            session = submitter.session
            if self.state.recorder is not None and session is not None and not session.nested:
                self.state.recorder.submitted(session, event)

    def _done(self, peer: bytes, event: messages.Done, now: float) -> None:
        check_done(event)
        self._completion.done(self._agent(peer), event, now)

    def _cancel(self, peer: bytes, event: messages.Cancel, now: float) -> None:
        if peer in self._operators:
            self._operators.cancel(peer, event.tasks, now)
            return
        self.state.event_log.not_found += sum(self.state.find(task) is None for task in event.tasks)
        owned = [task for task in event.tasks if self._owns(peer, session_of(task))]
        self._recovery.cancelled(owned)
        if self.state.recorder is not None and owned:
            self.state.recorder.cancelled(self.state.sessions[session_of(owned[0])], owned)
        self._completion.cancel_known(owned, now)
        if (session := self._clients.get(peer)) is not None and session.named is not None:
            self._named_sessions.cancelled(session, owned)

    def _release(self, peer: bytes, event: messages.Release, now: float) -> None:
        if event.tasks:
            session = self.state.sessions.get(session_of(event.tasks[0]))
            if session is not None and session.peer == peer:
                if self.state.recorder is not None:
                    self.state.recorder.released(session, event.tasks)
                self._completion.released(session, event.tasks, now)
                if session.named is not None:
                    self._named_sessions.received(session, event.tasks, now)

    def _returned(self, peer: bytes, event: messages.Returned, now: float) -> None:
        agent = self._agent(peer)
        agent.recalling = False
        back = []
        for run in event.runs:
            record = agent.runs.get(run)
            if record is not None:
                self.state.leave_agent(record)
                if record.state == ASSIGNED:
                    back.append(record)
                    record.group.lane.session.charge(-record.cost)
        self.state.queue(back, now, first=True)
        for task in back:
            self.state.nested_lanes.pop(task.group.lane, None)  # another agent may take it

    def _blocked(self, peer: bytes, event: messages.Blocked, now: float) -> None:
        agent = self._agent(peer)
        for run, blocked in zip(event.runs, event.blocked, strict=True):
            if run not in agent.runs:
                self._recovery.note_blocked(agent, run, blocked)
            elif blocked:
                agent.blocked.add(run)
            else:
                agent.blocked.discard(run)
        self.state.with_room[agent] = None

    def _inputs(self, peer: bytes, event: messages.Inputs, now: float) -> None:
        check_inputs(event)
        stored = set(event.stored)
        session = self.state.sessions.get(session_of(event.tasks[0])) if event.tasks else None
        if self.state.recorder is not None and session is not None and session.peer == peer:
            self.state.recorder.inputs(session, event)
        for position, task in enumerate(event.tasks):
            record = self.state.find(task)
            if record is not None and record.group.session.peer == peer:
                status, payload = event.statuses[position], event.results[position]
                self._completion.supply(record, event.needs[position], status, payload, now, stored=position in stored)

    # --- functions, output, recovery --------------------------------------------------------------------------------

    def _functions(self, peer: bytes, event: messages.Functions, now: float) -> None:
        if peer not in self._clients and peer not in self.state.agents:
            raise ProtocolError("only a client or an agent defines functions")
        try:
            check_functions(event)
        except ProtocolError as error:
            self._definitions.refuse(peer, event, error, now)
            raise
        self._definitions.take(event, now)

    def _need_functions(self, peer: bytes, event: messages.NeedFunctions, now: float) -> None:
        self._definitions.ask(self._agent(peer), event)

    def _delete_objects(self, peer: bytes, event: DeleteObjects, now: float) -> None:
        """An agent names objects of which the session's process does not know."""
        self._agent(peer)
        if session := self.state.sessions.get(event.session):
            self.state.delete_objects(session, event.objects)

    def _output(self, peer: bytes, event: messages.Output, now: float) -> None:
        """Forward lines of the agent's tasks to their clients; output of nested tasks goes to the root session."""
        agent = self._agent(peer)
        by_owner: dict[bytes, list[int]] = {}
        for position, task in enumerate(event.tasks):
            record = self.state.find(task)
            if record is not None and record.agent is agent:
                by_owner.setdefault(record.group.lane.session.peer, []).append(position)
        for owner, positions in by_owner.items():
            self.state.send(
                owner,
                messages.Output(
                    [event.tasks[i] for i in positions],
                    [event.streams[i] for i in positions],
                    Payloads([event.texts[i] for i in positions]),
                ),
            )

    def _resume(self, peer: bytes, event: messages.Reconcile, now: float) -> None:
        if agent := self.state.agents.get(peer):
            # Tasks that a client inside a task wants.
            session = self.state.nested(session_of(event.wanted[0]), agent) if event.wanted else None
            self._recovery.agent_resumes(agent, event, now)
            if session is not None:
                self._recovery.client_resumes(session, event, now)
        elif session := self._clients.get(peer):
            if session.named is not None:
                event = replace(event, wanted=self._named_sessions.claim(session, event.wanted, now))
            elif session.kept is not None:
                self._completion.attached(session, dict.fromkeys(event.wanted), now)
            if event.wanted or session.named is None:
                self._recovery.client_resumes(session, event, now)

    def _owns(self, peer: bytes, number: int) -> bool:
        session = self.state.sessions.get(number)
        return session is not None and session.peer == peer

    def _agent(self, peer: bytes) -> AgentRecord:
        agent = self.state.agents.get(peer)
        if agent is None:
            raise ProtocolError("only an agent may send this message")
        return agent

    def check(self) -> None:
        """Assert the invariants; for tests."""
        self._managers.check()
        self._named_sessions.check()
        waiting = assigned = unfinished = 0
        for session in self.state.sessions.values():
            self._completion.dependencies.check(session)
            unended = Counter(task.extra.graph for task in session.tasks.values() if task.state != DONE and task.extra)
            for graph in session.graphs.values():
                assert graph.open == unended[graph], (graph, unended[graph])
            for number, task in session.tasks.items():
                assert number == task.id and task.state != GONE, f"task {number:x} is {task.state}"
                if task.state == ASSIGNED:
                    assigned += 1
                    assert task.agent is not None and task.agent.runs.get(task.run) is task
                waiting += task.state == WAITING
                unfinished += task.state != DONE
        assert waiting == self.state.waiting.count, (waiting, self.state.waiting.count)
        assert unfinished == self.state.event_log.unfinished, (unfinished, self.state.event_log.unfinished)
        at_agents = [task for agent in self.state.agents.values() for task in agent.runs.values()]
        assert sum(task.state == ASSIGNED for task in at_agents) == assigned
        assert all(task.state == HELD for task in (*self.state.suspects, *self.state.exclusive))
        for agent in self.state.with_room:
            assert self.state.agents.get(agent.peer) is agent, f"agent {agent.name} is gone, and has no room"
        for agent in self.state.agents.values():
            assert agent.blocked <= agent.runs.keys()
            assert agent.runs or not agent.load
