"""Threads that ask about the named session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scaler_client.core.effects import SessionAnswered
from scaler_client.core.events import SessionRequested
from scaler_client.runtime.blocking import BlockingSection
from scaler_client.runtime.mailbox import Mailbox
from scaler_client.runtime.session_queries import SessionQueries
from scaler_protocol.errors import ClientQuitError, SchedulerLostError
from scaler_protocol.sessions import EndSession, ListTasks, TaskList


@pytest.fixture
def mailbox() -> Iterator[Mailbox[Any]]:
    made: Mailbox[Any] = Mailbox()
    yield made
    made.free()


def after_a_moment(act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.01, act)
    timer.start()
    return timer


def test_a_thread_waits_for_its_answer(mailbox: Mailbox[Any]) -> None:
    queries = SessionQueries(mailbox, BlockingSection(mailbox, None))
    timer = after_a_moment(lambda: queries.answer(SessionAnswered(1, [TaskList(1)])))
    assert queries.tasks() == [TaskList(1)]
    timer.join()
    timer = after_a_moment(lambda: queries.answer(SessionAnswered(2, SchedulerLostError("gone"))))
    with pytest.raises(SchedulerLostError, match="gone"):
        queries.end_session()
    timer.join()
    assert mailbox.take() == [SessionRequested(ListTasks(1)), SessionRequested(EndSession(2))]


def test_the_end_of_the_client_ends_all_waits(mailbox: Mailbox[Any]) -> None:
    queries = SessionQueries(mailbox, BlockingSection(mailbox, None))
    timer = after_a_moment(lambda: queries.end(None))
    with pytest.raises(ClientQuitError):
        queries.tasks()
    timer.join()
