"""Dependencies: which tasks wait for which results, and how long a result is kept for its consumers.

Theory. A task with results of others as inputs is HELD until all have arrived (or ASSIGNED together with the task it
waits for: see `scaler_scheduler.core.chains`); they stay in its `inputs` until it has ended.
A node of a graph states at submission how many tasks will use its result (its `consumers`), whether they have been
submitted yet or not: its outcome is kept for them, and is forgotten when no consumer is left and its owner has
released it. An *intermediate* node is one that its client did not request: its value goes to its consumers only. When
a consumer ends without having run, nodes that only it needed are not wanted any more and are stopped.

Invariants (`check`): `missing_inputs` counts the inputs that have not arrived; an intermediate node that has ended has
consumers left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaler_protocol.messages import NeedInputs, Status, Submit
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_scheduler.core.records import (
    ASSIGNED,
    DONE,
    GONE,
    HELD,
    WAITING,
    AgentRecord,
    Outcome,
    SessionRecord,
    TaskExtra,
    TaskRecord,
)
from scaler_scheduler.core.state import SchedulerState


class Dependencies:
    """Does not deal with owners. `release` tells an agent to drop an outcome; `end_children` ends nested tasks."""

    def __init__(
        self,
        state: SchedulerState,
        release: Callable[[AgentRecord, int, float], None],
        end_children: Callable[[TaskRecord, float], None],
    ) -> None:
        self._state = state
        self._release = release
        self._end_children = end_children
        self._ready: list[TaskRecord] = []

    def enter(
        self, session: SessionRecord, event: Submit, records: Sequence[TaskRecord]
    ) -> list[tuple[TaskRecord, Outcome]]:
        """Record the dependencies of the tasks of a message, and how many consumers each will have.

        The client is asked for outcomes that are not kept here. Returns the tasks that cannot run because a task they
        need ended without a value, each with that outcome.
        """
        _note_consumers(event, records)
        failed: list[tuple[TaskRecord, Outcome]] = []
        lacking: list[tuple[int, int]] = []
        for position, need in zip(event.dependents, event.needs, strict=True):
            record = records[position]
            if record.state != GONE and need not in record.more().inputs:
                self._depend(session, record, need, failed, lacking)
        for position in event.dependents:
            record = records[position]
            if record.state == HELD and record.extra is not None and not record.extra.missing_inputs:
                record.state = WAITING
        if self._state.event_log.listening:
            self._state.event_log.entered(HELD, [record for record in records if record.state == HELD])
        if lacking:
            self._state.send(session.peer, NeedInputs(*zip(*lacking, strict=True)))
        return failed

    @staticmethod
    def _depend(
        session: SessionRecord,
        record: TaskRecord,
        need: int,
        failed: list[tuple[TaskRecord, Outcome]],
        lacking: list[tuple[int, int]],
    ) -> None:
        record.state = HELD
        extra, source = record.more(), session.tasks.get(need)
        if source is not None and source.state != DONE:
            source.more().dependents.append(record)
            need = source.id  # share one integer object
        elif source is not None and source.extra is not None and source.extra.outcome is not None:
            status, payload, stored = source.extra.outcome
            if status == Status.VALUE:
                extra.inputs[need] = (payload, stored)
                return
            failed.append((record, source.extra.outcome))
        else:
            lacking.append((record.id, need))
        extra.inputs[need] = None
        extra.missing_inputs += 1

    @staticmethod
    def lacking(session: SessionRecord) -> list[tuple[TaskRecord, int]]:
        """Tasks of a session that wait for inputs which no unfinished task makes, each with the id of that input."""
        return [
            (record, need)
            for record in session.tasks.values()
            if record.extra is not None and record.extra.missing_inputs
            for need, given in record.extra.inputs.items()
            if given is None and _is_over(session.tasks.get(need))
        ]

    def give(self, record: TaskRecord, need: int, payload: bytes, *, stored: bool) -> None:
        """Give a task one of its inputs."""
        extra = record.more()
        extra.inputs[need] = (payload, stored)
        extra.missing_inputs -= 1
        self._state.budgets.keep(record.group.session, payload)
        if not extra.missing_inputs:
            self._ready.append(record)

    def ended(self, record: TaskRecord, outcome: Outcome, now: float) -> list[TaskRecord]:
        """A task has ended: pass its value to its dependents, or return them if they cannot run for lack of one."""
        extra = record.extra
        if extra is None:
            return []
        self._keep(record, extra, outcome, now)
        dependents, extra.dependents, extra.missing_inputs = extra.dependents, [], 0
        if extra.inputs:
            self.release_inputs(record, now)
        if outcome[0] != Status.VALUE:
            return dependents
        if dependents:
            number, given, ready = record.id, outcome[1:], self._ready
            for dependent in dependents:
                more = dependent.extra
                # The client may have supplied it already (NeedInputs).
                if dependent.state in (HELD, ASSIGNED) and more is not None and more.inputs.get(number, given) is None:
                    more.inputs[number] = given
                    more.missing_inputs -= 1
                    if not more.missing_inputs and dependent.state == HELD:
                        ready.append(dependent)
        return []

    def _keep(self, record: TaskRecord, extra: TaskExtra, outcome: Outcome, now: float) -> None:
        """Keep an outcome as long as other tasks need it."""
        if extra.consumers > 0:
            extra.outcome = outcome
        elif extra.intermediate:
            self.forget(record, now)
        if extra.consumers > 0 or extra.dependents:
            self._state.budgets.keep(record.group.session, outcome[1])

    def release_inputs(self, record: TaskRecord, now: float) -> None:
        """A task needs no inputs any more: forget, or stop, nodes that have no other consumer."""
        idle = [record]
        while idle:
            consumer = idle.pop()
            if consumer.extra is None or not consumer.extra.inputs:
                continue
            inputs, consumer.extra.inputs = consumer.extra.inputs, {}
            tasks = consumer.group.session.tasks
            for need in inputs:
                source = tasks.get(need)
                if source is None or source.extra is None:
                    continue
                extra = source.extra
                extra.consumers -= 1
                if extra.consumers > 0:
                    continue
                if source.state == DONE and not extra.owner_waits:
                    self.forget(source, now)
                elif source.state != DONE and extra.intermediate:
                    self._state.drop(source)
                    self._end_children(source, now)
                    idle.append(source)
                else:
                    extra.outcome = None

    def forget(self, record: TaskRecord, now: float) -> None:
        """The outcome is not needed any more, here or at its agent. The object of an intermediate node is deleted."""
        session, extra = record.group.session, record.extra
        session.tasks.pop(record.id, None)
        if record.agent is not None:
            self._release(record.agent, record.id, now)
        if extra is not None and extra.intermediate and extra.outcome is not None:
            status, payload, stored = extra.outcome
            if stored and status == Status.VALUE:
                self._state.unused_objects.setdefault(session, []).append(payload[:OBJECT_ID_BYTES])

    def keep_for_consumers(self, record: TaskRecord) -> bool:
        """The owner releases an outcome: returns whether consumers still need it."""
        extra = record.extra
        if extra is None or extra.consumers <= 0:
            return False
        extra.owner_waits = False
        return True

    def drop_ready(self) -> None:
        """Forget which tasks have got all inputs: they are queued by another."""
        self._ready.clear()

    def queue_ready(self, now: float) -> None:
        """Queue tasks whose inputs have all arrived before other tasks, so that results are used up first."""
        if self._ready:
            elsewhere = self._state.assigned_before
            ready, self._ready = [task for task in self._ready if task.state == HELD and task.id not in elsewhere], []
            self._state.queue(ready, now, soon=True)

    def check(self, session: SessionRecord) -> None:
        """Assert the invariants; for tests."""
        for record in session.tasks.values():
            if (extra := record.extra) is not None:
                assert extra.missing_inputs == list(extra.inputs.values()).count(None), f"{record.id:x} {extra}"
                assert not extra.missing_inputs or record.state in (HELD, ASSIGNED), f"{record.id:x} {extra}"
                if record.state == DONE:
                    assert not extra.inputs and not extra.dependents, f"{record.id:x} {extra}"
                    assert not extra.intermediate or extra.consumers > 0, f"{record.id:x} is kept without consumers"


def _is_over(source: TaskRecord | None) -> bool:
    return source is None or source.state == DONE


def _note_consumers(event: Submit, records: Sequence[TaskRecord]) -> None:
    for record, consumers in zip(records, event.consumers, strict=False):
        if consumers:
            record.more().consumers = consumers
    for position in event.intermediate:
        extra = records[position].more()
        extra.intermediate, extra.owner_waits = True, False
