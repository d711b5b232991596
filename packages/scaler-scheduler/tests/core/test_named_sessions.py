"""Sessions that outlive their clients, as the scheduler sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Refused, Role, Welcome
from scaler_protocol.ids import count_of, function_id
from scaler_protocol.messages import Done, Group, NeedInputs, NeedTasks, Reconcile, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_protocol.sessions import ConfirmTasks, EndSession, KeepSession, LabelTask, ListTasks, TaskList
from scaler_protocol.storage import CopyReplicas, DeleteObjects
from scaler_scheduler.core.state import SendToStorage

if TYPE_CHECKING:
    from conftest import SchedulerDriver

NAME, KEY = "nightly", b"k" * 32
GONE = PeerLost("gone")
GIVEN: dict[int, dict[int, int]] = {}
"""By driver, the runs of its tasks."""


def attach(driver: SchedulerDriver, name: bytes = b"client") -> bytes:
    return driver.client(name, session_name=NAME, session_key=KEY)


def welcome(driver: SchedulerDriver, name: bytes, key: bytes = KEY) -> Welcome | Refused:
    peer = name.ljust(16, b".")
    return driver.core.admit(Hello(Role.CLIENT, peer, 1, session=name[0], session_name=NAME, session_key=key))


def to_storage(driver: SchedulerDriver) -> list[KeepSession | DeleteObjects | CopyReplicas]:
    return [each.message for each in driver.others if isinstance(each, SendToStorage)]


def finish(driver: SchedulerDriver, agent: bytes, tasks: list[int], stored: bytes = b"") -> None:
    """These tasks have a value, of all that the agent was ever given."""
    given = GIVEN.setdefault(id(driver), {})
    given.update(driver.runs(agent))
    runs = [given[task] for task in tasks]
    results = Payloads([stored or b"r"] * len(tasks))
    profiles = Profile(1, 1, 1, 1, 0, 1).packed() * len(tasks)
    statuses = [Status.VALUE] * len(tasks)
    positions = list(range(len(tasks))) if stored else ()
    driver.feed(agent, Done(tasks, statuses, results, runs=runs, stored=positions, profiles=profiles, agents=("w",)))


def listed(driver: SchedulerDriver, peer: bytes, query: ListTasks) -> TaskList:
    driver.feed(peer, query)
    [answer] = driver.take(peer, TaskList)
    return answer


def test_another_client_is_refused_while_the_first_one_is_connected(driver: SchedulerDriver) -> None:
    first = attach(driver)
    refused = welcome(driver, b"other")
    assert isinstance(refused, Refused) and refused.in_use
    assert isinstance(welcome(driver, b"client"), Welcome), "it connects again"
    stranger = welcome(driver, b"other", b"x" * 32)
    assert isinstance(stranger, Refused) and not stranger.in_use
    task = driver.submit(first)[0]
    driver.feed(first, GONE)
    again = welcome(driver, b"other")
    assert isinstance(again, Welcome) and (again.session, again.ids_from) == (b"c"[0], count_of(task) + 1)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_new_session_has_no_number_of_another_one(driver: SchedulerDriver, is_named: bool) -> None:
    """It would take its place, with all tasks of the other client."""
    victim = attach(driver) if is_named else driver.client()
    (task,) = driver.submit(victim)
    if is_named:
        driver.feed(victim, GONE)
    thief = Hello(Role.CLIENT, b"t" * 16, 1, session=victim[0], session_name="another", session_key=KEY)
    answer = driver.core.admit(thief)
    assert isinstance(answer, Refused) and "is taken" in answer.reasons[0]
    assert driver.core.state.entry(task) is not None


def test_a_session_without_tasks_ends_with_its_client(driver: SchedulerDriver) -> None:
    client = attach(driver)
    driver.feed(client, GONE)
    assert not driver.core.state.sessions
    assert to_storage(driver) == [KeepSession(b"c"[0], KEY), KeepSession(b"c"[0], KEY, keep=False)]


def test_outcomes_are_kept_and_sent_to_the_client_that_claims_them(driver: SchedulerDriver) -> None:
    client, agent = attach(driver), driver.agent(workers=4)
    tasks = driver.submit(client, 3)
    finish(driver, agent, tasks[:1])
    assert driver.take(client, Done)
    driver.feed(client, GONE)
    finish(driver, agent, tasks[1:2])
    other = attach(driver, b"d")
    assert listed(driver, other, ListTasks(5)).claimed == (False, False, False)
    driver.feed(other, Reconcile(wanted=tasks))
    assert [task for done in driver.take(other, Done) for task in done.tasks] == tasks[:2]
    finish(driver, agent, tasks[2:])
    assert [task for done in driver.take(other, Done) for task in done.tasks] == tasks[2:]
    answer = listed(driver, other, ListTasks(6, results=True))
    assert (answer.tasks, answer.states, answer.claimed) == (tuple(tasks), (3, 3, 3), (True,) * 3)
    assert len(answer.results) == 3 and answer.error == ""


def test_what_is_not_known_is_asked_for_also_if_later_tasks_were_received(driver: SchedulerDriver) -> None:
    client, agent = attach(driver), driver.agent()
    first, second, third = driver.submit(client, 3)
    finish(driver, agent, [first])
    finish(driver, agent, [second])
    finish(driver, agent, [third])
    driver.later(driver.config.result_retention_seconds + 1)
    driver.take(client, Done)
    driver.feed(client, Reconcile(wanted=[first, third, third + 1]))
    driver.later(1.0)
    assert [list(need.tasks) for need in driver.take(client, NeedTasks)] == [[first, third, third + 1]]


def test_a_confirmation_follows_the_question_for_what_is_missing(driver: SchedulerDriver) -> None:
    client, agent = attach(driver), driver.agent()
    [task] = driver.submit(client)
    driver.feed(client, ConfirmTasks(1))
    assert driver.take(client, TaskList) == [TaskList(1)]
    driver.feed(client, Reconcile(wanted=[task, task + 1]))
    driver.feed(client, ConfirmTasks(2))
    assert [list(need.tasks) for need in driver.take(client, NeedTasks)] == [[task + 1]]
    assert driver.take(client, TaskList) == [TaskList(2)]
    finish(driver, agent, [task])


def test_only_clients_of_named_sessions_ask_for_confirmations(driver: SchedulerDriver) -> None:
    with pytest.raises(ProtocolError, match="only a client with a named session"):
        driver.core.handle(driver.client(b"anonymous"), ConfirmTasks(1), driver.now)


def test_an_input_that_the_client_was_asked_for_comes_from_its_task_when_the_client_is_gone(
    driver: SchedulerDriver,
) -> None:
    client, agent = attach(driver), driver.agent()
    [known] = driver.submit(client)
    behind, group, call = known + 2, (Group(function_id(b"body")),), Payloads([b"call"])
    driver.feed(client, Submit(group, [behind], call, dependents=[0], needs=[known + 1]))
    assert driver.take(client, NeedInputs)
    [needed] = driver.submit(client)
    driver.feed(client, GONE)
    finish(driver, agent, [known])
    finish(driver, agent, [needed])
    assert behind in driver.runs(agent)


def test_results_in_storage_are_deleted_by_the_scheduler_when_they_are_dropped(driver: SchedulerDriver) -> None:
    client, agent = attach(driver), driver.agent()
    [task] = driver.submit(client)
    finish(driver, agent, [task], b"o" * 24)
    driver.feed(client, GONE)
    driver.later(driver.config.result_retention_seconds + 1)
    assert DeleteObjects([b"o" * 16], b"c"[0]) in to_storage(driver)
    assert not driver.core.state.sessions and driver.core.due() is None


def test_names_belong_to_tasks_of_the_own_named_session(driver: SchedulerDriver) -> None:
    client, anonymous = attach(driver), driver.client(b"anonymous")
    [task], [foreign] = driver.submit(client), driver.submit(anonymous)
    driver.feed(client, LabelTask(task, "total"))
    assert listed(driver, client, ListTasks(1)).labels == ("total",)
    for peer, other in ((client, foreign), (anonymous, foreign)):
        with pytest.raises(ProtocolError, match="names its tasks"):
            driver.feed(peer, LabelTask(other, "x"))


def test_others_need_the_key_and_operators_do_not(driver: SchedulerDriver) -> None:
    client, stranger, operator = attach(driver), driver.client(b"stranger"), driver.client(b"o", role=Role.OPERATOR)
    driver.submit(client)
    assert "another secret: a session of another key needs" in listed(driver, stranger, ListTasks(1, NAME, b"x")).error
    assert listed(driver, operator, ListTasks(1, "nobody's")).error == 'there is no session "nobody\'s"'
    assert "has no name" in listed(driver, stranger, ListTasks(1)).error
    assert len(listed(driver, stranger, ListTasks(1, NAME, KEY)).tasks) == 1
    assert len(listed(driver, operator, ListTasks(1, NAME)).tasks) == 1
    driver.feed(operator, EndSession(2, NAME))
    [answer] = driver.take(operator, TaskList)
    assert "is in use" in answer.error
    driver.feed(client, GONE)
    driver.feed(operator, EndSession(3, NAME))
    [answer] = driver.take(operator, TaskList)
    assert not answer.error and b"c"[0] not in driver.core.state.sessions


def test_the_session_of_a_client_that_was_cut_off_can_be_ended_and_the_client_hears_so(driver: SchedulerDriver) -> None:
    client, operator = attach(driver), driver.client(b"o", role=Role.OPERATOR)
    driver.submit(client)
    driver.cut_off.add(client)
    driver.feed(operator, EndSession(1, NAME))
    [answer] = driver.take(operator, TaskList)
    assert not answer.error and not driver.core.state.sessions
    driver.cut_off.clear()
    refused = welcome(driver, b"client")
    assert isinstance(refused, Refused) and "was ended while this client was away" in refused.reasons[0]
    driver.feed(client, GONE)
    assert attach(driver, b"other")[0] in driver.core.state.sessions


def test_a_client_ends_its_session_and_leaves(driver: SchedulerDriver) -> None:
    client, agent = attach(driver), driver.agent()
    tasks = driver.submit(client, 3)
    finish(driver, agent, tasks[:1])
    driver.feed(client, EndSession(1))
    driver.feed(client, GONE)
    assert not driver.core.state.sessions and not driver.core.state.results.bytes
    assert to_storage(driver)[-1] == KeepSession(b"c"[0], KEY, keep=False)


def test_a_client_that_loses_its_connection_while_it_ends_its_session_comes_back_to_hear_so(
    driver: SchedulerDriver,
) -> None:
    client = attach(driver)
    driver.submit(client)
    driver.feed(client, EndSession(1))
    again = welcome(driver, b"client")
    assert isinstance(again, Welcome) and again.session == client[0]
    other = attach(driver, b"other")
    assert isinstance(welcome(driver, b"client"), Welcome)
    hello = Hello(Role.CLIENT, client, 1, session=client[0], session_name=NAME, session_key=KEY, epoch=2)
    driver.feed(client, PeerJoined(hello, True))
    assert [session.peer for session in driver.core.state.sessions.values()] == [other]
    driver.feed(client, PeerLost("left", farewell=True))
    assert [session.peer for session in driver.core.state.sessions.values()] == [other]
