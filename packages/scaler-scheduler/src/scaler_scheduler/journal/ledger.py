"""Ledger: which rows are written to the journal, and which of them can be deleted. Pure.

Theory. The journal is a log of events. A row is deleted when the core has none of its tasks any more. The ledger
remembers one task of the row that the core still has, the *witness*, and looks for another one only when the witness is
gone; so all looks at a row together visit each of its tasks once. A Release must outlive the Submit of its tasks, or
they would run again after a restart: it stays as long as its session has an older Submit.

A task may need the result of another without being counted as its consumer (a future given as an argument): then the
Submit of the first keeps the rows of the second. The number of consumers of a node is part of its Submit. Consumers
without rows are known to have ended only when all of their graph was submitted. So all Submits of a graph stay until
then, and the last one stays as long as any node of the graph.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Container, KeysView, Sequence
from typing import NamedTuple

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Done, Functions, Inputs, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.outcome_batch import OutcomeBatch
from scaler_scheduler.core.records import AgentRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, DONE, Outcome
from scaler_scheduler.journal.records import (
    Batch,
    RecordKind,
    Row,
    pack_attempts,
    pack_label,
    pack_message,
    pack_run,
    pack_session,
    pack_tasks,
)

ROW_BYTES = 64
"""About what a row takes on disk beside its body."""
LOOKS = 4
"""Old rows looked at for each new one."""
IDLE_LOOKS = 1024
"""Old rows looked at when nothing new happens."""


class About(NamedTuple):
    """The tasks and other things that a row is about.

    `first_run` of an assignment; `function` whose bytes it holds; `label` that names its task.
    """

    tasks: Sequence[int] = ()
    needs: Sequence[int] = ()
    graph: int = 0
    first_run: int = 0
    function: bytes = b""
    label: str = ""

    @classmethod
    def submit(cls, event: Submit) -> About:
        """New tasks, the results that they need without being counted as consumers, and their graph, if any."""
        if not event.graph:
            return cls(event.tasks, event.needs)
        nodes = range(event.graph, event.graph + event.graph_size)
        return cls(nodes if nodes[-1] in event.tasks else event.tasks, graph=event.graph)


class _Entry:
    """A row in the journal, without its bytes."""

    __slots__ = (
        "first_run",
        "function",
        "graph",
        "kind",
        "label",
        "needs",
        "number",
        "rows",
        "session",
        "size",
        "tasks",
        "witness",
    )

    def __init__(self, row: Row, about: About, rows: _Rows | None) -> None:
        self.number, self.kind, self.session, self.rows = row.number, row.kind, row.session, rows
        self.tasks, self.needs, self.graph = about.tasks, about.needs, about.graph
        self.first_run, self.function, self.label = about.first_run, about.function, about.label
        self.size, self.witness = ROW_BYTES + len(row.body), 0


class _Rows:
    """The rows of one session: their bytes, its Submits by age, and how many of them need each result."""

    __slots__ = ("labels", "needed", "number", "size", "submits")

    def __init__(self) -> None:
        self.size = 0
        self.number = 0
        """The number of the row that describes the session; 0 before it is written."""
        self.submits: OrderedDict[int, None] = OrderedDict()
        self.needed: Counter[int] = Counter()
        self.labels: dict[str, int] = {}
        """The number of the newest row that gives each label."""

    def drop_needs(self, entry: _Entry) -> KeysView[int]:
        """The tasks of a row have ended, and need no results any more; returns the results that others need."""
        for need in entry.needs:
            self.needed[need] -= 1
            if not self.needed[need]:
                del self.needed[need]
        entry.needs = ()
        return self.needed.keys()


class Ledger:
    """Records what a core tells it, until `take` hands it over. It is the core's `Recorder`."""

    def __init__(self, state: SchedulerState, key_limit: int = sys.maxsize) -> None:
        """`key_limit` bounds the bytes that the sessions of one key may have in the journal."""
        self._state = state
        self._key_limit = key_limit
        self._next = 1
        self._size = 0
        """Bytes of all rows of sessions."""
        self._rows: list[Row] = []
        self._deleted: list[int] = []
        self._outcomes: dict[int, OutcomeBatch] = {}
        self._sessions: dict[int, _Rows] = {}
        self._agents: dict[bytes, int] = {}
        self._functions: set[bytes] = set()
        self._entries: deque[_Entry] = deque()
        """In the order in which they are looked at."""

    def __len__(self) -> int:
        return len(self._entries) + len(self._sessions) + len(self._agents)

    # --- what happens -----------------------------------------------------------------------------------------------

    def session(self, session: SessionRecord) -> None:
        """A session is new, or a recorded attribute of it has changed."""
        rows = self._sessions.setdefault(session.number, _Rows())
        if not rows.number:
            rows.number = self._number()
        self._rows.append(Row(rows.number, RecordKind.SESSION, session.number, pack_session(session)))

    def labelled(self, session: SessionRecord, task: int, label: str) -> None:
        """A task was named; never refused, but it counts for the key."""
        self._append(RecordKind.LABEL, session.number, pack_label(task, label), About((task,), label=label))

    def session_over(self, number: int) -> None:
        """A session has ended: its row goes at once, its other rows when they are looked at."""
        rows = self._sessions.pop(number, None)
        if rows is not None:
            self._deleted.append(rows.number)

    def functions(self, event: Submit | Functions) -> None:
        """The bytes of functions have arrived."""
        references = set(event.bodies_stored)
        for position, (function, name, body) in enumerate(zip(event.functions, event.names, event.bodies, strict=True)):
            if function not in self._functions:
                single = Functions((function,), (name,), Payloads((body,)), (0,) if position in references else ())
                self._append(RecordKind.FUNCTIONS, 0, pack_message(single), About(function=function))

    def submitted(self, session: SessionRecord, event: Submit) -> None:
        """New tasks were accepted."""
        session.last_task = max(session.last_task, max(event.tasks))
        self._append(RecordKind.SUBMIT, session.number, pack_message(event), About.submit(event))

    def refusal(self, session: SessionRecord) -> str:
        """Why no more can be recorded for this session; empty if there is room."""
        if self._size < self._key_limit:
            return ""
        sessions, share = self._state.sessions, session.share
        size = sum(
            rows.size
            for number, rows in self._sessions.items()
            if (each := sessions.get(number)) is not None and each.share is share
        )
        if size < self._key_limit:
            return ""
        return (
            f"the clients of its key have {size:,} bytes in the journal, and may have {self._key_limit:,}: submit "
            "again when calls have ended, or give the scheduler more with --journal-key-limit"
        )

    def forwarded(self, session: SessionRecord, report: Done) -> None:
        """All tasks of an agent's report have ended."""
        if not session.nested:
            self._append(RecordKind.DONE, session.number, pack_message(report), About(report.tasks))

    def ended(self, record: TaskRecord, outcome: Outcome, profile: bytes, agent_name: str) -> None:
        """One task has ended."""
        session = record.group.session
        if not session.nested:
            if session.number not in self._outcomes:
                self._outcomes[session.number] = OutcomeBatch()
            self._outcomes[session.number].add(record.id, outcome, profile, agent_name)

    def released(self, session: SessionRecord, tasks: Sequence[int]) -> None:
        """The owner has these outcomes."""
        if not session.nested:
            self._write_outcomes()
            self._append(RecordKind.RELEASE, session.number, pack_tasks(tasks), About(tasks))

    def cancelled(self, session: SessionRecord, tasks: Sequence[int]) -> None:
        """The owner does not want these tasks."""
        if not session.nested:
            self._write_outcomes()
            self._append(RecordKind.CANCEL, session.number, pack_tasks(tasks), About(tasks))

    def inputs(self, session: SessionRecord, event: Inputs) -> None:
        """The owner has supplied inputs of tasks."""
        if not session.nested:
            self._write_outcomes()
            self._append(RecordKind.INPUTS, session.number, pack_message(event), About(event.tasks))

    def assigned(self, agent: AgentRecord, first_run: int, tasks: Sequence[int]) -> None:
        """An agent was given these tasks, as consecutive runs."""
        self._append(RecordKind.RUN, 0, pack_run(agent.peer, first_run, tasks), About(tasks, first_run=first_run))

    def attempts(self, record: TaskRecord) -> None:
        """A run of the task has ended without an outcome."""
        session = record.group.session
        if not session.nested:
            self._append(RecordKind.ATTEMPTS, session.number, pack_attempts(record), About((record.id,)))

    def agent_joined(self, agent: AgentRecord) -> None:
        """An agent has connected."""
        if agent.peer not in self._agents:
            self._agents[agent.peer] = number = self._number()
            about = {"peer": agent.peer.hex(), "name": agent.name, "host": agent.host}
            body = json.dumps({**about, "lives_on_seconds": agent.lives_on_seconds}).encode()
            self._rows.append(Row(number, RecordKind.AGENT, 0, body))

    def agent_left(self, agent: bytes) -> None:
        """The agent of this identity is gone; its runs are not assigned any more."""
        if (number := self._agents.pop(agent, None)) is not None:
            self._deleted.append(number)

    def take(self) -> Batch | None:
        """The changes to commit now; None if there are none."""
        self._write_outcomes()
        if self._rows:
            self._look(LOOKS * len(self._rows))
        if not self._rows and not self._deleted:
            return None
        batch_rows, deleted = self._rows, self._deleted
        self._rows, self._deleted = [], []
        return Batch(batch_rows, deleted)

    def _write_outcomes(self) -> None:
        for session, batch in self._outcomes.items():
            for done in batch.messages():
                self._append(RecordKind.DONE, session, pack_message(done), About(done.tasks))
        self._outcomes.clear()

    def tidy(self) -> None:
        """Nothing new happens: look at old rows."""
        self._look(IDLE_LOOKS)

    # --- rows -------------------------------------------------------------------------------------------------------

    def adopt(self, row: Row, about: About) -> None:
        """A row is in the journal from an earlier life of the scheduler."""
        self._next = max(self._next, row.number + 1)
        self._enter(row, about)

    def adopt_session(self, row: Row) -> None:
        """The row of a session is in the journal."""
        self._next = max(self._next, row.number + 1)
        self._sessions.setdefault(row.session, _Rows()).number = row.number

    def adopt_agent(self, row: Row, agent: bytes) -> None:
        """The row of an agent is in the journal."""
        self._next = max(self._next, row.number + 1)
        self._agents[agent] = row.number

    def discard(self, row: Row) -> None:
        """A row says nothing."""
        self._next = max(self._next, row.number + 1)
        self._deleted.append(row.number)

    def _number(self) -> int:
        number = self._next
        self._next = number + 1
        return number

    def _append(self, kind: int, session: int, body: bytes, about: About) -> None:
        row = Row(self._number(), kind, session, body)
        self._rows.append(row)
        self._enter(row, about)

    def _enter(self, row: Row, about: About) -> None:
        rows = self._sessions.get(row.session)
        entry = _Entry(row, about, rows)
        self._entries.append(entry)
        if rows is not None:
            rows.size += entry.size
            self._size += entry.size
        if about.function:
            self._functions.add(about.function)
        if row.kind == RecordKind.SUBMIT and rows is not None:
            rows.submits[row.number] = None
            rows.needed.update(about.needs)
        if about.label and rows is not None:
            rows.labels[about.label] = row.number

    def _look(self, count: int) -> None:
        """Delete those of the next rows that say nothing any more."""
        entries = self._entries
        for _ in range(min(count, len(entries))):
            entry = entries.popleft()
            if self._is_needed(entry):
                entries.append(entry)
            else:
                self._deleted.append(entry.number)
                self._left(entry)

    def _left(self, entry: _Entry) -> None:
        self._functions.discard(entry.function)
        if entry.rows is not None:
            entry.rows.size -= entry.size
            self._size -= entry.size
        if entry.kind == RecordKind.SUBMIT and entry.rows is not None:
            entry.rows.submits.pop(entry.number, None)
        if entry.rows is not None and entry.rows.labels.get(entry.label) == entry.number:
            del entry.rows.labels[entry.label]

    def _is_needed(self, entry: _Entry) -> bool:
        if entry.kind == RecordKind.RUN:
            return self._is_assigned(entry)
        if entry.kind == RecordKind.FUNCTIONS:
            function = self._state.functions.find(entry.function)
            return function is not None and bool(function.sessions)
        session, rows = self._state.sessions.get(entry.session), entry.rows
        # A client that was given up and is back has a new session of the same number.
        if session is None or rows is None or self._sessions.get(entry.session) is not rows:
            return False
        if entry.kind == RecordKind.LABEL:
            is_newest = rows.labels.get(entry.label) == entry.number
            return is_newest and session.named is not None and entry.label in session.named.labels
        if entry.kind == RecordKind.ATTEMPTS:
            record = session.find(entry.tasks[0])
            return record is not None and record.state != DONE
        if entry.kind in (RecordKind.RELEASE, RecordKind.CANCEL):
            oldest = next(iter(rows.submits), None)
            if oldest is not None and oldest < entry.number:
                return True
        graph = session.graphs.get(entry.graph)
        if graph is not None and graph.arriving:
            return True
        known: Container[int] = session.tasks
        if session.named is not None:
            known = Either(session.tasks, session.named.tasks)
        return self._has_witness(entry, known) or not rows.drop_needs(entry).isdisjoint(entry.tasks)

    @staticmethod
    def _has_witness(entry: _Entry, known: Container[int]) -> bool:
        tasks = entry.tasks
        for position in range(entry.witness, len(tasks)):
            if tasks[position] in known:
                entry.witness = position
                return True
        entry.witness = len(tasks)
        return False

    def _is_assigned(self, entry: _Entry) -> bool:
        for position in range(entry.witness, len(entry.tasks)):
            record = self._state.entry(entry.tasks[position])
            if isinstance(record, TaskRecord) and record.state == ASSIGNED and record.run == entry.first_run + position:
                entry.witness = position
                return True
        return False


@dataclass(frozen=True, slots=True)
class Either:
    """A view of two tables: it contains the keys of both."""

    one: Container[int]
    other: Container[int]

    def __contains__(self, key: object) -> bool:
        return key in self.one or key in self.other
