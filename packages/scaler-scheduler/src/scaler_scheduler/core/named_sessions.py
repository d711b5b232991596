"""NamedSessions: sessions that a client can leave, and another one, which knows the name and the secret, resumes.

A session is *attached* to one client at most. When its client leaves or is lost, it is *detached*: its tasks go on, and
their outcomes are kept (`scaler_scheduler.core.session_results`). The next client lists the tasks and *claims* those of
which it makes futures (with Reconcile): their outcomes are sent at once, or when they end. A detached session with
neither tasks nor outcomes is forgotten. A client displaces another one only if that has no connection any more.

    first Hello ─▶ ATTACHED ◀──Hello── DETACHED ──nothing left, EndSession──▶ forgotten
                      │                   ▲
                      └─Goodbye, lost─────┘

Invariants (`check`): a session is detached exactly if it has no peer; each of its tasks that has not ended is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from scaler_protocol.errors import ObjectNotFoundError, ProtocolError, describe
from scaler_protocol.handshake import Hello, Refused, Welcome
from scaler_protocol.ids import session_of
from scaler_protocol.light_crypto import compare_digest
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind
from scaler_protocol.plurals import counted
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.sessions import ConfirmTasks, EndSession, KeepSession, LabelTask, ListTasks, TaskList, give_name
from scaler_scheduler.core.call_budgets import LEAST_CREDIT
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.named_session_record import NamedSession
from scaler_scheduler.core.records import SessionRecord, TaskRecord, missing_inputs
from scaler_scheduler.core.session_ends import SessionEnds
from scaler_scheduler.core.state import SchedulerState, SendToStorage
from scaler_scheduler.core.task_lists import task_lists
from scaler_scheduler.core.task_states import DONE, HELD, Outcome
from scaler_scheduler.requirements import runtime_of

ENDED_LIMIT: Final = 10_000
"""Clients that are told that their session was ended; beyond that the oldest are forgotten."""


class NamedSessions:
    """The named sessions; `is_connected` tells whether a client is connected.

    `is_resuming` tells whether it is not known yet which tasks of a session are missing.
    """

    def __init__(
        self,
        state: SchedulerState,
        completion: Completion,
        session_ends: SessionEnds,
        is_connected: Callable[[bytes], bool],
        is_resuming: Callable[[SessionRecord], bool],
    ) -> None:
        self._state = state
        self._completion, self._session_ends = completion, session_ends
        self._is_connected = is_connected
        self._is_resuming = is_resuming
        self._ended: dict[bytes, str] = {}
        """By clients that were away when it was ended, the name of their session."""
        self._to_confirm: dict[SessionRecord, list[int]] = {}
        """Requests of clients that wait for a confirmation."""
        self._by_name: dict[str, SessionRecord] = {}
        self._detached: dict[SessionRecord, None] = {}

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    # --- clients that come and go -----------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether there is a session of this name."""
        return name in self._by_name

    def refusal(self, hello: Hello) -> Refused | None:
        """Why a client may not have the session that it names."""
        session = self._by_name.get(hello.session_name)
        if not hello.session_key:
            return Refused(["a named session has a key"])
        if self._ended.get(hello.identity) == hello.session_name:
            return Refused([f"session {hello.session_name!r} was ended while this client was away, with all its calls"])
        if session is None or session.named is None:
            return None
        if not compare_digest(session.named.key, hello.session_key):
            return Refused([f"session {hello.session_name!r} has another secret, or belongs to another key"])
        if session.peer not in (b"", hello.identity) and self._is_connected(session.peer):
            text = f"session {hello.session_name!r} is in use by a client on {session.host}: end that one first"
            return Refused([text], in_use=True)
        return None

    def welcome(self, hello: Hello, welcome: Welcome) -> Welcome:
        """The Welcome for a client of a named session, which says which task ids are unused.

        The unfinished calls of earlier clients are deducted from its credit.
        """
        session = self._by_name.get(hello.session_name)
        if session is None or session.named is None:
            return replace(welcome, session=hello.session)
        left = sum(len(task.call) for task in session.records())
        return replace(
            welcome,
            session=session.number,
            session_credit=max(LEAST_CREDIT, welcome.session_credit - left),
            ids_from=session.named.ids_from,
            ids_to=session.named.ids_to,
        )

    def attach(self, peer: bytes, hello: Hello, now: float) -> SessionRecord:
        """A client begins or resumes the session that it names; returns it."""
        session = self._by_name.get(hello.session_name)
        if session is None:
            session = SessionRecord(hello.session, peer, runtime_of(hello), name=hello.session_name, host=hello.host)
            session.named = NamedSession(hello.session, hello.session_name, hello.session_key)
            self._by_name[hello.session_name] = self._state.sessions[hello.session] = session
            self._state.out.append(SendToStorage(KeepSession(session.number, hello.session_key)))
            self._record(session)
        elif session.peer not in (b"", peer):
            text = f"session {hello.session_name!r} was taken over by a client on {hello.host}"
            self._state.send(session.peer, Refused([text], in_use=True))
            self.detach(session, now)
        session.peer, session.host = peer, hello.host
        session.runtime = runtime_of(hello)
        if session.named is not None:
            session.named.detached_at, session.named.last_client = None, peer
        self._detached.pop(session, None)
        return session

    def detach(self, session: SessionRecord, now: float) -> None:
        """The client has left or is lost: its tasks go on without it."""
        named = session.named
        if named is None:
            return
        session.peer, session.watched, session.attached, named.detached_at = b"", False, False, now
        self._detached[session] = None
        self._to_confirm.pop(session, None)
        for task in named.tasks.values():
            task.claimed = False
        ended = [task for task, record in session.tasks.items() if record.state == DONE and task in named.tasks]
        self._completion.released(session, ended, now)
        for record in [record for record in session.records() if record.state == HELD]:
            self._supply(session, record, now)
        if session.tasks:
            tasks = counted(len(session.tasks), "task")
            self._state.log(
                f"session {named.name}: its client is gone and has left {tasks}", EventKind.CLIENT, subject=named.name
            )

    def _supply(self, session: SessionRecord, record: TaskRecord, now: float) -> None:
        """The client will not send the inputs that it was asked for: supply kept outcomes instead, or errors."""
        for need in missing_inputs(record.id, record):
            source = session.find(need)
            if source is None or source.state == DONE:
                missing = ObjectNotFoundError(f"the client left before it sent the result of task {need:x}")
                status, payload, stored = self._outcome(session, need) or (Status.FAILED, describe(missing), False)
                self._completion.supply(record, need, status, payload, now, stored=stored)
            elif record.id not in source.more().dependents:  # its task came after the question
                source.more().add_dependents((record.id,))

    @staticmethod
    def _outcome(session: SessionRecord, task: int) -> tuple[int, bytes, bool] | None:
        known = session.named.tasks.get(task) if session.named is not None else None
        return known.outcome if known is not None else None

    # --- tasks ------------------------------------------------------------------------------------------------------

    def claim(self, session: SessionRecord, wanted: Sequence[int], now: float) -> list[int]:
        """The client has futures of these tasks, or asks for these nodes of graphs; returns those to be sent again.

        The outcomes of ended ones are sent. An unknown task may have been lost on its way, or may have ended and been
        dropped: its client submits it again, if it can.
        """
        named, unknown = session.named, list[int]()
        if named is None:
            return list(wanted)
        for number in wanted:
            task = named.tasks.get(number)
            if task is not None:
                task.claimed = True
                if task.ended is not None:
                    self._completion.tell(session, number, task.ended)
            elif (kept := _kept_for_consumers(session, number)) is not None:
                self._completion.tell(session, number, (kept, NO_PROFILE, ""))
            elif not _was_received(session, number):
                unknown.append(number)
        return unknown

    def received(self, session: SessionRecord, tasks: Iterable[int], now: float) -> None:
        """The client has the outcomes of these tasks; they are kept for the retention from now on."""
        for number in tasks:
            if session.named is not None and (task := session.named.tasks.get(number)) is not None:
                self._state.results.received(task, now)

    def cancelled(self, session: SessionRecord, tasks: Iterable[int]) -> None:
        """The client does not want these tasks any more."""
        for number in tasks:
            if session.named is not None and (task := session.named.tasks.get(number)) is not None:
                self._state.results.drop(task)

    def label(self, session: SessionRecord | None, event: LabelTask) -> None:
        """Name a task; raises ProtocolError if the session has no name, or the task is another session's."""
        if session is None or session.named is None or session_of(event.task) != session.number:
            raise ProtocolError("only a client with a named session names its tasks")
        if session.named.labels.get(event.label) != event.task:  # a client that is back names its tasks again
            give_name(session.named.labels, event.label, event.task)
            if self._state.recorder is not None:
                self._state.recorder.labelled(session, event.task, event.label)

    def confirm(self, session: SessionRecord | None, event: ConfirmTasks) -> None:
        """Answer as soon as recovery has ended for the session: no agent or client still owes a task or an outcome."""
        if session is None or session.named is None:
            raise ProtocolError("only a client with a named session asks for a confirmation")
        self._to_confirm.setdefault(session, []).append(event.request)

    # --- requests ---------------------------------------------------------------------------------------------------

    def list(self, peer: bytes, session: SessionRecord | None, event: ListTasks, now: float, *, any_key: bool) -> None:
        """Send the tasks of a session; see `_find`."""
        found, problem = self._find(session, event, any_key=any_key)
        if found is None or found.named is None:
            self._state.send(peer, TaskList(event.request, error=problem))
            return
        for piece in task_lists(event.request, found, found.named, now, results=event.results):
            self._state.send(peer, piece)

    def end(
        self, peer: bytes, session: SessionRecord | None, event: EndSession, now: float, *, any_key: bool
    ) -> SessionRecord | None:
        """Cancel and forget a session, see `_find`; returns it if it is not the sender's own."""
        found, problem = self._find(session, event, any_key=any_key)
        if found is not None and found is not session and found.peer and self._is_connected(found.peer):
            problem = f"session {event.session!r} is in use by a client on {found.host}: end that one first"
            found = None
        if found is not None:
            if found is not session and found.peer:
                self.detach(found, now)
            self._note_ended(found)
            self.forget(found, now)
        self._state.send(peer, TaskList(event.request, error=problem))
        return None if found is session else found

    def _note_ended(self, session: SessionRecord) -> None:
        """Remember to tell the last client, if it is away."""
        if session.named is not None and not session.peer:
            self._ended[session.named.last_client] = session.named.name
            if len(self._ended) > ENDED_LIMIT:
                del self._ended[next(iter(self._ended))]

    def _find(
        self, session: SessionRecord | None, event: ListTasks | EndSession, *, any_key: bool
    ) -> tuple[SessionRecord | None, str]:
        """The session that a request means: the sender's own, or the named one if its key is right; else the reason.

        With `any_key` no key is needed.
        """
        if not event.session:
            is_named = session is not None and session.named is not None
            return (session, "") if is_named else (None, "this client's session has no name")
        found = self._by_name.get(event.session)
        right = found is not None and found.named is not None and compare_digest(found.named.key, event.key)
        if found is None and any_key:
            return None, f"there is no session {event.session!r}"
        if found is None or not (right or any_key):
            remedy = "a session of another key needs that key, or an operator's"
            return None, f"there is no session {event.session!r}, or it has another secret: {remedy}"
        return found, ""

    def forget(self, session: SessionRecord, now: float) -> None:
        """End a session: cancel its tasks, drop its outcomes and its objects."""
        named = session.named
        if named is None:
            return
        for task in list(named.tasks.values()):
            self._state.results.forget(task)
        self._session_ends.end(session, now)
        del self._by_name[named.name]
        self._detached.pop(session, None)
        self._to_confirm.pop(session, None)
        session.named = None
        self._state.out.append(SendToStorage(KeepSession(session.number, named.key, keep=False)))
        self._state.log(f"session {named.name} has ended", EventKind.CLIENT, subject=named.name)

    # --- restarts ---------------------------------------------------------------------------------------------------

    def _record(self, session: SessionRecord) -> None:
        if self._state.recorder is not None:
            self._state.recorder.session(session)

    def restored(self, now: float) -> None:
        """A journal has restored the named sessions of an earlier scheduler: none has a client."""
        for session in [session for session in self._state.sessions.values() if session.named is not None]:
            named = session.named
            if named is None:
                continue
            for task in list(named.tasks.values()):
                task.claimed, task.since = False, now
                if task.ended is None and task.id not in session.tasks:
                    self._state.results.forget(task)
            self._by_name[named.name] = session
            self._state.out.append(SendToStorage(KeepSession(session.number, named.key)))
            self.detach(session, now)

    # --- time -------------------------------------------------------------------------------------------------------

    def settle(self, now: float) -> None:
        """Confirm what is complete; drop old outcomes, and detached sessions in which nothing is left."""
        for session in [session for session in self._to_confirm if not self._is_resuming(session)]:
            for request in self._to_confirm.pop(session):
                self._state.send(session.peer, TaskList(request))
        for task in self._state.results.settle(now):
            session = self._by_name[task.session.name]
            if task.id in session.tasks:
                self._completion.released(session, [task.id], now)
            if self._state.recorder is not None:
                self._state.recorder.cancelled(session, [task.id])
        for session in [session for session in self._detached if not session.tasks and not session.named.tasks]:  # type: ignore[union-attr]
            self.forget(session, now)

    def due(self) -> float | None:
        """When the next outcome is too old."""
        return self._state.results.due()

    def check(self) -> None:
        """Assert the invariants; for tests."""
        self._state.results.check()
        for name, session in self._by_name.items():
            named = session.named
            assert named is not None and named.name == name and self._state.sessions[session.number] is session
            assert (named.detached_at is not None) == (not session.peer) == (session in self._detached)
            for task in session.records():
                listed = named.tasks.get(task.id)
                if task.state != DONE and (task.extra is None or not task.extra.intermediate):
                    assert listed is not None and listed.outcome is None, f"{task.id:x}"
                    assert session.peer or not listed.claimed


def _kept_for_consumers(session: SessionRecord, number: int) -> Outcome | None:
    """The outcome of a requested node that is not listed any more, but that other nodes still need."""
    extra = record.extra if (record := session.find(number)) is not None else None
    return extra.outcome if extra is not None and not extra.intermediate else None


def _was_received(session: SessionRecord, number: int) -> bool:
    """Whether an unlisted task was received: it is known, or it is an earlier node of an unfinished graph."""
    return number in session.tasks or any(graph.has_received(number) for graph in session.graphs.values())
