"""`scaler results`: the tasks of a named session and what came of them."""

from __future__ import annotations

import io
import json
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from scaler_io.security.keyring import READER_KEYS, Credentials, KeyRole
from scaler_io.service.cli import Command
from scaler_io.service.operator_link import OperatorLink
from scaler_io.service.options import KEYS, Option, UsageError, path, positive_seconds
from scaler_io.transport.own_keys import credentials_for
from scaler_protocol.addresses import Address
from scaler_protocol.errors import ScalerError, restore
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.ids import session_key
from scaler_protocol.limits import SESSION_NAME
from scaler_protocol.messages import Encoding, Status
from scaler_protocol.objects import Reference
from scaler_protocol.plurals import counted
from scaler_protocol.ranges import shown
from scaler_protocol.safe_text import escaped
from scaler_protocol.sessions import EndSession, ListTasks, TaskList
from scaler_protocol.tracebacks import headline, traceback_text

_LOOK_SECONDS: Final = 0.02
_STATES: Final = ("waiting", "held", "running", "ended", "gone")
_ENDED: Final = 3
_STATUSES: Final = ("succeeded", "raised", "failed", "cancelled", "lost")
LONGEST: Final = 200
"""Characters of a result or an error on a line for people."""


class NoResultsError(ScalerError, ConnectionError):
    """The scheduler has not answered, or knows no such session."""


@dataclass(frozen=True, slots=True)
class ResultsOptions:
    """The command line of `scaler results`."""

    address: Address
    session: str
    json: bool
    drop: bool
    timeout_seconds: float
    session_secret_file: Path | None = None
    keys: Path | None = None
    insecure: bool = False


def session_name(text: str) -> str:
    """Check the name of a session; raises ValueError."""
    if not text.strip() or (fault := SESSION_NAME.fault(text)):
        raise ValueError(f"{text!r} is not the name of a session{': it ' + fault if text.strip() else ''}")
    return text


RESULTS: Final = Command(
    program="scaler results",
    description="Print the tasks of a named session, and what came of them.",
    section="results",
    config=ResultsOptions,
    options=(
        Option(("address", "scheduler_address"), "the scheduler", Address.parse_peer),
        Option(("session",), "the session, as in Client(session=...)", session_name),
        *KEYS,
        Option(("--json", "-j"), "as JSON, a line for each task and each further name of it", default=False, flag=True),
        Option(("--drop",), "cancel all its tasks and drop all its results", default=False, flag=True),
        Option(
            ("--session-secret-file",),
            "a file with the session_secret, if the session was given one; a line break at its end does not count",
            path,
            default=None,
            metavar="FILE",
        ),
        Option(("--timeout-seconds", "-t"), "how long to wait for an answer", positive_seconds, default=10.0),
    ),
    example="scaler results tcp://127.0.0.1:2345 nightly-run",
)


def show(words: Sequence[str]) -> int:
    """Print the tasks, or end the session; returns the exit code.

    Raises NoResultsError if no scheduler answers or the session is unknown, KeyFileError for wrong keys.
    """
    options = RESULTS.read(words)
    credentials = credentials_for(options.address, options.keys, options.insecure, READER_KEYS)
    key = session_key(options.session, secret_in(options.session_secret_file) or _secret(credentials))
    question = EndSession(1, options.session, key) if options.drop else ListTasks(1, options.session, key, results=True)
    pieces = fetch(options.address, credentials, question, options.timeout_seconds)
    if options.drop:
        print(f"session {escaped(options.session)} has ended")
        return 0
    tasks = [row for piece in pieces for row in rows(piece)]
    for row in tasks:
        print(json.dumps(row) if options.json else as_line(row))
    if not options.json:
        ended = {row["task"]: row["state"] not in _STATES for row in tasks}
        print(f"{counted(len(ended), 'task')}, {sum(ended.values()):,} ended", file=sys.stderr)
    return 0


