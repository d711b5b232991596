"""Restoration: rebuild the tables from the records of an earlier incarnation of the scheduler. Pure.

The recorded events are replayed in order through the code that handled them the first time; resulting messages are
dropped. `finish` ends the replay: tasks that no agent had are queued at once, the others are HELD until their agents
have reported (`scaler_scheduler.core.recovery`). Clients have the usual time to come back; their outcomes are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from scaler_protocol.ids import session_of
from scaler_protocol.messages import Done, Functions, Inputs, Submit
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.sessions import give_name
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.definitions import Definitions
from scaler_scheduler.core.intake import Intake, Submitter
from scaler_scheduler.core.records import SessionRecord, TaskRecord
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.reports import profile_of
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import DONE, HELD


class Attempts(NamedTuple):
    """The counters of a task's earlier runs; the fields are those of RunNotes."""

    task: int
    lost_runs: int
    shared_losses: int
    raised_runs: int
    earlier_runs: int
    suspect: bool
    exclusive: bool


class Restoration:
    """Each method replays one record; records of unknown sessions and tasks change nothing."""

    def __init__(
        self,
        state: SchedulerState,
        intake: Intake,
        definitions: Definitions,
        completion: Completion,
        recovery: Recovery,
    ) -> None:
        self._state = state
        self._intake = intake
        self._definitions = definitions
        self._completion = completion
        self._recovery = recovery
        self._assigned: dict[int, tuple[bytes, int]] = {}
        self._agents: dict[bytes, float] = {}
        self._arrived: set[int] = set()
        """Graphs, by their first tasks, whose last node was submitted."""

    def begin(self) -> None:
        """Records follow."""
        self._state.restoring = True

    def session(self, session: SessionRecord) -> None:
        """A client was connected."""
        self._state.sessions[session.number] = session

    def agent(self, agent: bytes, lives_on_seconds: float) -> None:
        """An agent with this identity was connected; its runs may go on so long without a scheduler."""
        self._agents[agent] = lives_on_seconds

    def functions(self, event: Functions) -> None:
        """The bytes of functions had arrived."""
        self._definitions.take(event, 0.0)

    def submitted(self, event: Submit) -> bool:
        """Tasks were accepted; returns whether their session is known.

        Those known here had been forgotten then (rows about that may be gone), and are submitted again.
        """
        session = self._state.sessions.get(session_of(event.tasks[0]))
        if session is None:
            return False
        if again := session.tasks.keys() & event.tasks:
            self.cancelled(session.number, sorted(again))
            for task in again:
                self._assigned.pop(task, None)
        if event.graph and event.graph + event.graph_size - 1 in event.tasks:
            self._arrived.add(event.graph)
        session.last_task = session.last_wanted = max(session.last_task, max(event.tasks))
        self._intake.submit(Submitter(session.peer, session, None), event, 0.0)
        return True

    def ended(self, number: int, report: Done) -> None:
        """Tasks of a session had ended."""
        stored = set(report.stored)
        for position, task in enumerate(report.tasks):
            record = self._state.find(task)
            if record is not None and record.group.session.number == number and record.state != DONE:
                self._completion.end(
                    record,
                    report.statuses[position],
                    report.results[position],
                    0.0,
                    stored=position in stored,
                    profile=profile_of(report, position) or NO_PROFILE,
                    agent_name=report.agent_of(position),
                )

    def released(self, number: int, tasks: Sequence[int]) -> None:
        """The owner had these outcomes."""
        if session := self._state.sessions.get(number):
            for task in tasks:
                record = session.find(task)
                if record is not None and record.state != DONE:
                    self._completion.cancel_known((task,), 0.0)  # its outcome was needed no longer
            self._completion.released(session, tasks, 0.0)

    def cancelled(self, number: int, tasks: Sequence[int]) -> None:
        """The owner did not want these tasks."""
        if session := self._state.sessions.get(number):
            kept, listed = session.kept or {}, session.named.tasks if session.named is not None else {}
            for task in tasks:
                kept.pop(task, None)
                if task in listed:
                    self._state.results.forget(listed[task])
            self._completion.cancel_known(tasks, 0.0)

    def inputs(self, number: int, event: Inputs) -> None:
        """The owner of a session had supplied inputs of its tasks."""
        stored = set(event.stored)
        for position, task in enumerate(event.tasks):
            record = self._state.find(task)
            if record is not None and record.group.session.number == number:
                status, payload = event.statuses[position], event.results[position]
                self._completion.supply(record, event.needs[position], status, payload, 0.0, stored=position in stored)

    def assigned(self, agent: bytes, first_run: int, tasks: Sequence[int]) -> None:
        """An agent was given tasks."""
        for run, task in enumerate(tasks, first_run):
            self._assigned[task] = agent, run

    def attempts(self, attempts: Attempts) -> None:
        """Runs of a task had ended without an outcome."""
        record = self._state.find(attempts.task)
        if record is not None and record.state != DONE:
            notes = record.note()
            notes.lost_runs, notes.shared_losses = attempts.lost_runs, attempts.shared_losses
            notes.raised_runs, notes.earlier_runs = attempts.raised_runs, attempts.earlier_runs
            notes.suspect, notes.exclusive = attempts.suspect, attempts.exclusive

    def labelled(self, number: int, task: int, label: str) -> bool:
        """A task of a named session was named; returns whether the session is known."""
        session = self._state.sessions.get(number)
        if session is None or session.named is None or session_of(task) != number:
            return False
        give_name(session.named.labels, label, task)
        return True

    def finish(self, now: float) -> None:
        """All records are replayed: queue the tasks that no agent has, and hold the others for their agents."""
        state = self._state
        for session in state.sessions.values():
            self._forget_unneeded_nodes(session)
        state.restoring = False
        free: list[TaskRecord] = []
        for session in state.sessions.values():
            for record in session.records():
                if record.state == HELD:
                    assigned = self._assigned.get(record.id)
                    if assigned is not None and assigned[0] in self._agents:
                        state.assigned_before[record.id] = assigned
                    elif record.extra is None or not record.extra.missing_inputs:
                        free.append(record)
        self._completion.drop_messages()
        self._take_shares(now)
        self._recovery.restored(set(self._agents), now)
        self._assigned, self._arrived = {}, set()
        state.queue(free, now)

    def _take_shares(self, now: float) -> None:
        """What the tasks that agents have take of the cluster's is taken until these have reported."""
        if (cluster := self._state.cluster) is None:
            return
        for task, (agent, run) in self._state.assigned_before.items():
            record = self._state.find(task)
            assert record is not None
            cluster.take(run, agent, record.group.lane.requirement.part_of(cluster.totals))
        for agent, lives_on_seconds in self._agents.items():
            cluster.lost(agent, (), now + lives_on_seconds)

    def _forget_unneeded_nodes(self, session: SessionRecord) -> None:
        """Consumers may be gone with all rows about them: forget nodes, and stop those, that only they needed.

        While nodes of a graph are still to come, all rows about its submission are there.
        """
        needed = Counter(need for record in session.records() if record.extra for need in record.extra.inputs)
        nodes = [
            (task, extra)
            for task, record in session.tasks.items()
            if (extra := record.extra) is not None and extra.graph is not None and extra.graph.first in self._arrived
        ]
        for task, extra in nodes:
            extra.consumers = min(extra.consumers, needed[task])
        for task, extra in sorted(nodes, key=itemgetter(0), reverse=True):
            if extra.consumers <= 0 and not extra.owner_waits:
                self._completion.cancel_known((task,), 0.0)
        for graph in [graph for graph in session.graphs.values() if graph.first in self._arrived]:
            graph.has_arrived()
            if not graph.open:
                del session.graphs[graph.first]
