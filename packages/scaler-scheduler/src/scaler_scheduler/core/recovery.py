"""Recovery: rebuild the tables after a restart from what clients and agents report.

After a restart the first Hello that names an older incarnation begins a recovery period, in which agents report which
runs they have and which outcomes they keep, and clients which tasks they still want. A wanted task that an agent runs
continues there; an outcome that an agent keeps is requested again; tasks that no agent has at the end of the recovery
period are submitted again by their clients. A client inside a task resumes through its agent, and after its agent: its
tasks are submitted again under their parent's run, or dropped if that has ended. So is what it submits while nobody has
said yet that its parent is wanted.

An agent that was connected before is given no work until it has reported its runs, since they would be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from scaler_protocol.capabilities import Capabilities
from scaler_protocol.ids import is_run_of, session_of
from scaler_protocol.messages import Group, NeedTasks, Reconcile, Release, Resend, Status, Submit, pieces_of
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.records import AgentRecord, GroupRecord, LaneRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.shares import note_runs
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, DONE, HELD, WAITING
from scaler_scheduler.requirements import Requirement

REPORTED_LIMIT = 2**20
"""Runs, kept outcomes and tasks of such runs, each without a client, that are remembered in a recovery period.

Other tasks run again.
"""
_KEEPERS_LIMIT = 16
"""Agents that keep an outcome of one task; each has run it."""


class Recovery:
    """The recovery period after a restart, and agents that connect again after they were given up."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._until: float | None = None
        self._awaits_agents = False
        self._resuming: list[SessionRecord] = []
        self._wanted: dict[int, SessionRecord] = {}
        self._running: dict[int, tuple[AgentRecord, int]] = {}
        self._finished: dict[int, list[AgentRecord]] = {}
        """Tasks that no client has asked for yet, with all agents that keep an outcome of them."""
        self._claimed: dict[int, AgentRecord] = {}
        """Runs of earlier incarnations that agents have reported."""
        self._blocked: set[int] = set()
        """Reported runs that wait for nested tasks, and whose tasks no client has asked for yet."""
        self._adopted: list[TaskRecord] = []
        self._asked: dict[int, AgentRecord] = {}
        """Tasks whose outcomes were requested, with the agents that keep them."""
        self._answers_until = 0.0
        self._awaited: set[bytes] = set()
        """Agents that a journal knows, and that have not reported all their runs since."""
        self._reported: dict[bytes, set[int]] = {}
        """Of those that have begun to report: which tasks that the journal knows have outcomes there."""
        self._noted = self._postponed = 0
        """Entries of `_finished`, and tasks that runs have submitted too early, in this recovery period."""
        self._to_resend: dict[AgentRecord, list[int]] = {}
        """Tasks whose outcomes agents are asked for at the end of the turn: one message to each."""
        self._knows_all = False
        """Whether a journal has told which agents and tasks there were."""
        self._lost_relays: dict[bytes, int] = {}
        """The incarnations of relays that were lost, until the recovery period ends."""

    def restored(self, agents: set[bytes], now: float) -> None:
        """A journal lists the agents of the earlier incarnation: the recovery period lasts until they have reported."""
        self._knows_all, self._awaited = True, agents
        if agents:
            self.open(now, by_agent=True)

    def open(self, now: float, *, by_agent: bool) -> None:
        """A peer was connected to an earlier incarnation, or says so: begin the recovery period."""
        if self._until is None:
            self._until = now + self._state.config.recovery_seconds
        self._awaits_agents |= by_agent

    def relay_lost(self, relay: AgentRecord, now: float) -> None:
        """A relay is gone, but not its agents: its tasks are HELD until these are back, for a recovery period."""
        tasks = [task for task in relay.runs.values() if task.state == ASSIGNED]
        for task in tasks:
            self._state.assigned_before[task.id] = (relay.peer, task.run)
            del relay.runs[task.run]
            task.state, task.agent = HELD, None
        if self._state.event_log.listening:
            self._state.event_log.entered(HELD, tasks)
        if tasks:
            self._awaited.add(relay.peer)
            self._lost_relays[relay.peer] = relay.relay_incarnation
            self._until = max(self._until or 0.0, now + self._state.config.recovery_seconds)

    @property
    def awaits_agents(self) -> bool:
        """Whether agents of an earlier incarnation report. Clients, which may say anything, do not prolong that."""
        return self._until is not None and self._awaits_agents

    @property
    def is_open(self) -> bool:
        """Whether this is the recovery period."""
        return self._until is not None

    def due(self) -> float | None:
        """When the recovery period ends, or the time for answers to Resend ends."""
        return self._answers_until if self._until is None and self._asked else self._until

    def agent_left(self, agent: AgentRecord, now: float) -> None:
        """The runs and outcomes of this agent are lost."""
        self._heard(agent.peer, now)
        self._to_resend.pop(agent, None)
        self._give_up([task for task, asked in self._asked.items() if asked is agent], now)
        self._running = {task: found for task, found in self._running.items() if found[0] is not agent}
        for task in [task for task, found in self._finished.items() if agent in found]:
            self._finished[task].remove(agent)
            if not self._finished[task]:
                del self._finished[task]

    def session_over(self, session: SessionRecord) -> None:
        """A session has ended: its tasks are not wanted any more."""
        if self._resuming:
            self._resuming = [resuming for resuming in self._resuming if resuming is not session]
            self._wanted = {task: owner for task, owner in self._wanted.items() if owner is not session}

    def client_resumes(self, session: SessionRecord, event: Reconcile, now: float) -> None:
        """A client still wants these tasks; known ones need nothing."""
        session.resuming = True
        self._resuming.append(session)
        for task in event.wanted:
            if session_of(task) != session.number:
                continue
            if session.was_elsewhere:
                session.last_wanted = max(session.last_wanted, task)
            if task in session.tasks:
                continue
            if found := self._running.pop(task, None):
                self._adopt(session, task, *found)
            elif keepers := self._finished.pop(task, None):
                self._resend(session, task, keepers[0], now)
                for agent in keepers[1:]:
                    self._state.send(agent.peer, Release((task,)))
            else:
                self._wanted[task] = session
        if self._until is None:
            self._until = now  # no other peer was connected to an earlier incarnation

    def is_resuming(self, session: SessionRecord) -> bool:
        """Whether tasks of a session may still be missing: in the recovery period, or while a Resend is unanswered."""
        return session.resuming or any(session_of(task) == session.number for task in self._asked)

    def known(self, tasks: Iterable[int]) -> None:
        """The client has submitted these tasks again, or does not want them any more."""
        if self._wanted:
            for task in tasks:
                self._wanted.pop(task, None)

    def agent_resumes(self, agent: AgentRecord, event: Reconcile, now: float) -> None:
        """An agent reports its runs and the outcomes that it keeps, in as many messages as it takes."""
        if self._state.cluster is not None:
            self._state.cluster.reported(agent.peer, _shares(event), more=event.more)
        named = zip(event.running, event.runs, strict=True)
        for run in [run for task, run in named if not self._runs(agent, task, run)]:
            self._state.withdraw_run(agent, run)
        self._finish(agent, event, now)
        if agent.peer in self._awaited:
            before = self._state.assigned_before
            self._reported.setdefault(agent.peer, set()).update(task for task in event.finished if task in before)
        if not event.more:
            agent.resuming = False
            self._state.with_room[agent] = None
            self._heard(agent.peer, now, kept=self._reported.get(agent.peer, ()))

    def _runs(self, agent: AgentRecord, task: int, run: int) -> bool:
        """Whether the agent may continue this run; records it if so."""
        record = self._state.find(task)
        if run in agent.runs or run in self._claimed:
            return run in agent.runs and agent.runs[run].id == task
        if record is not None:
            return self._adopt_again(agent, record, run)
        if self._until is None or not self._is_older(agent, run) or task in self._running:
            return False
        if len(self._claimed) >= REPORTED_LIMIT:
            return False
        self._claimed[run] = agent
        if session := self._wanted.pop(task, None):
            self._adopt(session, task, agent, run)
        else:
            self._running[task] = (agent, run)
        return True

    def _adopt_again(self, agent: AgentRecord, record: TaskRecord, run: int) -> bool:
        """An agent that was given up is back with a run: adopt it if the task still waits for another one."""
        is_awaited, is_apart = record.id in self._state.assigned_before, self._waits_apart(record)
        if record.state == ASSIGNED and self.is_current(agent, record, run):
            self._state.take_over(record)  # a relay has it, but not the agent any more to which it gave it
            self._move(agent, record, run)
            return True
        is_free = record.state == WAITING or is_apart or (is_awaited and record.state == HELD)
        if not is_free or not self.was_given(agent, record, run):
            return False
        if is_awaited:
            if self._state.assigned_before.pop(record.id)[0] != agent.peer:
                self._move(agent, record, run)
                return True
        elif is_apart:
            self._state.leave_apart(record)
        else:
            self._state.waiting.remove(record)
        if (notes := record.notes) is not None:
            notes.suspect = False  # its host is alive
            if notes.charged == run:
                notes.lost_runs -= 1  # it was not lost
                notes.charged = 0
            if notes.counted == run:
                notes.earlier_runs -= 1
                notes.counted = 0
        self._set_running(agent, record, run)
        return True

    def _waits_apart(self, record: TaskRecord) -> bool:
        """Whether the task waits for a host where no suspect is, or none but itself."""
        extra = record.extra
        is_apart = record.state == HELD and extra is not None and extra.is_apart
        return is_apart and record.id not in self._state.assigned_before

    def _move(self, agent: AgentRecord, record: TaskRecord, run: int) -> None:
        """An agent goes on with what a relay had given it."""
        if self._state.recorder is not None:
            self._state.recorder.assigned(agent, run, (record.id,))
        self._set_running(agent, record, run)

    def _is_older(self, agent: AgentRecord, run: int) -> bool:
        """Whether the agent may have been given this run by an earlier incarnation."""
        return agent.returning and not self._state.is_own(run)

    def was_given(self, agent: AgentRecord, record: TaskRecord, run: int) -> bool:
        """Whether this agent may have had this run; for runs of this incarnation, and with a journal, that is recorded.

        Without, an earlier incarnation has given runs only of tasks that existed when their client came back.
        """
        if self.is_current(agent, record, run):
            return True
        if self._state.is_own(run) or (self._knows_all and not record.group.session.nested):
            given_up = record.notes.given_up if record.notes is not None else ()
            return any(run == old and (peer == agent.peer or agent.relay_incarnation) for old, peer in given_up)
        return agent.returning and record.id <= record.group.session.last_wanted

    def is_current(self, agent: AgentRecord, record: TaskRecord, run: int) -> bool:
        """Whether the task is known to have this run on this agent; a relay may have passed it on, or pass it on."""
        peer, given = self._state.assigned_before.get(record.id, (b"", 0))
        relay = self._lost_relays.get(peer, 0)
        if not peer:
            holder = record.agent if record.state == ASSIGNED else None
            if holder is None or holder is agent:
                return False
            given, relay = record.run, holder.relay_incarnation
        if given == run:
            return peer == agent.peer or bool(relay or agent.relay_incarnation)
        return is_run_of(relay, run)

    def keeps(self, agent: AgentRecord, task: int, run: int, status: int) -> bool:
        """A run has ended whose task no client has asked for yet: whether its agent must keep the outcome."""
        if self._until is None or not self._is_older(agent, run):
            return False
        if self._running.get(task) == (agent, run):
            del self._running[task]  # it cannot be adopted any more
        if status > Status.FAILED or self._state.find(task) is not None:
            return False
        return self._note_finished(task, agent)

    def note_blocked(self, agent: AgentRecord, run: int, blocked: bool) -> None:
        """A run that may be adopted later has started or stopped waiting for nested tasks."""
        if self._claimed.get(run) is not agent:
            return
        if blocked:
            self._blocked.add(run)
        else:
            self._blocked.discard(run)

    def postpone(self, agent: bytes, event: Submit) -> bool:
        """Whether the run that submits these may be adopted later: its agent is asked for them again after that."""
        claimant = self._claimed.get(event.parent)
        if claimant is None or claimant.peer != agent or self._postponed + len(event.tasks) > REPORTED_LIMIT:
            return False
        session = self._state.nested(session_of(event.tasks[0]), claimant)
        if not session.resuming:
            session.resuming = True
            self._resuming.append(session)
        self._wanted.update(dict.fromkeys(event.tasks, session))
        self._postponed += len(event.tasks)
        return True

    def _finish(self, agent: AgentRecord, event: Reconcile, now: float) -> None:
        forget = []
        for task in event.finished:
            record = self._state.find(task)
            if session := self._wanted.pop(task, None):
                self._resend(session, task, agent, now)
            elif record is not None and record.state == DONE and not self._is_kept(record):
                record.agent = agent  # it gets the Release when the owner has the outcome
            elif record is not None and record.state != DONE:
                if record.state == WAITING:
                    self._state.waiting.remove(record)
                    self._await(record, agent, now)
                elif self._waits_apart(record):
                    self._state.leave_apart(record)
                    self._await(record, agent, now)
                self._to_resend.setdefault(agent, []).append(task)
            elif not self._is_to_note(task, record) or not self._note_finished(task, agent):
                forget.append(task)
        if forget:
            self._state.send(agent.peer, Release(forget))

    def _is_to_note(self, task: int, record: TaskRecord | None) -> bool:
        """Whether a client may still ask for the outcome of the task."""
        return record is None and self._until is not None and not self._is_released(task)

    def _note_finished(self, task: int, agent: AgentRecord) -> bool:
        """An agent keeps an outcome of a task that no client has asked for yet; False if it need not be kept."""
        keepers = self._finished.get(task, ())
        if agent in keepers:
            return True
        if self._noted >= REPORTED_LIMIT or len(keepers) >= _KEEPERS_LIMIT:
            return False
        self._finished.setdefault(task, []).append(agent)
        self._noted += 1
        return True

    def _is_released(self, task: int) -> bool:
        """Whether, by a journal, the owner of a task that is not known any more has its outcome."""
        session = self._state.sessions.get(session_of(task))
        return self._knows_all and session is not None and not session.nested

    def _is_kept(self, record: TaskRecord) -> bool:
        """Whether the agent that keeps the outcome is still connected."""
        return record.agent is not None and self._state.agents.get(record.agent.peer) is record.agent

    def settle(self, now: float) -> None:
        """Ask for outcomes. End the recovery period in time: clients submit missing tasks again, agents drop others."""
        to_resend, self._to_resend = self._to_resend, {}
        for agent, tasks in to_resend.items():
            self._state.send(agent.peer, Resend(tasks))
        if self._asked and now >= self._answers_until:
            self._give_up(list(self._asked), now)
        if self._until is not None and (now >= self._until or self._is_complete()):
            self._close(now)

    def _is_complete(self) -> bool:
        """Whether all agents of the earlier life have said what they have, and all of that is known."""
        if not self._knows_all or self._awaited or self._running or self._finished:
            return False
        before = self._state.assigned_before
        for task in [task for task in before if not _is_held(self._state.find(task))]:
            del before[task]
        return not before

    def _heard(self, agent: bytes, now: float, kept: Iterable[int] = ()) -> None:
        """An agent of the earlier life has reported, or is lost: what it has not is queued; `kept` is on its way."""
        if agent not in self._awaited:
            return
        self._awaited.discard(agent)
        self._reported.pop(agent, None)
        lacking = [task for task, (other, _) in self._state.assigned_before.items() if other == agent]
        self._queue_lost(set(lacking).difference(kept), now)

    def _queue_lost(self, tasks: Iterable[int], now: float) -> None:
        """The agents that had these tasks have them no longer."""
        lost: list[TaskRecord] = []
        for task in tasks:
            agent, run = self._state.assigned_before.pop(task)
            record = self._state.find(task)
            if record is not None and record.state == HELD:
                record.note().given_up = ((run, agent),)
                lost.append(record)
        self._state.queue(lost, now, first=True)

    def _close(self, now: float) -> None:
        self._until, self._awaits_agents = None, False
        self._queue_lost(list(self._state.assigned_before), now)
        if self._state.recorder is not None:
            for gone in self._awaited:
                self._state.recorder.agent_left(gone)
        self._awaited, self._reported, self._lost_relays = set(), {}, {}
        self._ask_for_calls()
        for agent, run in self._running.values():
            self._state.withdraw_run(agent, run)
        forgotten: dict[AgentRecord, list[int]] = {}
        for task, keepers in self._finished.items():
            for agent in keepers:
                forgotten.setdefault(agent, []).append(task)
        for agent, tasks in forgotten.items():
            for some in pieces_of(tasks):
                self._state.send(agent.peer, Release(some))
        for session in self._resuming:
            session.resuming = False
        self._state.forget_nested(session.number for session in self._resuming)
        self._resuming = []
        self._wanted, self._running, self._finished, self._adopted = {}, {}, {}, []
        self._blocked, self._claimed, self._noted, self._postponed = set(), {}, 0, 0

    def _ask_for_calls(self) -> None:
        """Ask clients for the calls of tasks that no agent has, and of those that agents run, in case they are lost."""
        lacking: dict[SessionRecord, list[int]] = {}
        for task, session in self._wanted.items():
            if session.number in self._state.sessions and task not in session.tasks:
                lacking.setdefault(session, []).append(task)
        for record in self._adopted:
            if record.state == ASSIGNED and record.group.lane.calls_missing:
                lacking.setdefault(record.group.session, []).append(record.id)
        for session, tasks in lacking.items():
            self._state.send(session.peer, NeedTasks(tasks))

    def _adopt(self, session: SessionRecord, task: int, agent: AgentRecord, run: int) -> None:
        """The agent continues the task. Its call is requested after the recovery period, in case the run is lost."""
        record = self._enter(session, task)
        self._set_running(agent, record, run)
        self._adopted.append(record)

    def _resend(self, session: SessionRecord, task: int, agent: AgentRecord, now: float) -> None:
        self._await(self._enter(session, task), agent, now)
        self._to_resend.setdefault(agent, []).append(task)

    def _await(self, record: TaskRecord, agent: AgentRecord, now: float) -> None:
        """The task is HELD until the agent has sent the outcome that it keeps, or the time for that ends."""
        record.state = HELD
        if self._state.event_log.listening:
            self._state.event_log.entered(HELD, (record,))
        self._asked[record.id] = agent
        self._answers_until = now + self._state.config.recovery_seconds

    def _enter(self, session: SessionRecord, task: int) -> TaskRecord:
        """Enter a task that is known by its id only."""
        self._state.event_log.submitted += task not in session.tasks
        record = session.tasks[task] = TaskRecord(task, self._placeholder_group(session), b"")
        if session.named is not None:
            self._state.results.enter(session, [record])
        return record

    def awaits(self, record: TaskRecord) -> bool:
        """Whether an agent was asked for an outcome of the task that it keeps."""
        return record.id in self._asked

    def _give_up(self, tasks: list[int], now: float) -> None:
        """No agent will send the outcomes of these tasks: those that are not DONE run again."""
        for task in tasks:
            del self._asked[task]
        records = [record for record in map(self._state.find, tasks) if record is not None and record.state == HELD]
        self._state.queue(records, now, first=True)

    def _placeholder_group(self, session: SessionRecord) -> GroupRecord:
        """The group of the session's tasks that are known by their ids only."""
        nothing = Group(b"")
        key = (nothing, session, 0, None)
        if key not in session.groups:
            lane = LaneRecord(session, 0, 0, Requirement((), None), None, calls_missing=True)
            session.groups[key] = GroupRecord(nothing, session, lane, FunctionRecord(b""), None, nothing)
        return session.groups[key]

    def _set_running(self, agent: AgentRecord, record: TaskRecord, run: int) -> None:
        record.state, record.agent, record.run = ASSIGNED, agent, run
        if self._state.event_log.listening:
            self._state.event_log.assigned(agent, run, (record.id,))
        agent.runs[run] = record
        agent.load += record.cost
        note_runs(agent, [record])
        if run in self._blocked:
            agent.blocked.add(run)
        self._state.with_room[agent] = None


def _shares(event: Reconcile) -> dict[int, Capabilities]:
    """What an agent says that its runs have taken, by run."""
    found: dict[int, Capabilities] = {}
    for run, name, wanted in zip(event.takers, event.taken_names, event.taken_values, strict=True):
        found[run] = (*found.get(run, ()), (name, wanted))
    return found


def _is_held(record: TaskRecord | None) -> bool:
    return record is not None and record.state == HELD
