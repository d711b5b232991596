"""Completion: from the end of a run to the owner of its task and the tasks that depend on it."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import cast

from scaler_protocol.errors import ScalerError, WorkerDiedError, describe, restore
from scaler_protocol.ids import session_of
from scaler_protocol.messages import Done, NeedInputs, Status, Submit
from scaler_protocol.monitoring import EventKind
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_protocol.payloads import Payloads
from scaler_protocol.plurals import counted
from scaler_protocol.profiles import NO_PROFILE, Profile, profile_at
from scaler_scheduler.core.agent_releases import AgentReleases
from scaler_scheduler.core.dependencies import Dependencies
from scaler_scheduler.core.lost_runs import LostRuns, too_often
from scaler_scheduler.core.named_session_record import NamedSession
from scaler_scheduler.core.outcome_batch import JOINED_BYTES, JOINED_TASKS, OutcomeBatch
from scaler_scheduler.core.pinned import is_pinned
from scaler_scheduler.core.records import (
    AgentRecord,
    EndedTasks,
    SessionRecord,
    TaskBlock,
    TaskRecord,
    is_intermediate,
)
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.reports import plain_owner, profile_of, take_runs
from scaler_scheduler.core.speculation import Speculation
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.suspects import NOBODY, blame
from scaler_scheduler.core.task_states import ASSIGNED, DONE, GONE, HELD, SECOND, WAITING, KeptOutcome, Outcome

_SAMPLES = 3
"""Durations read per report."""


class Completion:
    """Handles the reports of agents, decides whether tasks run again, and sends outcomes to their owners."""

    def __init__(self, state: SchedulerState, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self._releases = AgentReleases(state)
        self.dependencies = Dependencies(state, self._releases.add, self.end_children)
        self.speculation = Speculation(state, self.end_children)
        self._lost_runs = LostRuns(state)
        self._batches: dict[bytes, OutcomeBatch] = {}
        """By owner."""
        self._unclaimed: dict[SessionRecord, list[int]] = {}
        """Ended tasks of named sessions that no client waits for."""

    @property
    def is_recovering(self) -> bool:
        """Whether agents of an earlier incarnation of the scheduler may still come back."""
        return self._recovery.is_open

    def done(self, agent: AgentRecord, report: Done, now: float) -> None:
        """An agent reports ended runs: forward the report unchanged if possible, else handle each run.

        Raises ProtocolError, without any change, for a run that belongs to another task.
        """
        records, long_results = take_runs(agent, report), self._state.long_results
        long_results.ended(report)
        for position in report.stored:
            self._state.locality.add_location(report.results[position], agent.host)
            if (record := records[position]) is not None:
                long_results.measured(record.group.function, report.results[position])
        self._state.with_room[agent] = None
        agent.window = min(agent.window + len(records), agent.workers * agent.queue_size)
        agent.progressed = True
        self._sample_durations(agent, records, report, now)
        if self.speculation.groups:
            self.speculation.measured(records, report, now)
        owner = plain_owner(records, report)
        if owner is not None and owner.named is None:
            self._forward(agent, cast(list[TaskRecord], records), report, owner)
            return
        self._runs_ended(agent, report, records, now)

    def _runs_ended(self, agent: AgentRecord, report: Done, records: Sequence[TaskRecord | None], now: float) -> None:
        """Handle each run of a report. Intermediate nodes usually end here, with values: no message goes to owners."""
        stored, values, nodes = set(report.stored), list[int](), list[TaskRecord]()
        for position, (record, status, result) in enumerate(
            zip(records, report.statuses, report.results.parts, strict=True)
        ):
            extra = record.extra if record is not None and record.state == ASSIGNED else None
            if record is None or extra is None or not extra.intermediate or status:
                self._run_ended(agent, report, position, record, position in stored, now)
                continue
            values.append(position)
            nodes.append(record)
            record.state, record.calls, record.run = DONE, b"", 0
            outcome = status, result, position in stored
            if self._state.recorder is not None:
                self._state.recorder.ended(record, outcome, profile_of(report, position), report.agent_of(position))
            if extra.notes is not None:
                self.end_children(record, now)
            self.dependencies.pass_on(record, extra, outcome, now)
        if values:
            self._count_values(agent, nodes, report, values, now)
            self.dependencies.release_inputs(nodes, now)

    def _forward(self, agent: AgentRecord, records: Sequence[TaskRecord], report: Done, owner: SessionRecord) -> None:
        """All runs of the report ended with a value for the same owner: send it the report, perhaps with others."""
        ended = EndedTasks(agent, records[0].group)
        for record in records:
            record.state = DONE
            if record.group is not ended.group:
                ended = EndedTasks(agent, record.group)
            owner.tasks[record.id] = ended
        if owner.attached:
            lengths = report.results.lengths
            self._state.long_results.sent(owner, lengths)
            if len(lengths) < JOINED_TASKS and sum(lengths) < JOINED_BYTES:
                self._batch_of(owner).add_report(report)
            else:
                self._state.send(owner.peer, report)
        if owner.kept is not None:
            self._keep(owner.kept, report)
        if report.stored and self._state.config.replicas > 1:
            self._state.copy_results(report.results[position] for position in report.stored)
        if self._state.recorder is not None:
            self._state.recorder.forwarded(owner, report)
        event_log = self._state.event_log
        event_log.ended[Status.VALUE] += len(records)
        if event_log.measuring:
            event_log.done(agent, report.tasks, report.statuses, report.profiles)

    @staticmethod
    def _keep(kept: dict[int, KeptOutcome], report: Done) -> None:
        stored = set(report.stored)
        for position, (task, status, payload) in enumerate(
            zip(report.tasks, report.statuses, report.results, strict=True)
        ):
            kept[task] = (status, payload, position in stored), profile_of(report, position), report.agent_of(position)

    def _count_values(
        self, agent: AgentRecord, nodes: Sequence[TaskRecord], report: Done, values: Sequence[int], now: float
    ) -> None:
        """Count and tell monitors that the intermediate nodes at these positions of a report have values."""
        event_log = self._state.event_log
        sessions = self._state.count_values(nodes)
        if event_log.measuring:
            profiles = b"".join([profile_of(report, position) for position in values])
            event_log.done(agent, [node.id for node in nodes], (Status.VALUE,) * len(nodes), profiles)
        if any(session.watched for session in sessions):
            self._releases.add_ended(nodes, now)

    def _sample_durations(
        self, agent: AgentRecord, records: Sequence[TaskRecord | None], report: Done, now: float
    ) -> None:
        step = max(1, math.ceil(len(records) / _SAMPLES))
        for position in range(0, len(records), step):
            record = records[position]
            if record is not None and report.statuses[position] <= Status.RAISED:
                profile = profile_at(report.profiles, position)
                if not position:
                    failed = report.statuses[position] == Status.RAISED
                    runs = self._state.event_log.history.runs
                    runs.note(record.group.function.name, agent.host, agent.number, profile, failed)
                seconds = self._worker_seconds(record, report.runs[position], profile, now)
                record.group.function.measured(seconds, min(step, len(records) - position))
                # What was counted at its dispatch was an estimate. The sample stands for `step` runs.
                record.group.lane.session.account(step * (seconds - record.cost))
        if max(report.statuses, default=0) > Status.RAISED:
            self._account_stopped(records, report, now)

    def _account_stopped(self, records: Sequence[TaskRecord | None], report: Done, now: float) -> None:
        """Runs that were stopped, or lost with their worker, have occupied it, too; it may not be known how long."""
        for position, record in enumerate(records):
            if record is not None and report.statuses[position] > Status.RAISED:
                profile = profile_at(report.profiles, position)
                if seconds := self._worker_seconds(record, report.runs[position], profile, now):
                    if seconds > record.cost:  # it would have taken longer still; a shorter time says nothing
                        record.group.function.lasted(seconds)
                    record.group.lane.session.account(seconds - record.cost)

    def _worker_seconds(self, record: TaskRecord, run: int, profile: Profile, now: float) -> float:
        """The seconds for which a run occupied a worker, which count for the share of its session.

        A run does not occupy one while it waits for its children. That time is unknown, so its CPU time is taken
        instead. An agent may say anything: no run took longer than since its dispatch.
        """
        has_children = record.notes is not None and bool(record.notes.children)
        seconds = (profile.cpu_us if has_children else profile.duration_us) / 1e6
        return min(self._state.dispatch_times.longest(run, now), seconds)

    def _run_ended(
        self, agent: AgentRecord, report: Done, position: int, record: TaskRecord | None, stored: bool, now: float
    ) -> None:
        """Handle one run of a report; `record` is its task, or None if the agent is not known to have the run."""
        status, task = report.statuses[position], report.tasks[position]
        if status == Status.LOST and record is not None:
            text = f"a run was lost: {restore(report.results[position])}"
            self._state.event_log.add_text(logging.WARNING, EventKind.RUN, text, task)
        if record is not None and record.state == SECOND:
            record = self._second_ended(record, status, now)
        if record is None:
            run = report.runs[position]
            if self._recovery.keeps(agent, task, run, status):
                return
            record = self._claim_late(agent, task, run, status, now)
            if record is None:
                self._drop(agent, report, position, stored, now)
                return
        elif record.state == GONE:
            self._drop(agent, report, position, stored, now)
            self.end_children(record, now)
            return
        elif self._runs_again(record, report, position, now):
            self._drop(agent, report, position, stored, now)
            return
        record.agent = agent
        payload = report.results[position]
        if status == Status.LOST:
            status, payload = Status.FAILED, too_often(record, payload)
        profile = profile_of(report, position)
        self.end(record, status, payload, now, stored=stored, profile=profile, agent_name=report.agent_of(position))

    def _second_ended(self, second: TaskRecord, status: int, now: float) -> TaskRecord:
        """Returns the task if this is its outcome; otherwise the second run, which is not wanted any more."""
        if status > Status.RAISED:
            self.speculation.over(second, now)
            return second
        task = self.speculation.won(second, now)
        self.take_back(task)
        return task

    def _claim_late(self, agent: AgentRecord, task: int, run: int, status: int, now: float) -> TaskRecord | None:
        """The task of a run that was given up as lost, if this outcome ends it: it has no other outcome yet."""
        record = self._state.find(task)
        if record is None or record.state in (DONE, GONE):
            return None
        # After a restart there is no current run, so its FAILED counts, too.
        is_current = record.is_call_missing or self._recovery.is_current(agent, record, run)
        last_counted = Status.FAILED if is_current else Status.RAISED
        if status > last_counted or not self._recovery.was_given(agent, record, run):
            return None
        if status == Status.RAISED and self._lost_runs.is_retried(record, run):
            self._retry_late(record, now, is_current=is_current)
            return None
        self._state.assigned_before.pop(task, None)
        self.take_back(record)
        return record

    def _retry_late(self, record: TaskRecord, now: float, *, is_current: bool) -> None:
        """A run that was given up has raised, and the task has retries left: queue it, unless it has another run."""
        awaited = self._state.assigned_before.pop(record.id, None) is not None or self._recovery.awaits(record)
        if is_current and record.state == ASSIGNED:
            self._state.take_over(record)
            self._state.queue([record], now, first=True)
        elif awaited and record.state == HELD:
            self._state.queue([record], now, first=True)
        if self._state.recorder is not None:
            self._state.recorder.attempts(record)

    def _drop(self, agent: AgentRecord, report: Done, position: int, stored: bool, now: float) -> None:
        """The outcome is not needed: release it if the agent keeps it, and have its session delete its object."""
        task = report.tasks[position]
        if report.statuses[position] <= Status.FAILED:
            self._releases.add(agent, task, now)
        session = self._state.sessions.get(session_of(task)) if stored else None
        if session is not None:
            self._state.delete_objects(session, (report.results[position][:OBJECT_ID_BYTES],))

    def take_back(self, record: TaskRecord) -> None:
        """The task has an outcome: withdraw its current run, or take it out of the queue."""
        if record.state == WAITING:
            self._state.waiting.discard(record)
        elif record.state == ASSIGNED:
            self._state.take_over(record)

    def _runs_again(self, record: TaskRecord, report: Done, position: int, now: float) -> bool:
        """Count a run that ended so; returns whether the task runs again, and queues it."""
        status = report.statuses[position]
        if status == Status.LOST:
            again = self._lost_runs.is_repeated(record, report.results[position])
        elif status == Status.RAISED:
            retries = record.group.group.retries
            again = bool(retries) and record.note().raised_runs < retries
            if again:
                record.note().raised_runs += 1
                record.note().earlier_runs += 1
        else:
            again = status == Status.CANCELLED  # the agent was shutting down, and the task is still wanted
        if again:
            self.end_children(record, now)
            if record.state == ASSIGNED:
                if status == Status.RAISED:
                    self.speculation.stop(record, now)
                if not self.speculation.take_over(record, now):
                    self._state.event_log.again(record, status, profile_of(report, position))
                    self._state.queue([record], now, first=True)
            if self._state.recorder is not None:
                self._state.recorder.attempts(record)
        return again

    def end(
        self,
        record: TaskRecord,
        status: int,
        payload: bytes,
        now: float,
        *,
        stored: bool = False,
        profile: bytes = NO_PROFILE,
        agent_name: str = "",
    ) -> None:
        """The task has ended: send the outcome to its owner and its dependents, and end its nested tasks."""
        outcome = (status, payload, stored)
        self._mark_ended(record, outcome, now, profile, agent_name)
        self._fail_dependents(record.id, self.dependencies.ended(record, outcome, now), outcome, agent_name, now)

    def _fail_dependents(
        self, cause: int, failed: list[TaskRecord], outcome: Outcome, agent_name: str, now: float
    ) -> None:
        """Tasks that cannot run end with the outcome of the task they need, the cause; so do their dependents."""
        while failed:
            record = failed.pop()
            self._hold(record)
            if record.state == HELD:
                self._state.event_log.lacking(record.id, cause)
                self._mark_ended(record, outcome, now, NO_PROFILE, agent_name, shared=True)
                failed += self.dependencies.ended(record, outcome, now)

    def _hold(self, record: TaskRecord) -> None:
        """The task will not get an input from the preceding run of its chain: take it back from its agent."""
        if record.state == ASSIGNED and record.extra is not None and record.extra.missing_inputs:
            self._state.withdraw(record)
            self._state.leave_agent(record)
            record.state = HELD

    def _mark_ended(
        self, record: TaskRecord, outcome: Outcome, now: float, profile: bytes, agent_name: str, *, shared: bool = False
    ) -> None:
        if record.state == HELD:
            self._state.leave_apart(record)
        record.state, record.calls, record.run = DONE, b"", 0
        event_log = self._state.event_log
        self._state.count_ended(record, outcome[0])
        if event_log.measuring:
            event_log.done(record.agent, (record.id,), (outcome[0],), profile)
        if outcome[0] in (Status.RAISED, Status.FAILED) and not (shared or self._state.restoring):
            event_log.add_failure(record, outcome, profile)
        extra = record.extra
        if extra is None or not extra.intermediate or (outcome[0] != Status.VALUE and not shared):
            session, ended = record.group.session, (outcome, profile, agent_name)
            if outcome[2] and self._state.config.replicas > 1:
                self._state.copy_results((outcome[1],))
            if session.named is None or self._keep_for(session.named, record, ended, now):
                self.tell(session, record.id, ended)
        if self._state.recorder is not None:
            self._state.recorder.ended(record, outcome, profile, agent_name)
        if record.group.run_times is not None:
            self.speculation.ended(record, now)
        if extra is not None:
            extra.missing_inputs = 0
            self.end_children(record, now)

    def tell(self, session: SessionRecord, task: int, ended: KeptOutcome) -> None:
        """Send an outcome to the owner with this turn, or keep it."""
        outcome, profile, agent_name = ended
        if session.kept is not None:
            session.kept[task] = ended
        if session.attached:
            self._batch_of(session).add(task, outcome, profile, agent_name)
            self._state.long_results.sent(session, (len(outcome[1]),))

    def _batch_of(self, owner: SessionRecord) -> OutcomeBatch:
        """What is sent to the owner with this turn."""
        batch = self._batches.get(owner.peer)
        if batch is None:
            batch = self._batches[owner.peer] = OutcomeBatch()
        return batch

    def attached(self, session: SessionRecord, wanted: Collection[int], now: float) -> None:
        """The process of a session has come back: send it the outcomes that it wants, and drop what it does not want.

        Nodes that it has not asked for stay, for their consumers.
        """
        kept, session.kept = session.kept or {}, None
        for task in wanted:
            if task in kept:
                self.tell(session, task, kept[task])
        unwanted = [
            task for task, record in session.tasks.items() if task not in wanted and not is_intermediate(task, record)
        ]
        if unwanted:
            if self._state.recorder is not None:
                self._state.recorder.cancelled(session, unwanted)
            self.cancel_known(unwanted, now)
        self._ask_for_inputs(self.dependencies.lacking(session))

    def _keep_for(self, named: NamedSession, record: TaskRecord, ended: KeptOutcome, now: float) -> bool:
        """Keep an outcome for a named session; returns whether its client waits for it."""
        task = named.tasks.get(record.id)
        if task is None:
            return True
        self._state.results.keep(task, ended, now)
        if not task.claimed:
            self._unclaimed.setdefault(record.group.session, []).append(record.id)
        return task.claimed

    def fail(self, record: TaskRecord, error: ScalerError, now: float) -> None:
        """A task that is not on an agent ends with an error of the scheduler."""
        if record.state == WAITING:
            self._state.waiting.discard(record)
        self.end(record, Status.FAILED, describe(error), now)

    def fail_runs(self, agent: AgentRecord, runs: Iterable[int], error: ScalerError, now: float) -> None:
        """Runs that could not be sent to their agent, and never can be: fail their tasks."""
        for run in runs:
            record = agent.runs.get(run)
            if record is not None:
                self._state.leave_agent(record)
                if record.state == SECOND:
                    self.speculation.over(record, now)
                elif record.state == ASSIGNED:
                    record.state = HELD
                    self.fail(record, error, now)

    def returned(self, agent: AgentRecord, runs: Iterable[int], now: float) -> list[TaskRecord]:
        """An agent has returned runs; returns the tasks that must be queued again."""
        back: list[TaskRecord] = []
        for run in runs:
            record = agent.runs.get(run)
            if record is None:
                continue
            self._state.leave_agent(record)
            if record.state in (ASSIGNED, SECOND):
                record.group.lane.session.account(-record.cost)
            if record.state == SECOND:
                self.speculation.over(record, now)
            elif record.state == ASSIGNED and not self.speculation.take_over(record, now):
                back.append(record)
        return back

    def supply(
        self, dependent: TaskRecord, need: int, status: int, payload: bytes, now: float, *, stored: bool = False
    ) -> None:
        """The client supplies an input of a task; if the input has no value, the task ends with its outcome."""
        extra, outcome = dependent.extra, (status, payload, stored)
        if dependent.state != HELD or extra is None or extra.inputs.get(need, outcome) is not None:
            return
        if status == Status.VALUE:
            self.dependencies.give(dependent, need, payload, stored=stored)
        else:
            self._fail_dependents(need, [dependent], outcome, "", now)

    def enter(self, session: SessionRecord, event: Submit, records: Mapping[int, TaskRecord], now: float) -> None:
        """Record the dependencies of new tasks, given by position; fail those whose inputs have no value."""
        for need, record, outcome in self.dependencies.enter(session, event, records):
            self._fail_dependents(need, [record], outcome, "", now)

    def agent_lost(
        self, agent: AgentRecord, reason: str, now: float, *, charged: bool, unsent: AbstractSet[int]
    ) -> None:
        """An agent is gone: its tasks run elsewhere. Runs that may have ended it are charged or suspected.

        Those that it cannot have received, `unsent`, have not, and are no attempts.
        """
        blamed = blame(agent, unsent, outcomes_wait=self._state.outcomes_wait) if charged else NOBODY
        on_workers = agent.on_workers(unsent)
        self._state.long_results.over(agent.runs)
        records, agent.runs = list(agent.runs.values()), {}
        agent.blocked.clear()
        again = []
        for record in records:
            if record.state == SECOND:
                self.speculation.over(record, now, lost=True)
            if record.state != ASSIGNED:
                continue
            self.end_children(record, now)
            if record.state != ASSIGNED:  # a faulty peer may have named the task as its own parent
                continue
            notes = record.note()
            notes.give_up(record.run, agent.peer)
            self._lost_runs.count_with_agent(record, blamed, on_workers)
            if self._lost_runs.is_below_limit(record):
                if not self.speculation.take_over(record, now):
                    again.append(record)
                continue
            record.state = HELD
            lost = "its worker" if is_pinned(record) else f"{counted(notes.lost_runs, 'run')}, the last one"
            error = WorkerDiedError(
                f"the task lost {lost} with its host {agent.host} ({reason})",
                host=agent.host,
                runs=notes.lost_runs,
            )
            self.fail(record, error, now)
        self._state.queue(again, now, first=True)

    def cancel_known(self, tasks: Iterable[int], now: float) -> None:
        """The owner does not want these tasks any more, ended or not; it is asked for those that other tasks need."""
        sessions, lacking = set(), list[tuple[TaskRecord, int]]()
        for task in tasks:
            record = self._state.find(task)
            if record is not None:
                sessions.add(session_of(task))
                if record.state == DONE:
                    self.release(record, now)
                else:
                    lacking += [(dependent, task) for dependent in self.abandon(record, now)]
        self._ask_for_inputs(lacking)
        self._state.forget_nested(sessions)

    def abandon(self, record: TaskRecord, now: float) -> list[TaskRecord]:
        """The owner does not want the task: forget it and its nested tasks; returns its dependents."""
        self._state.drop(record)
        if record.group.run_times is not None:
            self.speculation.ended(record, now)
        self.end_children(record, now)
        if record.extra is None:
            return []
        self.dependencies.release_inputs([record], now)
        found = map(record.group.session.find, record.extra.dependents)
        return [dependent for dependent in found if dependent is not None]

    def _ask_for_inputs(self, lacking: list[tuple[TaskRecord, int]]) -> None:
        """Ask the owner for the outcomes of tasks that it cancelled: their futures may have been given values."""
        asked: dict[bytes, list[tuple[int, int]]] = {}
        for dependent, need in lacking:
            self._hold(dependent)
            if dependent.state == HELD:
                asked.setdefault(dependent.group.session.peer, []).append((dependent.id, need))
        for peer, pairs in asked.items():
            self._state.send(peer, NeedInputs(*zip(*pairs, strict=True)))

    def end_children(self, parent: TaskRecord, now: float) -> None:
        """A run is over: cancel the tasks it submitted that have not ended, and release the others."""
        notes = parent.notes
        if notes is None or not notes.children:
            return
        children, notes.children = notes.children, None
        for task in children:
            child = self._state.find(task)
            if child is None:
                continue
            if child.state == DONE:
                self.release(child, now)
            else:
                self._state.send(child.group.session.peer, Done((child.id,), (Status.CANCELLED,), Payloads((b"",))))
                outcome = (Status.CANCELLED, b"", False)
                self._fail_dependents(task, self.abandon(child, now), outcome, "", now)
        self._state.forget_nested(set(map(session_of, children)))

    def release(self, record: TaskRecord, now: float) -> None:
        """The owner has the outcome: forget the task here and at its agent."""
        self.dependencies.forget(record, now)

    def released(self, session: SessionRecord, tasks: Sequence[int], now: float) -> None:
        """The owner has received these outcomes."""
        if session.kept:
            for task in tasks:
                session.kept.pop(task, None)
        pop, agents = session.tasks.pop, self._releases.agents
        for task in tasks:
            record = pop(task, None)
            if record is None:
                continue
            if isinstance(record, TaskBlock) or record.state != DONE or self.dependencies.keep_for_consumers(record):
                session.tasks[task] = record  # not ended, or needed by consumers
            elif record.agent is not None:
                record.agent.released[task] = None
                agents[record.agent] = None
        self._state.forget_nested((session.number,))
        self._releases.added(now)

    def drop_messages(self) -> None:
        """Forget messages and ready tasks: a replay produced them, and they were sent and queued in the past."""
        self.dependencies.drop_ready()
        self._batches.clear()
        self._state.out.clear()

    def due(self) -> float | None:
        """When collected releases must be sent."""
        return self._releases.due()

    def post(self, now: float) -> None:
        """Send collected outcomes, releases and deletions."""
        for session, objects in self._state.unused_objects.items():
            self._state.delete_objects(session, objects)
        self._state.unused_objects.clear()
        unclaimed, self._unclaimed = self._unclaimed, {}
        for session, tasks in unclaimed.items():
            self.released(session, tasks, now)
        if self._batches:
            batches, self._batches = self._batches, {}
            for peer, batch in batches.items():
                for message in batch.messages():
                    self._state.send(peer, message)
        self._releases.post(now)
