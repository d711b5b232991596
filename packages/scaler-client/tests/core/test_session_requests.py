"""What a client asks about its named session."""

from __future__ import annotations

from scaler_client.core.effects import SessionAnswered
from scaler_client.core.events import SessionRequested, TaskLabelled
from scaler_client.core.session_requests import SessionRequests
from scaler_protocol.errors import ScalerError, SchedulerLostError
from scaler_protocol.sessions import FUTURE_NAMES, ConfirmTasks, EndSession, LabelTask, ListTasks, TaskList


def test_an_answer_is_complete_with_its_last_piece() -> None:
    requests = SessionRequests()
    assert requests.ask(SessionRequested(ListTasks(1))) == ListTasks(1)
    pieces = [TaskList(1, 1, tasks=(5,)), TaskList(1, tasks=(6,))]
    assert [requests.answer(piece, all_sent=True) for piece in pieces] == [None, SessionAnswered(1, pieces)]
    assert requests.answer(pieces[1], all_sent=True) is None


def test_over_a_new_stream_all_is_asked_and_said_again() -> None:
    requests = SessionRequests()
    requests.ask(SessionRequested(ListTasks(1)))
    requests.answer(TaskList(1, 1, tasks=(5,)), all_sent=True)
    assert requests.label(TaskLabelled(5, "total")) == LabelTask(5, "total")
    assert requests.again() == [LabelTask(5, "total"), ListTasks(1)]
    answered = requests.answer(TaskList(1, tasks=(5,)), all_sent=True)
    assert answered == SessionAnswered(1, [TaskList(1, tasks=(5,))])


def test_the_newest_names_are_said_again() -> None:
    requests = SessionRequests()
    for task, name in ((5, "a"), (5, "b"), (6, "c"), (5, "a")):
        requests.label(TaskLabelled(task, name))
    assert requests.again() == [LabelTask(5, "b"), LabelTask(6, "c"), LabelTask(5, "a")]
    for number in range(FUTURE_NAMES):
        requests.label(TaskLabelled(number, f"name {number}"))
    again = requests.again()
    assert len(again) == FUTURE_NAMES and LabelTask(5, "a") not in again and LabelTask(0, "name 0") in again


def test_a_session_that_was_asked_to_end_is_ending_unless_that_fails() -> None:
    requests = SessionRequests()
    requests.ask(SessionRequested(ListTasks(1)))
    assert not requests.is_ending
    for failed in (
        lambda: requests.answer(TaskList(2, error="in use"), all_sent=True),
        lambda: requests.fail(SchedulerLostError("gone")),
    ):
        requests.ask(SessionRequested(EndSession(2)))
        assert requests.is_ending
        failed()
        assert not requests.is_ending
    requests.ask(SessionRequested(EndSession(3)))
    requests.answer(TaskList(3), all_sent=True)
    assert requests.is_ending


def test_errors_end_requests() -> None:
    requests, lost = SessionRequests(), SchedulerLostError("gone")
    requests.ask(SessionRequested(ListTasks(1)))
    requests.ask(SessionRequested(EndSession(2)))
    answered = requests.answer(TaskList(2, error="no such session"), all_sent=True)
    assert answered is not None and isinstance(answered.answer, ScalerError) and "no such" in str(answered.answer)
    assert requests.fail(lost) == [SessionAnswered(1, lost)] and requests.fail(lost) == []


def test_a_confirmation_is_asked_for_again_if_calls_were_sent_or_wait_meanwhile() -> None:
    requests = SessionRequests()
    assert requests.ask(SessionRequested(ConfirmTasks(1))) is None, "it follows the calls"
    assert requests.confirmations() == [ConfirmTasks(1)] and requests.confirmations() == []
    requests.calls_sent()
    assert requests.answer(TaskList(1), all_sent=True) is None
    assert requests.confirmations() == [ConfirmTasks(1)]
    assert requests.answer(TaskList(1), all_sent=False) is None
    assert requests.confirmations() == [ConfirmTasks(1)]
    requests.calls_sent()
    assert requests.again() == [], "a new stream begins with what was lost"
    assert requests.confirmations() == [ConfirmTasks(1)]
    assert requests.answer(TaskList(1), all_sent=True) == SessionAnswered(1, [TaskList(1)])


def test_a_confirmation_that_waits_fails_with_the_link() -> None:
    requests, lost = SessionRequests(), SchedulerLostError("gone")
    requests.ask(SessionRequested(ConfirmTasks(1)))
    assert requests.fail(lost) == [SessionAnswered(1, lost)] and requests.confirmations() == []
