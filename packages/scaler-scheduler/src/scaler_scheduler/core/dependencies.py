"""Dependencies: who waits for whose result, and how long a result is kept for those who take it.

Theory. A task that takes results of others is HELD until all have come (or ASSIGNED, together with the one it lacks:
see `scaler_scheduler.core.chains`); they stand in its `inputs` until it has ended.
A node of a graph knows from the start how many tasks will take its result (`takers`), whether they have been submitted
yet or not: its outcome is kept for them, and it is forgotten when none is left and its owner does not hold it either.
An *inner* node is one whose owner never asked: its value goes to those who take it and to nobody else. Where a consumer
ends without having run, what only it needed is not wanted any more, and stops wherever it stands.

Invariants (`check`): a task lacks as many inputs as have not come; an inner node that has ended has takers left.
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
    TaskRecord,
)
from scaler_scheduler.core.state import SchedulerState


class Dependencies:
    """Knows nothing of owners: `release` tells an agent that an outcome need not be kept, `end_children` ends them."""

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
        """Tasks of a message depend on others, and others will depend on them.

        Outcomes that are not kept here are asked for. Returns the tasks that can not run because a need of theirs has
        no value.
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
            need = source.id  # one integer for all who name it
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

    def give(self, record: TaskRecord, need: int, payload: bytes, *, stored: bool) -> None:
        """A task gets one of its inputs."""
        extra = record.more()
        extra.inputs[need] = (payload, stored)
        extra.missing_inputs -= 1
        if not extra.missing_inputs:
            self._ready.append(record)

    def ended(self, record: TaskRecord, outcome: Outcome, now: float) -> list[TaskRecord]:
        """A task has ended: those that take its value get it; returns those that share its fate instead."""
        extra = record.extra
        if extra is None:
            return []
        if extra.consumers > 0:
            extra.outcome = outcome
        elif extra.intermediate:
            self.forget(record, now)
        dependents, extra.dependents, extra.missing_inputs = extra.dependents, [], 0
        if extra.inputs:
            self.release_inputs(record, now)
        if outcome[0] != Status.VALUE:
            return dependents
        if dependents:
            number, given, ready = record.id, outcome[1:], self._ready
            for dependent in dependents:
                more = dependent.extra
                # Whoever was asked for it may have been faster.
                if dependent.state in (HELD, ASSIGNED) and more is not None and more.inputs.get(number, given) is None:
                    more.inputs[number] = given
                    more.missing_inputs -= 1
                    if not more.missing_inputs and dependent.state == HELD:
                        ready.append(dependent)
        return []

    def release_inputs(self, record: TaskRecord, now: float) -> None:
        """A task takes nothing any more: what nobody else takes is forgotten, or stopped where it has not ended."""
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
        """Nobody needs the outcome any more, here or at its agent; its object goes where only we know of it."""
        session, extra = record.group.session, record.extra
        session.tasks.pop(record.id, None)
        if record.agent is not None:
            self._release(record.agent, record.id, now)
        if extra is not None and extra.intermediate and extra.outcome is not None:
            status, payload, stored = extra.outcome
            if stored and status == Status.VALUE:
                self._state.unused_objects.setdefault(session, []).append(payload[:OBJECT_ID_BYTES])

    def keep_for_consumers(self, record: TaskRecord) -> bool:
        """The owner lets go of an outcome: whether others still take it."""
        extra = record.extra
        if extra is None or extra.consumers <= 0:
            return False
        extra.owner_waits = False
        return True

    def queue_ready(self, now: float) -> None:
        """Tasks that have got all their inputs run next: that way results are used up before there are more."""
        if self._ready:
            ready, self._ready = [task for task in self._ready if task.state == HELD], []
            self._state.queue(ready, now, soon=True)

    def check(self, session: SessionRecord) -> None:
        """Assert the invariants; for tests."""
        for record in session.tasks.values():
            if (extra := record.extra) is not None:
                assert extra.missing_inputs == list(extra.inputs.values()).count(None), f"{record.id:x} {extra}"
                assert not extra.missing_inputs or record.state in (HELD, ASSIGNED), f"{record.id:x} {extra}"
                if record.state == DONE:
                    assert not extra.inputs and not extra.dependents, f"{record.id:x} {extra}"
                    assert not extra.intermediate or extra.consumers > 0, f"{record.id:x} is kept for nobody"


def _note_consumers(event: Submit, records: Sequence[TaskRecord]) -> None:
    for record, takers in zip(records, event.takers, strict=False):
        if takers:
            record.more().consumers = takers
    for position in event.inner:
        extra = records[position].more()
        extra.intermediate, extra.owner_waits = True, False