def secret_in(file: Path | None) -> bytes:
    """The secret of a session from its file, nothing without a file; raises UsageError."""
    try:
        secret = file.read_bytes().removesuffix(b"\n").removesuffix(b"\r") if file is not None else b""
    except OSError as error:
        raise UsageError(f"--session-secret-file: {file}: {error.strerror}") from None
    if file is not None and not secret:
        raise UsageError(f"--session-secret-file: {file} is empty")
    return secret


def _secret(credentials: Credentials | None) -> bytes:
    return credentials.secret if credentials is not None and credentials.holder.role is KeyRole.CLIENT else b""


def fetch(
    address: Address, credentials: Credentials | None, question: ListTasks | EndSession, seconds: float
) -> list[TaskList]:
    """The scheduler's answer; raises NoResultsError if there is none, or for an error."""
    link = OperatorLink(address, "scaler results", ServiceKind.SCHEDULER, credentials=credentials)
    try:
        return _receive(link, address, question, time.monotonic() + seconds)
    finally:
        link.close()


def _receive(link: OperatorLink, address: Address, question: ListTasks | EndSession, until: float) -> list[TaskList]:
    pieces: list[TaskList] = []
    joins = 0
    while time.monotonic() < until:
        arrived = link.turn()
        if link.joins != joins:  # a new stream: what was asked before is forgotten
            joins = link.joins
            pieces.clear()
            link.send(question)
        for piece in [message for message in arrived if isinstance(message, TaskList)]:
            if piece.error:
                raise NoResultsError(piece.error)
            pieces.append(piece)
            if not piece.left:
                return pieces
        if link.problem and not link.is_up:
            raise NoResultsError(f"the scheduler at {address} gives no results: {link.problem}")
        time.sleep(_LOOK_SECONDS)
    raise NoResultsError(f"no scheduler answers at {address}; is it running there?")


def rows(piece: TaskList) -> Iterator[dict[str, Any]]:
    """The tasks as JSON values."""
    stored = set(piece.stored)
    for at, task in enumerate(piece.tasks):
        is_ended = piece.states[at] == _ENDED
        row: dict[str, Any] = {
            "task": f"{task:x}",
            "name": piece.labels[at],
            "function": piece.functions[at],
            "state": _STATUSES[piece.statuses[at]] if is_ended else _STATES[piece.states[at]],
        }
        if is_ended:
            row["age_seconds"] = round(piece.ages[at], 1)
            row |= _outcome(piece.statuses[at], piece.encodings[at], piece.results[at], stored=at in stored)
        yield row


def _outcome(status: int, encoding: int, payload: bytes, *, stored: bool) -> dict[str, Any]:
    """The outcome of a task as JSON, found without running user code."""
    if stored:
        return {"stored_bytes": Reference.unpack(payload).size}
    if status in (Status.FAILED, Status.LOST):
        return {"error": str(restore(payload))}
    if status == Status.CANCELLED:
        return {}
    if encoding == Encoding.JSON:
        return {"result" if status == Status.VALUE else "error": _from_json(payload)}
    if status == Status.RAISED:
        return {"error": headline(traceback_text(payload)) or f"an exception, {len(payload):,} bytes"}
    return {"result": _plain(payload)} if encoding == Encoding.PICKLE else {"bytes": len(payload)}


def _from_json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return f"{len(payload):,} bytes that are not JSON"


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles numbers, texts, and collections of these; it imports nothing, so no user code runs."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _plain(payload: bytes) -> str:
    """The repr of a plain value, shortened; of another one what it is made of."""
    try:
        return shown(_PlainUnpickler(io.BytesIO(payload)).load())
    except pickle.UnpicklingError as error:
        return f"<{error}, {len(payload):,} bytes>"
    except Exception:  # these bytes are whatever a task has made
        return f"<{len(payload):,} bytes>"


def as_line(row: dict[str, Any]) -> str:
    """A task for people."""
    came = [f"{key.replace('_', ' ')} {row[key]}" for key in ("result", "error", "stored_bytes", "bytes") if key in row]
    name = f" {row['name']}" if row["name"] else ""
    text = escaped(f"{row['task']} {row['state']:<9} {row['function']}{name} {' '.join(came)}".rstrip())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
