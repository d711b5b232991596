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
from collections.abc import Callable, Mapping, Sequence

from scaler_protocol.messages import NeedInputs, Status, Submit
from scaler_protocol.objects import OBJECT_ID_BYTES
from scaler_scheduler.core.records import AgentRecord, HeldNodes, SessionRecord, TaskEntry, TaskRecord, missing_inputs
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_extra import NO_INPUTS, TaskExtra
from scaler_scheduler.core.task_states import ASSIGNED, DONE, GONE, HELD, WAITING, Outcome


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
        self, session: SessionRecord, event: Submit, records: Mapping[int, TaskRecord]
    ) -> list[tuple[int, TaskRecord, Outcome]]:
        """Record the dependencies of tasks of a message, by position, and how many consumers each will have.

        The client is asked for outcomes that are not kept here. Returns the tasks that cannot run because a task they
        need ended without a value, each with the id and the outcome of that task.
        """
        _note_consumers(event, records)
        failed: list[tuple[int, TaskRecord, Outcome]] = []
        lacking: list[tuple[int, int]] = []
        needs: defaultdict[int, list[int]] = defaultdict(list)
        if not records.keys().isdisjoint(event.dependents):
            for position, need in zip(event.dependents, event.needs, strict=True):
                if position in records:
                    needs[position].append(need)
        for position, found in needs.items():
            if records[position].state != GONE:
                self._depend(session, records[position], found, failed, lacking)
        if self._state.event_log.listening:
            self._state.event_log.entered(HELD, [record for record in records.values() if record.state == HELD])
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
        extra, tasks = record.more(), session.tasks
        inputs = extra.inputs = dict(extra.inputs)
        for need in needs:
            if need in inputs:
                continue
            source = tasks.get(need)
            number = source.id if isinstance(source, TaskRecord) else need  # one integer object for all
            inputs[number] = None
            if source is not None and source.state != DONE:
                _add_dependents(session, need, source, (record.id,))
            elif source is not None and source.extra is not None and source.extra.outcome is not None:
                if source.extra.outcome[0] == Status.VALUE:
                    inputs[number] = source.extra.outcome
                    continue
                failed.append((need, record, source.extra.outcome))
            else:
                lacking.append((record.id, need))
            extra.missing_inputs += 1
        record.state = HELD if extra.missing_inputs else WAITING

    @staticmethod
    def hold(session: SessionRecord, needed: Mapping[int, Sequence[int]]) -> None:
        """Tasks that have not ended are needed by held nodes: `needed` has these by the tasks that they need."""
        tasks = session.tasks
        for need, dependents in needed.items():
            if isinstance(source := tasks[need], HeldNodes):
                source.columns.add_dependents(need, dependents)
            else:
                _add_dependents(session, need, source, dependents)

    @staticmethod
    def lacking(session: SessionRecord) -> list[tuple[TaskRecord, int]]:
        """Tasks of a session that wait for inputs which no unfinished task makes, each with the id of that input."""
        found: list[tuple[TaskRecord, int]] = []
        for task, entry in session.tasks.items():
            lacks = [need for need in missing_inputs(task, entry) if _is_over(session.tasks.get(need))]
            if lacks and (record := session.find(task)) is not None:
                found += [(record, need) for need in lacks]
        return found

    def give(self, record: TaskRecord, need: int, payload: bytes, *, stored: bool) -> None:
        """Give a task one of its inputs."""
        extra = record.more()
        extra.inputs[need] = (Status.VALUE, payload, stored)
        extra.missing_inputs -= 1
        self._state.budgets.keep(record.group.session, payload)
        if not extra.missing_inputs:
            self._ready.append(record)

    def ended(self, record: TaskRecord, outcome: Outcome, now: float) -> list[TaskRecord]:
        """A task has ended: pass its value to its dependents, or return them if they cannot run for lack of one."""
        if (extra := record.extra) is None:
            return []
        failed: list[TaskRecord] = []
        if outcome[0] != Status.VALUE:
            session, dependents, extra.dependents = record.group.session, extra.dependents, ()
            failed = [found for task in dependents if (found := session.find(task)) is not None]
        self.pass_on(record, extra, outcome, now)
        self.release_inputs([record], now)
        return failed

    def pass_on(self, record: TaskRecord, extra: TaskExtra, outcome: Outcome, now: float) -> None:
        """Keep the outcome of a task that has ended for its consumers, and give it to its dependents.

        The caller releases its inputs.
        """
        session, dependents, extra.missing_inputs = record.group.session, extra.dependents, 0
        if extra.consumers > 0:
            extra.outcome = outcome
        elif extra.intermediate:
            self.forget(record, now)
        if extra.consumers > 0 or dependents:
            self._state.budgets.keep(session, outcome[1])
        if dependents:
            extra.dependents = ()
            self._give(session, record.id, dependents, outcome)

    def _give(self, session: SessionRecord, number: int, dependents: Sequence[int], outcome: Outcome) -> None:
        """Pass the value of a task to its dependents."""
        tasks = session.tasks
        held: object = self
        for task in dependents:
            if (dependent := tasks.get(task)) is not held:
                if not isinstance(dependent, HeldNodes):
                    if isinstance(dependent, TaskRecord):
                        self._give_record(dependent, number, outcome)
                    continue
                held = nodes = dependent
                columns = nodes.columns
                first, inputs, counts = columns.first, columns.given, columns.need_counts
            row = task - first
            if (given := inputs[row]) is None:
                given = inputs[row] = {}
            given[number] = outcome
            if len(given) == counts[row]:
                opened = tasks[task] = nodes.record(task)
                self._ready.append(opened)

    def _give_record(self, dependent: TaskRecord, need: int, outcome: Outcome) -> None:
        """Pass the value of a task to one that has a record, unless the client has supplied it (NeedInputs)."""
        extra = dependent.extra
        if extra is None or dependent.state not in (HELD, ASSIGNED):
            return
        if extra.inputs.get(need, outcome) is None:
            extra.inputs[need] = outcome
            extra.missing_inputs -= 1
            if not extra.missing_inputs and dependent.state == HELD:
                self._ready.append(dependent)

    def release_inputs(self, idle: list[TaskRecord], now: float) -> None:
        """These tasks need no inputs any more: forget, or stop, nodes that have no other consumer. Empties the list."""
        while idle:
            consumer = idle.pop()
            if (extra := consumer.extra) is None:
                continue
            inputs, extra.inputs = extra.inputs, NO_INPUTS
            tasks = consumer.group.session.tasks
            for need in inputs:
                if (source := tasks.get(need)) is None:
                    continue
                if (extra := source.extra) is None:
                    if not isinstance(source, HeldNodes):
                        continue
                    source, extra = _opened(consumer.group.session, need)
                extra.consumers = left = extra.consumers - 1
                if left > 0 or not isinstance(source, TaskRecord):
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
        if extra is not None and extra.outcome is not None and extra.intermediate:
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
        assert not NO_INPUTS
        for task, record in session.tasks.items():
            if isinstance(record, HeldNodes):
                missing = missing_inputs(task, record)
                assert record.columns.missing(task - record.columns.first) == len(missing) > 0, f"{task:x} {missing}"
            elif isinstance(record, TaskRecord) and (extra := record.extra) is not None:
                missing = missing_inputs(task, record)
                assert extra.missing_inputs == len(missing), f"{record.id:x} {extra.missing_inputs} {missing}"
                assert not missing or record.state in (HELD, ASSIGNED), f"{record.id:x} {missing}"
                if record.state == DONE:
                    assert not extra.inputs and not extra.dependents, f"{record.id:x}"
                    assert not extra.intermediate or extra.consumers > 0, f"{record.id:x} is kept without consumers"


def _opened(session: SessionRecord, task: int) -> tuple[TaskRecord, TaskExtra]:
    """A held node, with a record from now on."""
    record = session.find(task)
    assert record is not None
    return record, record.more()


def _is_over(source: TaskEntry | None) -> bool:
    return source is None or source.state == DONE


def _add_dependents(session: SessionRecord, task: int, source: TaskEntry, dependents: Sequence[int]) -> None:
    """A task that has not ended is needed by others."""
    if isinstance(source, HeldNodes):
        source.columns.add_dependents(task, dependents)
    elif (record := source if isinstance(source, TaskRecord) else session.find(task)) is not None:
        (record.extra or record.more()).add_dependents(dependents)


def _note_consumers(event: Submit, records: Mapping[int, TaskRecord]) -> None:
    if event.consumers:
        for position, record in records.items():
            if consumers := event.consumers[position]:
                record.more().consumers = consumers
    for position in records.keys() & set(event.intermediate):
        extra = records[position].more()
        extra.intermediate, extra.owner_waits = True, False
