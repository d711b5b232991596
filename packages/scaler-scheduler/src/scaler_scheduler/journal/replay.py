"""Replay: apply the rows of a journal to a new core, and list them in its ledger. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable

from scaler_protocol.errors import ScalerError
from scaler_protocol.messages import Done, Functions, Inputs, Submit
from scaler_scheduler.core.restoration import Restoration
from scaler_scheduler.journal.ledger import About, Ledger
from scaler_scheduler.journal.records import (
    RecordKind,
    Row,
    unpack_attempts,
    unpack_label,
    unpack_message,
    unpack_run,
    unpack_session,
    unpack_tasks,
)

_UNREADABLE = (ScalerError, AssertionError, ValueError, TypeError, KeyError, IndexError, struct.error)


class Replay:
    """Takes rows in their order."""

    def __init__(self, restoration: Restoration, ledger: Ledger) -> None:
        self._restoration = restoration
        self._ledger = ledger
        self._tellers: dict[int, Callable[[Row], None]] = {
            RecordKind.SESSION: self._session,
            RecordKind.AGENT: self._agent,
            RecordKind.FUNCTIONS: self._functions,
            RecordKind.SUBMIT: self._submitted,
            RecordKind.DONE: self._done,
            RecordKind.RELEASE: self._released,
            RecordKind.CANCEL: self._cancelled,
            RecordKind.INPUTS: self._inputs,
            RecordKind.RUN: self._assigned,
            RecordKind.ATTEMPTS: self._attempts,
            RecordKind.LABEL: self._labelled,
        }

    def tell(self, rows: Iterable[Row]) -> int:
        """Tell all rows; returns how many could not be read, which are dropped."""
        unreadable = 0
        self._restoration.begin()
        for row in rows:
            try:
                self._tellers[row.kind](row)
            except _UNREADABLE:
                unreadable += 1
                self._ledger.discard(row)
        return unreadable

    def _session(self, row: Row) -> None:
        self._restoration.session(unpack_session(row.session, row.body))
        self._ledger.adopt_session(row)

    def _agent(self, row: Row) -> None:
        body = json.loads(row.body)
        agent = bytes.fromhex(body["peer"])
        self._restoration.agent(agent, body.get("lives_on_seconds", 0.0))
        self._ledger.adopt_agent(row, agent)

    def _functions(self, row: Row) -> None:
        event = unpack_message(row.body)
        assert isinstance(event, Functions)
        self._restoration.functions(event)
        self._ledger.adopt(row, About(function=event.functions[0]))

    def _submitted(self, row: Row) -> None:
        event = unpack_message(row.body)
        assert isinstance(event, Submit)
        if self._restoration.submitted(event):
            self._ledger.adopt(row, About.submit(event))
        else:
            self._ledger.discard(row)

    def _done(self, row: Row) -> None:
        report = unpack_message(row.body)
        assert isinstance(report, Done)
        self._restoration.ended(row.session, report)
        self._ledger.adopt(row, About(report.tasks))

    def _released(self, row: Row) -> None:
        tasks = unpack_tasks(row.body)
        self._restoration.released(row.session, tasks)
        self._ledger.adopt(row, About(tasks))

    def _cancelled(self, row: Row) -> None:
        tasks = unpack_tasks(row.body)
        self._restoration.cancelled(row.session, tasks)
        self._ledger.adopt(row, About(tasks))

    def _inputs(self, row: Row) -> None:
        event = unpack_message(row.body)
        assert isinstance(event, Inputs)
        self._restoration.inputs(row.session, event)
        self._ledger.adopt(row, About(event.tasks))

    def _assigned(self, row: Row) -> None:
        agent, first_run, tasks = unpack_run(row.body)
        self._restoration.assigned(agent, first_run, tasks)
        self._ledger.adopt(row, About(tasks, first_run=first_run))

    def _attempts(self, row: Row) -> None:
        attempts = unpack_attempts(row.body)
        self._restoration.attempts(attempts)
        self._ledger.adopt(row, About((attempts.task,)))

    def _labelled(self, row: Row) -> None:
        task, label = unpack_label(row.body)
        if self._restoration.labelled(row.session, task, label):
            self._ledger.adopt(row, About((task,), label=label))
        else:
            self._ledger.discard(row)
