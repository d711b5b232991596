"""Dependencies: which tasks wait for which results, and how long a result is kept for its consumers.

Theory. A task with results of others as inputs is HELD until all have arrived (or ASSIGNED together with the task it
waits for: see `scaler_scheduler.core.chains`); it keeps them until it has ended.
A node of a graph states at submission how many tasks will use its result (its `consumers`), whether they have been
submitted yet or not: its outcome is kept for them, and is forgotten when no consumer is left and its owner has
released it. An *intermediate* node is one that its client did not request: its value goes to its consumers only. When
a consumer ends without having run, nodes that only it needed are not wanted any more and are stopped.

Invariants (`check`): `missing_inputs` counts the inputs that have not arrived; an intermediate node that has ended has
consumers left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from scaler_protocol.messages import NeedInputs, Status, Submit
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_scheduler.core.records import (
    ASSIGNED,
    DONE,
    FEW_TASKS,
    GONE,
    HELD,
    WAITING,
    AgentRecord,
    Outcome,
    SessionRecord,
    TaskEntry,
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
    ) -> list[tuple[int, TaskRecord, Outcome]]:
        """Record the dependencies of the tasks of a message, and how many consumers each will have.

        The client is asked for outcomes that are not kept here. Returns the tasks that cannot run because a task they
        need ended without a value, each with the id and the outcome of that task.
        """
        _note_consumers(event, records)
        failed: list[tuple[int, TaskRecord, Outcome]] = []
        lacking: list[tuple[int, int]] = []
        needs: defaultdict[int, list[int]] = defaultdict(list)
        for position, need in zip(event.dependents, event.needs, strict=True):
            needs[position].append(need)
        for position, found in needs.items():
            if records[position].state != GONE:
                self._depend(session, records[position], found, failed, lacking)
        if self._state.event_log.listening:
            self._state.event_log.entered(HELD, [record for record in records if record.state == HELD])
        if lacking:
            self._state.send(session.peer, NeedInputs(*zip(*lacking, strict=True)))
        return failed

    @staticmethod
    def _depend(
        session: SessionRecord,
        record: TaskRecord,
        needs: list[int],
        failed: list[tuple[int, TaskRecord, Outcome]],
        lacking: list[tuple[int, int]],
    ) -> None:
        """Record what a task needs; `failed` and `lacking` are added to."""
        extra, tasks, missing = record.more(), session.tasks, 0
        known = list(extra.needs)
        for need in dict.fromkeys(needs):
            if need in extra.needs:
                continue
            source = tasks.get(need)
            if source is not None and not isinstance(source, TaskRecord):
                source = session.find(need)
            known.append(source.id if source is not None else need)  # one integer object for all
            if source is not None and source.state != DONE:
                (source.extra or source.more()).add_dependent(record)
            elif source is not None and source.extra is not None and source.extra.outcome is not None:
                status, payload, stored = source.extra.outcome
                if status == Status.VALUE:
                    extra.given = extra.given or {}
                    extra.given[need] = (payload, stored)
                    continue
                failed.append((need, record, source.extra.outcome))
            else:
                lacking.append((record.id, need))
            missing += 1
        extra.needs = tuple(known) if len(known) <= FEW_TASKS else dict.fromkeys(known)
        extra.missing_inputs += missing
        record.state = HELD if extra.missing_inputs else WAITING

    @staticmethod
    def lacking(session: SessionRecord) -> list[tuple[TaskRecord, int]]:
        """Tasks of a session that wait for inputs which no unfinished task makes, each with the id of that input."""
        return [
            (record, need)
            for record in session.tasks.values()
            if isinstance(record, TaskRecord)
            if record.extra is not None and record.extra.missing_inputs
            for need, given in record.extra.inputs()
            if given is None and _is_over(session.tasks.get(need))
        ]

    def give(self, record: TaskRecord, need: int, payload: bytes, *, stored: bool) -> None:
        """Give a task one of its inputs."""
        extra = record.more()
        extra.given = extra.given or {}
        extra.given[need] = (payload, stored)
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
        dependents, extra.dependents, extra.missing_inputs = extra.dependents, (), 0
        if extra.needs:
            self.release_inputs(record, now)
        if outcome[0] != Status.VALUE:
            return list(dependents)
        if dependents:
            number, given, ready = record.id, outcome[1:], self._ready
            for dependent in dependents:
                more, state = dependent.extra, dependent.state
                if more is None or state not in (HELD, ASSIGNED):
                    continue
                if more.given is None:
                    more.given = {number: given}
                elif number in more.given:  # the client has supplied it (NeedInputs)
                    continue
                else:
                    more.given[number] = given
                more.missing_inputs -= 1
                if not more.missing_inputs and state == HELD:
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
            if consumer.extra is None or not consumer.extra.needs:
                continue
            needs, consumer.extra.needs, consumer.extra.given = consumer.extra.needs, (), None
            tasks = consumer.group.session.tasks
            for need in needs:
                source = tasks.get(need)
                if source is None or (extra := source.extra) is None:
                    continue
                extra.consumers -= 1
                if extra.consumers > 0 or not isinstance(source, TaskRecord):
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

    def keep_for_consumers(self, record: TaskEntry) -> bool:
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
            if isinstance(record, TaskRecord) and (extra := record.extra) is not None:
                missing = [need for need, given in extra.inputs() if given is None]
                assert extra.missing_inputs == len(missing), f"{record.id:x} {extra.missing_inputs} {missing}"
                assert not missing or record.state in (HELD, ASSIGNED), f"{record.id:x} {missing}"
                assert not extra.given or extra.given.keys() <= set(extra.needs), f"{record.id:x} {extra.given}"
                if record.state == DONE:
                    assert not extra.needs and not extra.dependents, f"{record.id:x}"
                    assert not extra.intermediate or extra.consumers > 0, f"{record.id:x} is kept without consumers"


def _is_over(source: TaskEntry | None) -> bool:
    return source is None or source.state == DONE


def _note_consumers(event: Submit, records: Sequence[TaskRecord]) -> None:
    for record, consumers in zip(records, event.consumers, strict=False):
        if consumers:
            record.more().consumers = consumers
    for position in event.intermediate:
        extra = records[position].more()
        extra.intermediate, extra.owner_waits = True, False
