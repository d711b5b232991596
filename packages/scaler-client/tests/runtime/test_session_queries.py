"""Threads that ask about the named session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scaler_client.core.effects import SessionAnswered
from scaler_client.core.events import SessionRequested
from scaler_client.runtime.blocking import BlockingSection
from scaler_client.runtime.mailbox import Mailbox
from scaler_client.runtime.session_queries import SessionQueries
from scaler_protocol.errors import ClientQuitError, SchedulerLostError
from scaler_protocol.sessions import EndSession, ListTasks, TaskList
from support.waiting import once


@pytest.fixture
def mailbox() -> Iterator[Mailbox[Any]]:
    made: Mailbox[Any] = Mailbox()
    yield made
    made.free()


def test_a_thread_waits_for_its_answer(mailbox: Mailbox[Any]) -> None:
    queries = SessionQueries(mailbox, BlockingSection(mailbox, None))
    asked = mailbox._entries
    answering = once(lambda: len(asked) == 1, lambda: queries.answer(SessionAnswered(1, [TaskList(1)])))
    assert queries.tasks() == [TaskList(1)]
    answering.join()
    error = SchedulerLostError("gone")
    answering = once(lambda: len(asked) == 2, lambda: queries.answer(SessionAnswered(2, error)))
    with pytest.raises(SchedulerLostError, match="gone"):
        queries.end_session()
    answering.join()
    assert mailbox.take() == [SessionRequested(ListTasks(1)), SessionRequested(EndSession(2))]


def test_the_end_of_the_client_ends_all_waits(mailbox: Mailbox[Any]) -> None:
    queries = SessionQueries(mailbox, BlockingSection(mailbox, None))
    ending = once(lambda: mailbox._entries, lambda: queries.end(None))
    with pytest.raises(ClientQuitError):
        queries.tasks()
    ending.join()
