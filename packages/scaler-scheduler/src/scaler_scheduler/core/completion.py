"""Completion: from a run's end to whoever waits for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from scaler_protocol.errors import ScalerError, WorkerDiedError, describe, restore
from scaler_protocol.ids import session_of
from scaler_protocol.messages import Done, Ended, Release, Status, Submit
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE, profile_at
from scaler_protocol.storage import DeleteObjects
from scaler_scheduler.core.dependencies import Dependencies
from scaler_scheduler.core.records import (
    ASSIGNED,
    DONE,
    GONE,
    HELD,
    WAITING,
    AgentRecord,
    Outcome,
    OutcomeBatch,
    SessionRecord,
    TaskRecord,
)
from scaler_scheduler.core.recovery import Recovery
from scaler_scheduler.core.reports import plain_owner, profile_of, take_runs
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.suspects import NOBODY, blame

RELEASE_SECONDS = 0.05
_SAMPLES = 3
"""Durations read per batch; the rest passes through unread."""


class Completion:
    """Takes what agents report, decides what it means, and tells the owners."""

    def __init__(self, state: SchedulerState, recovery: Recovery) -> None:
        self._state = state
        self._recovery = recovery
        self.dependencies = Dependencies(state, self._release, self.end_children)
        self._batches: dict[tuple[bytes, str], OutcomeBatch] = {}
        self._release_at: float | None = None

    def done(self, agent: AgentRecord, report: Done, now: float) -> None:
        """An agent reports ended runs: passed on as they are where all is well, one by one otherwise.

        Raises ProtocolError, changing nothing, for a run that is another task's.
        """
        records = take_runs(agent, report)
        for position in report.stored:
            self._state.locality.add_location(report.results[position], agent.host)
        self._state.with_room[agent] = None
        agent.window = min(agent.window + len(records), agent.workers * agent.queue_size)
        self._sample(records, report)
        owner = plain_owner(records, report)
        if owner is not None:
            for record in records:
                record.state = DONE  # type: ignore[union-attr]
                record.call = b""  # type: ignore[union-attr]
            self._state.send(owner.peer, report)
            event_log = self._state.event_log
            event_log.ended[Status.VALUE] += len(records)
            if event_log.listening:
                event_log.done(agent, report.tasks, report.statuses, report.profiles)
            return
        stored = set(report.stored)
        for position, record in enumerate(records):
            extra = record.extra if record is not None else None
            if extra is not None and extra.intermediate and record.state == ASSIGNED and not report.statuses[position]:  # type: ignore[union-attr]
                self._intermediate_value(agent, record, report, position, position in stored, now)  # type: ignore[arg-type]
            else:
                self._one(agent, report, position, record, position in stored, now)

    def _intermediate_value(
        self, agent: AgentRecord, record: TaskRecord, report: Done, position: int, stored: bool, now: float
    ) -> None:
        """What most nodes of graphs come to."""
        record.state, record.call = DONE, b""
        event_log, outcome = self._state.event_log, (Status.VALUE, report.results[position], stored)
        self._state.count_ended(record, Status.VALUE)
        if event_log.listening:
            event_log.done(agent, (record.id,), (Status.VALUE,), profile_of(report, position))
        if record.extra is not None and record.extra.children:
            self.end_children(record, now)
        self.dependencies.ended(record, outcome, now)
        session = record.group.session
        if session.watched:
            self._state.ended_intermediates.setdefault(session, []).append(record.id)
            if self._release_at is None:
                self._release_at = now + RELEASE_SECONDS

    def _sample(self, records: Sequence[TaskRecord | None], report: Done) -> None:
        step = max(1, len(records) // _SAMPLES)
        for position in range(0, len(records), step):
            record = records[position]
            if record is not None and report.statuses[position] <= Status.RAISED:
                profile = profile_at(report.profiles, position)
                record.group.function.measured(profile.duration_us / 1e6)

    def _one(
        self, agent: AgentRecord, report: Done, position: int, record: TaskRecord | None, stored: bool, now: float
    ) -> None:
        status, task = report.statuses[position], report.tasks[position]
        if status == Status.LOST and self._state.event_log.listening:
            self._state.event_log.add_text(
                logging.WARNING, f"a run was lost: {restore(report.results[position])}", task
            )
        if record is None:
            run = report.runs[position]
            if self._recovery.keeps(agent, task, run, status):
                return
            # A run that was given up for lost: what user code made of it still counts, if nobody was faster.
            record = self._state.find(task)
            asked = record is not None and record.is_call_missing  # after a restart: there is no current run
            counts = status <= (Status.FAILED if asked else Status.RAISED)
            if (
                record is None
                or record.state in (DONE, GONE)
                or not (counts and self._recovery.was_given(agent, record, run))
            ):
                self._drop(agent, report, position, stored, now)
                return
            self.take_back(record)
        elif record.state == GONE:
            self._drop(agent, report, position, stored, now)
            self.end_children(record, now)
            return
        elif self._runs_again(record, status, now):
            self._drop(agent, report, position, stored, now)
            return
        record.agent = agent
        payload = report.results[position]
        if status == Status.LOST:
            status, payload = Status.FAILED, self._given_up(record, payload)
        profile = profile_of(report, position)
        self.settle(record, status, payload, now, stored=stored, profile=profile, worker=report.worker)

    def _drop(self, agent: AgentRecord, report: Done, position: int, stored: bool, now: float) -> None:
        """Nobody takes this outcome: its agent may forget it, and its session is told of an object to be freed."""
        task = report.tasks[position]
        self._release(agent, task, now)
        session = self._state.sessions.get(session_of(task)) if stored else None
        if session is not None:
            unwanted = report.results[position][:OBJECT_ID_BYTES]
            self._state.send(session.peer, DeleteObjects((unwanted,), session.number))

    def take_back(self, record: TaskRecord) -> None:
        """The run that is under way, or waits, is not needed any more."""
        if record.state == WAITING:
            self._state.waiting.discard(record)
        elif record.state == ASSIGNED and record.agent is not None:
            self._state.withdrawn.setdefault(record.agent, []).append(record.run)
            stand_in = TaskRecord(record.id, record.group, b"")
            stand_in.state, stand_in.agent, stand_in.run, stand_in.cost = GONE, record.agent, record.run, record.cost
            record.agent.runs[record.run] = stand_in

    def _runs_again(self, record: TaskRecord, status: int, now: float) -> bool:
        """Whether the task is repeated after a run that ended so."""
        if status == Status.LOST:
            extra = record.more()
            extra.lost_runs += 1
            self._state.event_log.lost_runs += 1
            again = extra.lost_runs < self._state.config.lost_run_limit
        elif status == Status.RAISED:
            extra = record.more() if record.group.group.retries else record.extra  # type: ignore[assignment]
            again = extra is not None and extra.raised_runs < record.group.group.retries
            if again:
                extra.raised_runs += 1
        else:
            again = status == Status.CANCELLED  # the agent withdrew a run that is still wanted: it was shutting down
        if again:
            self.end_children(record, now)
            if record.state == ASSIGNED:
                self._state.queue([record], now, first=True)
        return again

    def _given_up(self, record: TaskRecord, payload: bytes) -> bytes:
        error = restore(payload)
        runs = record.extra.lost_runs if record.extra else 1
        return describe(WorkerDiedError(f"{error} ({runs} runs lost; that is the limit)", **error.details, runs=runs))

    def settle(
        self,
        record: TaskRecord,
        status: int,
        payload: bytes,
        now: float,
        *,
        stored: bool = False,
        profile: bytes = NO_PROFILE,
        worker: str = "",
    ) -> None:
        """The task has ended so: tell its owner and those that depend on it. Its own children die."""
        outcome = (status, payload, stored)
        self._end(record, outcome, now, profile, worker)
        self._fail_dependents(self.dependencies.ended(record, outcome, now), outcome, worker, now)

    def _fail_dependents(self, failed: list[TaskRecord], outcome: Outcome, worker: str, now: float) -> None:
        """These end as what they need has ended, and so on. Their owner is told of those that it asked for."""
        while failed:
            record = failed.pop()
            if record.state == ASSIGNED and record.extra is not None and record.extra.missing_inputs:
                self._state.withdrawn.setdefault(record.agent, []).append(record.run)  # type: ignore[arg-type]
                self._state.leave_agent(record)
                record.state = HELD
            if record.state == HELD:
                self._end(record, outcome, now, NO_PROFILE, worker, shared=True)
                failed += self.dependencies.ended(record, outcome, now)

    def _end(
        self, record: TaskRecord, outcome: Outcome, now: float, profile: bytes, worker: str, *, shared: bool = False
    ) -> None:
        record.state, record.call = DONE, b""
        event_log = self._state.event_log
        self._state.count_ended(record, outcome[0])
        if event_log.listening:
            event_log.done(record.agent, (record.id,), (outcome[0],), profile)
            if not shared:
                event_log.add_error(record.id, *outcome)
        extra = record.extra
        if extra is None or not extra.intermediate or (outcome[0] != Status.VALUE and not shared):
            owner = record.group.session.peer
            batch = self._batches.get((owner, worker))
            if batch is None:
                batch = self._batches[(owner, worker)] = OutcomeBatch()
            batch.add(record.id, outcome, profile)
        if extra is not None:
            extra.missing_inputs = 0
            self.end_children(record, now)

    def fail(self, record: TaskRecord, error: ScalerError, now: float) -> None:
        """A task that is not on an agent ends with an error of ours."""
        if record.state == WAITING:
            self._state.waiting.discard(record)
        self.settle(record, Status.FAILED, describe(error), now)

    def fail_runs(self, agent: AgentRecord, runs: Iterable[int], error: ScalerError, now: float) -> None:
        """These runs did not reach their agent, and would not if they were tried again."""
        for run in runs:
            record = agent.runs.get(run)
            if record is not None:
                self._state.leave_agent(record)
                if record.state == ASSIGNED:
                    record.state = HELD
                    self.fail(record, error, now)

    def supply(
        self, dependent: TaskRecord, need: int, status: int, payload: bytes, now: float, *, stored: bool = False
    ) -> None:
        """A task gets one of its inputs, or shares the fate of a task that gave none."""
        extra = dependent.extra
        if dependent.state != HELD or extra is None or extra.inputs.get(need, ()) is not None:
            return
        if status == Status.VALUE:
            self.dependencies.give(dependent, need, payload, stored=stored)
        else:
            self._fail_dependents([dependent], (status, payload, stored), "", now)

    def enter(self, session: SessionRecord, event: Submit, records: Sequence[TaskRecord], now: float) -> None:
        """New tasks depend on others."""
        for record, outcome in self.dependencies.enter(session, event, records):
            self._fail_dependents([record], outcome, "", now)

    def agent_lost(self, agent: AgentRecord, reason: str, now: float, *, charged: bool = True) -> None:
        """An agent is gone: its tasks run elsewhere. Whoever may have ended it is charged, or suspected."""
        blamed = blame(agent) if charged else NOBODY
        records, agent.runs = list(agent.runs.values()), {}
        agent.blocked.clear()
        again = []
        for record in records:
            if record.state != ASSIGNED:
                continue
            self.end_children(record, now)
            if record.state != ASSIGNED:  # who sent it says that it is a child of its own
                continue
            extra = record.more()
            extra.given_up.append((record.run, agent.peer))
            self._state.event_log.lost_runs += record.run in blamed.running
            if record.run in blamed.charged:
                extra.lost_runs += 1
                extra.charged, extra.suspect = record.run, True
            elif record.run in blamed.suspected:
                extra.shared_losses += record.run in blamed.running
                extra.suspect = True
            if extra.lost_runs < self._state.config.lost_run_limit:
                again.append(record)
                continue
            record.state = HELD
            error = WorkerDiedError(
                f"the task's host was lost {extra.lost_runs} times, the last time {agent.host} ({reason})",
                host=agent.host,
                runs=extra.lost_runs,
            )
            self.fail(record, error, now)
        self._state.queue(again, now, first=True)

    def cancel_known(self, tasks: Iterable[int], now: float) -> None:
        """Their owner does not want these, however they stand."""
        sessions = set()
        for task in tasks:
            record = self._state.find(task)
            if record is not None:
                sessions.add(session_of(task))
                if record.state == DONE:
                    self.release(record, now)
                else:
                    self.cancel(record, now)
        self._state.forget_nested(sessions)

    def cancel(self, record: TaskRecord, now: float) -> None:
        """The owner does not want the task: it is forgotten, tasks that depend on it and its children are cancelled."""
        self._state.drop(record)
        self.end_children(record, now)
        if record.extra is not None:
            self._fail_dependents(record.extra.dependents, (Status.CANCELLED, b"", False), "", now)
            self.dependencies.release_inputs(record, now)

    def end_children(self, parent: TaskRecord, now: float) -> None:
        """A run is over: what it submitted and has not ended is cancelled, and nothing of it needs to be kept."""
        if parent.extra is None or not parent.extra.children:
            return
        children, parent.extra.children = parent.extra.children, []
        for task in children:
            child = self._state.find(task)
            if child is None:
                continue
            if child.state == DONE:
                self.release(child, now)
            else:
                self._state.send(child.group.session.peer, Done((child.id,), (Status.CANCELLED,), Payloads((b"",))))
                self.cancel(child, now)
        self._state.forget_nested(set(map(session_of, children)))

    def release(self, record: TaskRecord, now: float) -> None:
        """The owner has the outcome: forget the task here and at its agent."""
        self.dependencies.forget(record, now)

    def released(self, session: SessionRecord, tasks: Sequence[int], now: float) -> None:
        """The owner has these outcomes."""
        pop = session.tasks.pop
        for task in tasks:
            record = pop(task, None)
            if record is None:
                continue
            if record.state != DONE or self.dependencies.keep_for_consumers(record):
                session.tasks[task] = record  # it can not have what has not ended, or others take it
            elif record.agent is not None:
                record.agent.released.append(task)
        self._state.forget_nested((session.number,))
        if self._release_at is None:
            self._release_at = now + RELEASE_SECONDS

    def _release(self, agent: AgentRecord, task: int, now: float) -> None:
        agent.released.append(task)
        if self._release_at is None:
            self._release_at = now + RELEASE_SECONDS

    def due(self) -> float | None:
        """When releases must be passed on."""
        return self._release_at

    def post(self, now: float) -> None:
        """Say what has piled up."""
        for session, objects in self._state.unused_objects.items():
            self._state.send(session.peer, DeleteObjects(objects, session.number))
        self._state.unused_objects.clear()
        if self._batches:
            batches, self._batches = self._batches, {}
            for (peer, worker), batch in batches.items():
                self._state.send(
                    peer,
                    Done(
                        batch.tasks,
                        batch.statuses,
                        Payloads(batch.results),
                        stored=batch.stored,
                        profiles=b"".join(batch.profiles),
                        worker=worker,
                    ),
                )
        if self._release_at is not None and now >= self._release_at:
            self._release_at = None
            for session, ended in self._state.ended_intermediates.items():
                self._state.send(session.peer, Ended(ended))
            self._state.ended_intermediates.clear()
            for agent in self._state.agents.values():
                if agent.released:
                    tasks, agent.released = agent.released, []
                    self._state.send(agent.peer, Release(tasks))
