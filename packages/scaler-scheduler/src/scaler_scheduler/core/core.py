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

Invariants (`scaler_scheduler.core.invariants`): an ASSIGNED task is in its agent's table of runs, under its run id, and
in no other; the task queue counts the WAITING tasks; a session's table holds exactly its tasks that are not forgotten;
the load of an agent is what its runs are expected to take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from scaler_io.links.effects import Effect, Stop
from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_io.links.link_record import LinkFigures
from scaler_protocol import messages
from scaler_protocol.capacity import ListProcesses, ListWorkers, ManagerStatus, ProcessList
from scaler_protocol.errors import ProtocolError, SubmitRefusedError
from scaler_protocol.handshake import Goodbye, Hello, Refused, Welcome
from scaler_protocol.ids import session_of
from scaler_protocol.monitoring import EventKind, MonitorHistory, MonitorStatus, TaskEvents
from scaler_protocol.operations import AskWhy, Drain, Dump, ProfilePart, Reasons, Resized, TakeProfile
from scaler_protocol.outputs import KEPT, TRACEBACK
from scaler_protocol.payloads import Payloads
from scaler_protocol.sessions import ConfirmTasks, EndSession, LabelTask, ListTasks
from scaler_protocol.storage import DeleteObjects
from scaler_scheduler.core.agent_reports import WORKERS, kept_status, worker_sums, workers_share
from scaler_scheduler.core.checks import check_done, check_functions, check_inputs, check_submit
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.definitions import Definitions
from scaler_scheduler.core.dispatch import Dispatch
from scaler_scheduler.core.dump import Row, dump
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.explanation import why
from scaler_scheduler.core.intake import Intake
from scaler_scheduler.core.invariants import check_state
from scaler_scheduler.core.managers import Managers
from scaler_scheduler.core.named_sessions import NamedSessions
from scaler_scheduler.core.operators import Operators
from scaler_scheduler.core.peers import Peers
from scaler_scheduler.core.records import AgentRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.reports import deaths_of
from scaler_scheduler.core.restoration import Restoration
from scaler_scheduler.core.session_ends import SessionEnds
from scaler_scheduler.core.snapshot import ProcessStats, monitor_status
from scaler_scheduler.core.state import SchedulerState, SendToStorage
from scaler_scheduler.core.task_states import HELD


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

        `key_of` tells the key that a peer has proved, empty without keys: the sessions of a key have one share of the
        workers together, and a client nests tasks in runs of its key only.
        """
        self._config = config
        self._shut_down_by = b""
        """The client that has asked for the end."""
        self.state = SchedulerState(incarnation, config)
        self._recovery = Recovery(self.state)
        self._completion = Completion(self.state, self._recovery)
        self._dispatch = Dispatch(self.state, self._completion)
        self._intake = Intake(self.state, self._completion, self._dispatch, key_of)
        self._definitions = Definitions(self.state, self._completion, self._dispatch)
        self._operators = Operators(self.state, self._completion)
        self._managers = Managers(self.state, config.scaling)
        self._session_ends = SessionEnds(self.state, self._completion, self._recovery)
        self._named_sessions = NamedSessions(
            self.state, self._completion, self._session_ends, is_connected, self._recovery.is_resuming
        )
        self._peers = Peers(
            self.state,
            self._completion,
            self._session_ends,
            self._dispatch,
            self._recovery,
            self._named_sessions,
            self._managers,
            self._operators,
            key_of,
        )
        self.restoration = Restoration(self.state, self._intake, self._definitions, self._completion, self._recovery)
        self._handlers = self._event_handlers()

    def _event_handlers(self) -> dict[type[Any], Callable[[bytes, Any, float], None]]:
        return {
            PeerJoined: self._peers.joined,
            PeerLost: self._peers.lost,
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
            AskWhy: self._ask_why,
            TakeProfile: self._operators.profile,
            ProfilePart: lambda peer, event, now: self._operators.profiling.answered(self._agent(peer), event),
            Resized: self._resized,
            ManagerStatus: self._managers.status,
            ListWorkers: self._peers.list_workers,
            ListProcesses: self._peers.list_processes,
            ProcessList: lambda peer, event, now: self._peers.processes_listed(self._agent(peer), event),
            ListTasks: self._list_tasks,
            LabelTask: self._label_task,
            EndSession: self._end_session,
            ConfirmTasks: lambda peer, event, now: self._named_sessions.confirm(self._peers.clients.get(peer), event),
            messages.Shutdown: self._shutdown,
        }

    def admit(self, hello: Hello) -> Welcome | Refused:
        """Decide whether a peer may connect; a refusal lists every reason."""
        return self._peers.admit(hello)

    def handle(self, peer: bytes, event: HubEvent, now: float) -> None:
        """Handle one event. Raises ProtocolError, without any change, for a message that this peer may not send."""
        handler = self._handlers.get(type(event))
        if handler is None:
            raise ProtocolError(f"unexpected message {type(event).__name__}")
        self.state.event_log.now = now
        handler(peer, event, now)

    def note_busy(self, share: float) -> None:
        """The scheduler is busy for this share of its time."""
        self._dispatch.note_busy(share)

    def recall(self, count: int, now: float) -> None:
        """Ask agents to return about so many runs that have not started: workers elsewhere could begin with them."""
        self._dispatch.balance.recall(count, now)

    def settle(self, now: float) -> list[Effect | SendToStorage | WriteDump]:
        """Make every pending decision once; returns the effects to perform."""
        state = self.state
        state.event_log.now = now
        self._recovery.settle(now)
        self._peers.settle(now)
        self._completion.dependencies.queue_ready(now)
        if self._completion.speculation.groups:
            self._completion.speculation.limit(now)
        # A run that is not wanted must not begin because another one, which was sent after it, has ended.
        state.send_withdrawn()
        self._dispatch.fail_foreign(now)
        if state.cluster is not None and state.cluster.settle(now, recovering=self._recovery.awaits_agents):
            state.with_room.update(dict.fromkeys(state.agents.values()))
        self._dispatch.assign()
        self._dispatch.balance.rebalance(now)
        if self._completion.speculation.groups:
            self._dispatch.speculate(now)
        self._managers.settle(now)
        self._operators.profiling.settle(now)
        if state.ended_sessions:
            self._session_ends.settle(now)
        self._completion.post(now)
        if self._named_sessions:
            self._named_sessions.settle(now)
        if now >= state.event_log.history.figures_at:
            state.event_log.take_figures(state.agents.values())
        out, state.out = state.out, []
        return out

    def due(self) -> float | None:
        """The time at which `settle` must be called even if no event arrives; None if never."""
        times = [
            self._completion.due(),
            self._session_ends.due(),
            self._completion.speculation.due() if self._completion.speculation.groups else None,
            self._dispatch.due(),
            self._recovery.due(),
            self._managers.due(),
            self._peers.due(),
            self._named_sessions.due(),
            self._operators.profiling.due(),
            self.state.cluster.due() if self.state.cluster is not None else None,
        ]
        return min([time for time in times if time is not None], default=None)

    def restored(self, now: float) -> None:
        """`restoration` has replayed all records of the earlier incarnation: continue from there."""
        self.restoration.finish(now)
        if self.state.cluster is not None:
            self.state.cluster.known()
        self._named_sessions.restored(now)
        self._peers.restored(now)

    def refuse_new_work(self, reason: str) -> None:
        """Refuse new work for this reason; accept it again if the reason is empty."""
        self.state.refusal = reason
        if reason:
            self.state.log(f"refuses new work: {reason}", EventKind.SCHEDULER, logging.ERROR)
        else:
            self.state.log("takes new work again", EventKind.SCHEDULER)

    # --- monitors ---------------------------------------------------------------------------------------------------

    def snapshot(self, stats: ProcessStats, now: float, *, first: bool = False) -> MonitorStatus:
        """The status that monitors are sent; `first` marks the one that TaskEvents with all open tasks follow."""
        return monitor_status(self.state, stats, now, snapshot=first, managers=self._managers)

    def left_by(self, peer: bytes, exact: bool) -> int:
        """Bytes of the calls that end with a client: an upper bound, or if `exact` the number."""
        session = self._peers.clients.get(peer)
        if session is None or session.named is not None:
            return 0
        return self.state.budgets.calls_of(session, exact=exact)

    def dump(self, stats: ProcessStats, links: Sequence[LinkFigures], now: float) -> dict[str, Row]:
        """Who waits for what, and why, as values for JSON; `links` are those of the hub."""
        return dump(self.state, stats, links, now, self._managers)

    def why(self, task: int, now: float) -> list[str]:
        """Why a task has not ended, in sentences, by what the core would do; none if it is not known."""
        return why(self.state, self.snapshot(ProcessStats("", 0.0, 0.0, 0.0, 0), now), task, now)

    def start_events(self, now: float) -> None:
        """A monitor has subscribed: record events from now on, beginning with the state of all open tasks."""
        self.state.event_log.now = now
        self.state.event_log.start(self.state.agents.values(), self.state.sessions.values())

    def history(self, since: float) -> MonitorHistory:
        """What monitors that subscribe late are sent; `since` is that of `take_events`."""
        return self.state.event_log.history.message(since)

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

    # --- peers and sessions -----------------------------------------------------------------------------------------

    def _send_failed(self, peer: bytes, event: SendFailed, now: float) -> None:
        """A Run message could not be encoded: its tasks fail with the reason."""
        if isinstance(event.message, messages.Run) and (agent := self.state.agents.get(peer)):
            runs = range(event.message.first_run, event.message.first_run + len(event.message.tasks))
            error = ProtocolError(f"the task cannot be sent to a worker: {event.reason}")
            self._completion.fail_runs(agent, runs, error, now)
            if self.state.cluster is not None:
                self.state.cluster.over(peer, runs)

    def _status(self, peer: bytes, event: messages.AgentStatus, now: float) -> None:
        agent = self._agent(peer)
        for text, host in deaths_of(agent, event):
            self.state.event_log.add_text(logging.WARNING, EventKind.WORKER, text, subject=host)
        share = workers_share(len(self.state.agents))
        # Before its Reconcile the agent's runs are not known yet.
        runs = event.runs[:share] if agent.resuming else (run for run in event.runs if run in agent.runs)
        before = agent.running
        agent.running = {run: before.get(run, now) for run in runs if run}
        agent.unused = event.runs.count(0)
        agent.unreported = self.state.runs_after(event.newest_run)
        agent.status, agent.reported_at = kept_status(event, share), now
        # If all agents have as many workers, monitors are not told of each; the report is quick to sum as it comes.
        is_crowded = self.state.event_log.listening and len(self.state.agents) * len(event.names) > WORKERS
        agent.sums = worker_sums(event) if is_crowded or len(event.names) > share else None
        self.state.suspects.reported(agent, now)

    def _ask_why(self, peer: bytes, event: AskWhy, now: float) -> None:
        if peer not in self._operators:
            raise ProtocolError("only an operator may ask why a task waits")
        self.state.send(peer, Reasons(event.task, self.why(event.task, now)))

    def _resized(self, peer: bytes, event: Resized, now: float) -> None:
        self._peers.resized(self._agent(peer), event, now)

    def _list_tasks(self, peer: bytes, event: ListTasks, now: float) -> None:
        self._named_sessions.list(peer, self._peers.clients.get(peer), event, now, any_key=peer in self._operators)

    def _label_task(self, peer: bytes, event: LabelTask, now: float) -> None:
        self._named_sessions.label(self._peers.clients.get(peer), event)

    def _end_session(self, peer: bytes, event: EndSession, now: float) -> None:
        own = self._peers.clients.get(peer)
        if (ended := self._named_sessions.end(peer, own, event, now, any_key=peer in self._operators)) is not None:
            self._peers.displace(ended)

    def _shutdown(self, peer: bytes, event: messages.Shutdown, now: float) -> None:
        if self._config.protected:
            self.state.send(peer, messages.ShutdownAnswer(False, "Scheduler is in protected mode. Can't shutdown"))
            return
        self._shut_down_by = peer
        self.state.send(peer, messages.ShutdownAnswer(True))
        for agent in self.state.agents:
            self.state.send(agent, messages.Shutdown())
        self.state.out.append(Stop("a client asked for it"))

    def end(self, reason: str) -> None:
        """The cluster ends: tell all clients, whose calls fail then, but the one that has asked for it."""
        for client in self._peers.clients:
            if client != self._shut_down_by:
                self.state.send(client, Goodbye(reason))

    # --- tasks ------------------------------------------------------------------------------------------------------

    def _submit(self, peer: bytes, event: messages.Submit, now: float) -> None:
        try:
            check_submit(event)
            if self.state.refusal and not event.parent:
                raise SubmitRefusedError(f"the scheduler refuses new work: {self.state.refusal}")
            submitter = self._intake.submitter(peer, event) if event.tasks else None
            if submitter is not None and submitter.session is not None:
                if refusal := self._recorder_refusal(submitter.session):
                    raise SubmitRefusedError(refusal)
                self.state.budgets.take(submitter.session, event, now)
        except (ProtocolError, SubmitRefusedError) as error:
            self._intake.refuse(peer, event, error)
            self.state.forget_nested(map(session_of, event.tasks[:1]))
            if isinstance(error, ProtocolError):
                raise
            return
        self._definitions.take(event, now)
        if submitter is None or (submitter.session is None and self._recovery.postpone(peer, event)):
            return
        self._intake.submit(submitter, event, now)
        self._recovery.known(event.tasks)
        session = submitter.session
        if self.state.recorder is not None and session is not None and not session.nested:
            self.state.recorder.submitted(session, event)

    def _recorder_refusal(self, session: SessionRecord | None) -> str:
        recorder = self.state.recorder
        return "" if recorder is None or session is None or session.nested else recorder.refusal(session)

    def _done(self, peer: bytes, event: messages.Done, now: float) -> None:
        check_done(event)
        self._completion.done(self._agent(peer), event, now)
        if self.state.cluster is not None:
            self.state.cluster.over(peer, event.runs)

    def _cancel(self, peer: bytes, event: messages.Cancel, now: float) -> None:
        if peer in self._operators:
            self._operators.cancel(peer, event.tasks, now)
            return
        self.state.event_log.not_found += sum(self.state.entry(task) is None for task in event.tasks)
        owned = [task for task in event.tasks if self._owns(peer, session_of(task))]
        self._recovery.known(owned)
        if self.state.recorder is not None and owned:
            owner = self.state.sessions[session_of(owned[0])]
            if known := _known(owner, owned):
                self.state.recorder.cancelled(owner, known)
        self._completion.cancel_known(owned, now)
        if (session := self._peers.clients.get(peer)) is not None and session.named is not None:
            self._named_sessions.cancelled(session, owned)

    def _release(self, peer: bytes, event: messages.Release, now: float) -> None:
        if event.freed and (client := self._peers.clients.get(peer)) is not None:
            self.state.long_results.freed(client, event.freed)
        if event.tasks:
            session = self.state.sessions.get(session_of(event.tasks[0]))
            if session is not None and session.peer == peer:
                if self.state.recorder is not None and (known := _known(session, event.tasks)):
                    self.state.recorder.released(session, known)
                self._completion.released(session, event.tasks, now)
                if session.named is not None:
                    self._named_sessions.received(session, event.tasks, now)

    def _returned(self, peer: bytes, event: messages.Returned, now: float) -> None:
        agent = self._agent(peer)
        self._dispatch.balance.returned(agent, event.runs, now)
        back = self._completion.returned(agent, event.runs, now)
        if self.state.cluster is not None:
            self.state.cluster.over(peer, event.runs)
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
        for task in event.tasks:
            if self.state.entry(task) is not None and not self._owns(peer, session_of(task)):
                raise ProtocolError(f"task {task:x} is not the sender's")
        records = [self.state.find(task) for task in event.tasks]
        session = self.state.sessions.get(session_of(event.tasks[0])) if event.tasks else None
        if session is not None and session.peer == peer:
            if refusal := self._recorder_refusal(session):
                self._refuse_inputs(records, SubmitRefusedError(refusal), now)
                return
            if self.state.recorder is not None:
                self.state.recorder.inputs(session, event)
        for position, record in enumerate(records):
            if record is not None:
                status, payload = event.statuses[position], event.results[position]
                self._completion.supply(record, event.needs[position], status, payload, now, stored=position in stored)

    def _refuse_inputs(self, records: Iterable[TaskRecord | None], error: SubmitRefusedError, now: float) -> None:
        for record in records:
            if record is not None and record.state == HELD:
                self._completion.fail(record, error, now)

    # --- functions, output, recovery --------------------------------------------------------------------------------

    def _functions(self, peer: bytes, event: messages.Functions, now: float) -> None:
        if peer not in self._peers.clients and peer not in self.state.agents:
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
        """An agent names objects that the session's own process does not know."""
        self._agent(peer)
        if session := self.state.sessions.get(event.session):
            self.state.delete_objects(session, event.objects)

    def _output(self, peer: bytes, event: messages.Output, now: float) -> None:
        """Keep or forward lines of the agent's tasks to their clients; those of nested tasks go to the root session."""
        agent = self._agent(peer)
        by_owner: dict[bytes, list[int]] = {}
        for position, task in enumerate(event.tasks):
            record = self.state.find(task)
            if record is None or record.agent is not agent:
                continue
            if event.streams[position] == TRACEBACK:
                self.state.event_log.history.add_excerpt(task, event.texts[position])
            elif event.streams[position] > KEPT:
                self.state.event_log.add_output(record, event.texts[position])
            else:
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
        elif session := self._peers.clients.get(peer):
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
        self._completion.speculation.check()
        self._dispatch.balance.check()
        for session in self.state.sessions.values():
            self._completion.dependencies.check(session)
        check_state(self.state)


def _known(session: SessionRecord, tasks: Sequence[int]) -> list[int]:
    """Those of the tasks of which something is recorded: others would be recorded for nothing, again and again."""
    named = session.named.tasks if session.named is not None else {}
    return [task for task in tasks if task in session.tasks or task in named]
