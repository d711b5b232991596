"""Rows of the journal, and the encoding of their contents. Pure.

A row with a message contains its frames, if possible those that were received.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from scaler_protocol.codec import decode, encode
from scaler_protocol.messages import Message
from scaler_scheduler.core.named_session_record import NamedSession
from scaler_scheduler.core.records import SessionRecord, TaskRecord
from scaler_scheduler.core.restoration import Attempts


class RecordKind:
    """The content of a row."""

    SESSION: Final = 1
    AGENT: Final = 2
    FUNCTIONS: Final = 3
    SUBMIT: Final = 4
    DONE: Final = 5
    RELEASE: Final = 6
    CANCEL: Final = 7
    INPUTS: Final = 8
    RUN: Final = 9
    ATTEMPTS: Final = 10
    LABEL: Final = 11


class Row(NamedTuple):
    """One record; `number` gives the order of what happened. A row with the number of an earlier one replaces it."""

    number: int
    kind: int
    session: int
    body: bytes


class Batch(NamedTuple):
    """Changes of the journal that are committed together: rows to write, numbers of rows to delete."""

    rows: list[Row]
    deleted: list[int]


_SIZE = struct.Struct("<I")
_RUN = struct.Struct("<QB")
_LABEL = struct.Struct("<Q")
_ATTEMPTS = struct.Struct("<QIIII??")


def pack_message(message: Message) -> bytes:
    """Write a message; raises InvalidFieldError if it cannot be encoded."""
    frames = encode(message)
    return b"".join((_SIZE.pack(len(frames[0])), *frames))


def unpack_message(body: bytes) -> Message:
    """Read a message; raises MalformedMessageError."""
    end = _SIZE.size + _SIZE.unpack_from(body)[0]
    columns = body[_SIZE.size : end]
    return decode([columns, body[end:]] if end < len(body) else [columns])


def pack_tasks(tasks: Sequence[int]) -> bytes:
    """Write ids of tasks."""
    return array("Q", tasks).tobytes()


def unpack_tasks(body: bytes) -> Sequence[int]:
    """Read ids of tasks."""
    tasks = array("Q")
    tasks.frombytes(body)
    return tasks


def pack_run(agent: bytes, first_run: int, tasks: Sequence[int]) -> bytes:
    """Write an assignment of consecutive runs."""
    return b"".join((_RUN.pack(first_run, len(agent)), agent, pack_tasks(tasks)))


def unpack_run(body: bytes) -> tuple[bytes, int, Sequence[int]]:
    """Read the agent's identity, the first run and the tasks."""
    first_run, size = _RUN.unpack_from(body)
    end = _RUN.size + size
    return body[_RUN.size : end], first_run, unpack_tasks(body[end:])


def pack_attempts(record: TaskRecord) -> bytes:
    """Write the counters of a task's earlier runs."""
    notes = record.note()
    return _ATTEMPTS.pack(
        record.id,
        notes.lost_runs,
        notes.shared_losses,
        notes.raised_runs,
        notes.earlier_runs,
        notes.suspect,
        notes.exclusive,
    )


def unpack_attempts(body: bytes) -> Attempts:
    """Read the counters of a task's earlier runs."""
    return Attempts(*_ATTEMPTS.unpack(body))


def pack_label(task: int, label: str) -> bytes:
    """Write the name of a task."""
    return _LABEL.pack(task) + label.encode()


def unpack_label(body: bytes) -> tuple[int, str]:
    """Read the task and its name."""
    return _LABEL.unpack_from(body)[0], body[_LABEL.size :].decode()


def pack_session(session: SessionRecord) -> bytes:
    """Write the attributes of a session."""
    values: dict[str, Any] = {
        "peer": session.peer.hex(),
        "name": session.name,
        "host": session.host,
        "runtime": session.runtime,
        "last_task": session.last_task,
    }
    if (named := session.named) is not None:
        values["named"] = {"name": named.name, "key": named.key.hex()}
    return json.dumps(values).encode()


def unpack_session(number: int, body: bytes) -> SessionRecord:
    """Read the attributes of a session, without a client."""
    values: dict[str, Any] = json.loads(body)
    session = SessionRecord(number, bytes.fromhex(values["peer"]), name=values["name"], host=values["host"])
    session.runtime = tuple(values["runtime"]) if values["runtime"] else None
    session.last_task = values["last_task"]
    session.attached, session.kept = False, {}
    if named := values.get("named"):
        session.kept = None
        session.named = NamedSession(number, named["name"], bytes.fromhex(named["key"]))
    return session
