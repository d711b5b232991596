"""Threads that wait for the list of connected workers."""

from __future__ import annotations

from typing import Any

import pytest

from scaler_client.core.effects import WorkersListed
from scaler_client.core.events import WorkersRequested, WorkersUnwanted
from scaler_client.runtime.blocking import BlockingSection
from scaler_client.runtime.mailbox import Mailbox
from scaler_client.runtime.worker_lists import WorkerLists
from scaler_protocol.capacity import WorkerList
from scaler_protocol.errors import ClientQuitError, SchedulerLostError
from support.waiting import once


@pytest.fixture
def mailbox() -> Any:
    mailbox: Mailbox[Any] = Mailbox()
    yield mailbox
    mailbox.close(ClientQuitError())
    mailbox.free()


@pytest.fixture
def lists(mailbox: Mailbox[Any]) -> WorkerLists:
    return WorkerLists(mailbox, BlockingSection(mailbox, None))


def test_after_the_time_limit_the_same_request_asks_for_what_there_is(
    lists: WorkerLists, mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler_client.runtime.worker_lists.LAST_SECONDS", 0.01)
    assert lists.ask(3, 0.01) is None
    assert mailbox.take() == [WorkersRequested(0, 3), WorkersRequested(0, 0), WorkersUnwanted(0)]
    lists.answer(WorkersListed(0, WorkerList(0)))  # too late


def test_an_interrupted_thread_takes_its_request_back(
    lists: WorkerLists, mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("scaler_io.thread_event.ThreadEvent.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lists.ask(3, None)
    assert mailbox.take() == [WorkersRequested(0, 3), WorkersUnwanted(0)]


def test_an_error_is_raised_as_a_new_one_in_each_thread(lists: WorkerLists, mailbox: Mailbox[Any]) -> None:
    error = SchedulerLostError("gone")
    answering = once(lambda: mailbox._entries, lambda: lists.answer(WorkersListed(0, error)))
    with pytest.raises(SchedulerLostError, match="gone") as raised:
        lists.ask(1, 20)
    answering.join()
    assert raised.value is not error and raised.value.__cause__ is error
    assert mailbox.take() == [WorkersRequested(0, 1)]


def test_the_end_of_the_client_ends_all_waits_and_later_ones_are_refused(
    lists: WorkerLists, mailbox: Mailbox[Any]
) -> None:
    def close() -> None:
        mailbox.close(ClientQuitError())
        lists.end(None)

    closing = once(lambda: mailbox._entries, close)
    with pytest.raises(ClientQuitError):
        lists.ask(1, None)
    closing.join()
    with pytest.raises(ClientQuitError):
        lists.ask(1, None)
