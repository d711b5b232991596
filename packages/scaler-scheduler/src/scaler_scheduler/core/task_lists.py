"""TaskLists: the tasks of a named session, in pieces, for clients and operators. Pure, no IO."""

from __future__ import annotations

from collections.abc import Iterator

from scaler_protocol.messages import MESSAGE_LIMIT, Status
from scaler_protocol.payloads import Payloads
from scaler_protocol.sessions import TaskList
from scaler_scheduler.core.named_session_record import NamedSession, SessionTask
from scaler_scheduler.core.records import SessionRecord
from scaler_scheduler.core.task_states import DONE

PIECE_TASKS = 10_000
_NO_NAME = ("",)


def task_lists(
    request: int, session: SessionRecord, named: NamedSession, now: float, *, results: bool
) -> Iterator[TaskList]:
    """The tasks in the order of submission, those with several names once for each; with `results` their payloads."""
    labels: dict[int, list[str]] = {}
    for label, task in named.labels.items():
        labels.setdefault(task, []).append(label)
    rows = [(task, label) for task in named.tasks.values() for label in labels.get(task.id, _NO_NAME)]
    at = 0
    while True:
        piece, size = list[tuple[SessionTask, str]](), 0
        while at < len(rows) and len(piece) < PIECE_TASKS and size < MESSAGE_LIMIT:
            piece.append(rows[at])
            outcome = rows[at][0].outcome
            size += len(outcome[1]) if results and outcome is not None else 0
            at += 1
        yield _piece(request, session, piece, len(rows) - at, now, results=results)
        if at >= len(rows):
            return


def _piece(
    request: int,
    session: SessionRecord,
    rows: list[tuple[SessionTask, str]],
    left: int,
    now: float,
    *,
    results: bool,
) -> TaskList:
    tasks = [task for task, _ in rows]
    outcomes = [task.outcome for task in tasks]
    return TaskList(
        request,
        left,
        tasks=[task.id for task in tasks],
        labels=[label for _, label in rows],
        functions=[task.function.name for task in tasks],
        states=[_state(session, task) for task in tasks],
        statuses=[outcome[0] if outcome is not None else Status.VALUE for outcome in outcomes],
        encodings=[task.encoding for task in tasks],
        ages=[now - task.since if task.outcome is not None else 0.0 for task in tasks],
        claimed=[task.claimed for task in tasks],
        results=Payloads([outcome[1] if outcome is not None else b"" for outcome in outcomes] if results else []),
        stored=[at for at, outcome in enumerate(outcomes) if results and outcome is not None and outcome[2]],
    )


def _state(session: SessionRecord, task: SessionTask) -> int:
    record = session.find(task.id)
    return DONE if task.outcome is not None or record is None else record.state
