"""ClientSession, with a scheduler that is a list of answers; with real ones: tests/test_sessions.py."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaler_client.api.client_session import ClientSession
from scaler_client.core.events import FuturesAdopted, TaskLabelled
from scaler_client.futures.futures import ScalerFuture
from scaler_client.runtime.blocking import BlockingSection
from scaler_client.runtime.mailbox import Mailbox
from scaler_client.runtime.task_ids import TaskIds
from scaler_protocol.errors import ClientForkedError, ScalerError
from scaler_protocol.ids import first_task
from scaler_protocol.sessions import TaskList

FIRST = first_task(5)


class FakeIoThread:
    """What a ClientSession uses of an IoThread; `lists` are the answers."""

    def __init__(self) -> None:
        self.ids, self.mailbox = TaskIds(5), Mailbox[Any]()
        self.lists: tuple[TaskList, ...] = ()
        self.session_queries = self
        self.waiting = BlockingSection(self.mailbox, None)
        self.ends = 0
        self.meanwhile: Callable[[], object] = bool
        """What a signal handler does while a request waits."""

    def tasks(self) -> tuple[TaskList, ...]:
        """As SessionQueries."""
        self.meanwhile()
        return self.lists

    def end_session(self) -> None:
        """As SessionQueries: only the first request finds a session."""
        threading.Event().wait(0.01)  # other threads come meanwhile
        self.ends += 1
        if self.ends > 1:
            raise ScalerError("this client's session has no name")

    def stop(self) -> None:
        """As IoThread."""


class FakeWriter:
    """What a ClientSession uses of a CallWriter."""

    load = dump_object = staticmethod(bytes)


def listed(*rows: tuple[int, str, bool]) -> TaskList:
    """A list of tasks: count, name, and whether this client has claimed it."""
    tasks, labels, claimed = zip(*((FIRST + count, label, taken) for count, label, taken in rows), strict=True)
    return TaskList(1, tasks=tasks, labels=labels, claimed=claimed)


def session_of(io: FakeIoThread) -> ClientSession:
    return ClientSession("nightly", io, io, FakeWriter())  # type: ignore[arg-type]


def adopted(io: FakeIoThread) -> list[int]:
    events = [event for event in io.mailbox.take() if isinstance(event, FuturesAdopted)]
    return [future.task_id - FIRST for event in events for future in event.futures]


@pytest.fixture
def io() -> Iterator[FakeIoThread]:
    made = FakeIoThread()
    yield made
    made.mailbox.free()


def test_only_calls_of_earlier_clients_have_futures_and_the_same_each_time(io: FakeIoThread) -> None:
    io.lists = (listed((1, "", False), (2, "own", True)), listed((3, "total", False)))
    session = session_of(io)
    futures = session.futures()
    assert [future.task_id - FIRST for future in futures] == [1, 3] == adopted(io)
    io.lists = (listed((1, "", True), (2, "own", True), (3, "total", True)),)
    assert session.futures() == futures and session.future("total") is futures[1] and adopted(io) == []


def test_one_future_is_found_by_each_of_its_names(io: FakeIoThread) -> None:
    io.lists = (listed((1, "a", False), (2, "b", False), (2, "newest", False), (3, "mine", True)),)
    session = session_of(io)
    assert session.future("b").task_id == FIRST + 2 and adopted(io) == [2]
    assert session.future("newest") is session.future("b")
    assert [future.task_id - FIRST for future in session.futures()] == [1, 2]
    for name in ("mine", "c"):
        with pytest.raises(KeyError, match="there are: 'a', 'b', 'newest'"):
            session.future(name)


def test_futures_are_published(io: FakeIoThread) -> None:
    session = session_of(io)
    future, foreign = (ScalerFuture[Any](io, task, session._group, b"") for task in (FIRST + 1, first_task(6) + 1))  # type: ignore[arg-type]
    session.publish("total", future)
    assert session.future("total") is future and io.mailbox.take() == [TaskLabelled(FIRST + 1, "total")]
    for name, wrong in (
        ("x", foreign),
        ("", future),
        (" ", future),
        ("a\x1b[2J", future),
        ("x" * 300, future),
        ("x", 7),
    ):
        with pytest.raises(ValueError, match=r"name|no future of a call of session 'nightly'"):
            session.publish(name, wrong)  # type: ignore[arg-type]


def test_of_many_names_the_nearest_are_told(io: FakeIoThread) -> None:
    io.lists = (listed(*((count, f"part {count}", False) for count in range(2000))),)
    session = session_of(io)
    with pytest.raises(KeyError, match=r"'part 1234'.* and 1,990 more") as raised:
        session.future("prt 1234")
    assert len(str(raised.value)) < 400
    with pytest.raises(KeyError, match=r"there are: 'part 0', .* and 1,990 more"):
        session.future("?")
    with pytest.raises(ValueError, match=r"name is \[\], not a text"):
        session.future([])  # type: ignore[arg-type]


def test_a_session_is_ended_once_by_many_threads(io: FakeIoThread) -> None:
    session, failed = session_of(io), list[Exception]()

    def end() -> None:
        try:
            session.end()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=end) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert io.ends == 1 and not failed


def test_a_signal_handler_may_use_the_session_in_the_middle_of_a_request(io: FakeIoThread) -> None:
    io.lists = (listed((1, "", False)),)
    session, found = session_of(io), list[ScalerFuture[Any]]()

    def handle() -> None:
        io.meanwhile = bool
        found.extend(session.futures())
        session.publish("interrupted", found[0])

    io.meanwhile = handle
    thread = threading.Thread(target=lambda: found.extend(session.futures()), daemon=True)
    thread.start()
    thread.join(10.0)
    assert len(found) == 2 and found[0] is found[1], "there is one future of a task"


def test_a_forked_process_gets_an_error_although_another_thread_was_asking(io: FakeIoThread) -> None:
    session, failed = session_of(io), list[BaseException]()
    asking, answered = threading.Event(), threading.Event()

    def wait() -> None:
        asking.set()
        answered.wait(10.0)

    io.meanwhile = wait
    other = threading.Thread(target=session.futures, daemon=True)
    other.start()
    assert asking.wait(10.0)
    io.waiting.forked = True
    for call in (session.futures, session.end, lambda: session.future("x")):
        thread = threading.Thread(target=lambda call=call: failed.append(_error_of(call)), daemon=True)
        thread.start()
        thread.join(5.0)
    answered.set()
    other.join(10.0)
    assert [type(error) for error in failed] == [ClientForkedError] * 3


def _error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception, match=r".") as raised:
        call()
    return raised.value


def test_a_session_stays_with_its_client(io: FakeIoThread) -> None:
    with pytest.raises(TypeError, match="stays with its client; pass the name of the session"):
        pickle.dumps(session_of(io))
