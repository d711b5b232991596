"""A scheduler that was started again, and agents that come back: nothing is lost, left over or charged wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import ProtocolError, TaskTimeoutError, WorkerDiedError, describe, restore
from scaler_protocol.handshake import Hello, Role, Welcome
from scaler_protocol.ids import first_task, function_id, session_of
from scaler_protocol.messages import Group, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core import recovery

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
OLDER = 3
"""An incarnation before the driver's."""
PARENT, OTHER = (99 << 32) + 1, (99 << 32) + 2
CHILD, SIBLING = first_task(2**31 + 200) + 1, first_task(2**31 + 200) + 2


def submit(task: int, parent: int = 0) -> Submit:
    bodies = Payloads([b"body"])
    return Submit(
        (Group(FUNCTION),),
        (task,),
        Payloads([b"c"]),
        functions=(FUNCTION,),
        names=("n",),
        bodies=bodies,
        parent=parent,
    )


def end_recovery(driver: SchedulerDriver) -> None:
    driver.later(driver.config.recovery_seconds)


def test_a_parent_finds_its_children_again(driver: SchedulerDriver) -> None:
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(running=(PARENT, CHILD), runs=(55, 56)), messages.Blocked((55,), (True,)))
    driver.feed(agent, messages.Reconcile(wanted=(CHILD, SIBLING)))
    client = driver.client(b"c", peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    assert driver.core.state.agents[agent].active == 1, "the parent is blocked as it was"
    driver.done(agent, {CHILD: 56}, result=b"one")
    assert driver.outcomes(agent) == {CHILD: (Status.VALUE, b"one")}
    driver.feed(agent, messages.Release((CHILD,)))
    end_recovery(driver)
    assert [tuple(need.tasks) for need in driver.take(agent, messages.NeedTasks)] == [(SIBLING,)]
    driver.feed(agent, submit(SIBLING, parent=55))
    assert list(driver.runs(agent)) == [SIBLING]
    driver.done(agent, {PARENT: 55})
    assert list(driver.core.state.sessions) == [99], "its children and their session end with it"


def test_what_a_run_submits_before_its_client_is_back_is_not_cancelled(driver: SchedulerDriver) -> None:
    """The parent is claimed, but nobody has said yet that it is wanted: its children are asked for after that."""
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(running=(PARENT,), runs=(55,)), submit(CHILD, parent=55))
    driver.feed(agent, messages.Blocked((55,), (True,)))
    assert not driver.outcomes(agent)
    client = driver.client(b"c", peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    end_recovery(driver)
    assert [tuple(need.tasks) for need in driver.take(agent, messages.NeedTasks)] == [(CHILD,)]
    driver.feed(agent, submit(CHILD, parent=55))
    driver.done(agent, driver.runs(agent), result=b"one")
    assert driver.outcomes(agent) == {CHILD: (Status.VALUE, b"one")}


def test_what_a_run_submits_that_nobody_wants_is_cancelled(driver: SchedulerDriver) -> None:
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(running=(PARENT,), runs=(55,)), submit(CHILD, parent=55))
    end_recovery(driver)
    assert [list(withdraw.runs) for withdraw in driver.take(agent, messages.Withdraw)] == [[55]]
    assert [tuple(need.tasks) for need in driver.take(agent, messages.NeedTasks)] == [(CHILD,)]
    driver.feed(agent, submit(CHILD, parent=55))
    assert driver.outcomes(agent) == {CHILD: (Status.CANCELLED, b"")}
    assert not driver.core.state.sessions


def test_a_claimed_run_may_submit_only_so_much(driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "REPORTED_LIMIT", 1)
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(running=(PARENT,), runs=(55,)))
    driver.feed(agent, submit(CHILD, parent=55), submit(SIBLING, parent=55))
    assert driver.outcomes(agent) == {SIBLING: (Status.CANCELLED, b"")}


def test_a_child_whose_parent_is_over_is_dropped(driver: SchedulerDriver) -> None:
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(running=(CHILD,), runs=(56,)), messages.Reconcile(wanted=(CHILD,)))
    end_recovery(driver)
    driver.feed(agent, submit(CHILD, parent=55))
    assert driver.outcomes(agent) == {CHILD: (Status.CANCELLED, b"")}
    assert [list(withdraw.runs) for withdraw in driver.take(agent, messages.Withdraw)] == [[56]]
    assert not driver.core.state.sessions


def test_an_agent_that_was_to_send_an_outcome_again_dies(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=OLDER), driver.agent(peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    driver.feed(agent, messages.Reconcile(finished=(PARENT,)))
    driver.feed(agent, PeerLost("killed"))
    assert driver.take(client, messages.NeedTasks)


def test_an_agent_that_was_to_send_an_outcome_again_has_dropped_it(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=OLDER), driver.agent(peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    driver.feed(agent, messages.Reconcile(finished=(PARENT,)))
    end_recovery(driver)
    assert driver.take(client, messages.NeedTasks)


def test_a_kept_failure_counts(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=OLDER), driver.agent(peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    driver.feed(agent, messages.Reconcile(finished=(PARENT,)))
    driver.done(agent, {PARENT: 44}, Status.FAILED, describe(TaskTimeoutError("too slow")))
    status, payload = driver.outcomes(client)[PARENT]
    assert status == Status.FAILED and isinstance(restore(payload), TaskTimeoutError)


def test_an_agent_is_asked_once_for_all_outcomes_that_a_client_wants(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=OLDER), driver.agent(peer_incarnation=OLDER)
    wanted = tuple(range(PARENT, PARENT + 20))
    driver.feed(client, messages.Reconcile(wanted=wanted[:10]))
    driver.feed(agent, messages.Reconcile(finished=wanted))
    driver.feed(client, messages.Reconcile(wanted=wanted[10:]))
    assert [tuple(resend.tasks) for resend in driver.take(agent, messages.Resend)] == [wanted[:10], wanted[10:]]


def test_outcomes_that_nobody_wants_are_forgotten(driver: SchedulerDriver) -> None:
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(finished=(PARENT, OTHER)))
    end_recovery(driver)
    assert [list(release.tasks) for release in driver.take(agent, messages.Release)] == [[PARENT, OTHER]]


def test_an_agent_that_claims_too_much_is_not_believed(
    driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it takes the scheduler's memory: nobody may ever ask for what it names."""
    monkeypatch.setattr(recovery, "REPORTED_LIMIT", 2)
    agent = driver.agent(peer_incarnation=OLDER)
    driver.feed(agent, messages.Reconcile(running=range(11, 14), runs=(55, 56, 57), finished=range(1, 4)))
    assert [list(release.tasks) for release in driver.take(agent, messages.Release)] == [[3]]
    assert [list(withdraw.runs) for withdraw in driver.take(agent, messages.Withdraw)] == [[57]]


def test_an_agent_reports_in_as_many_messages_as_it_takes(driver: SchedulerDriver) -> None:
    """By a journal it has both tasks; it keeps their outcomes, and is given no work before it has said all."""
    agent = b"agent".ljust(16, b".")
    driver.core._recovery.restored({agent}, driver.now)
    client = driver.client(b"c", peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT, OTHER)))
    driver.agent(peer_incarnation=OLDER)
    new = OTHER + 1
    driver.feed(client, submit(new))
    driver.feed(agent, messages.Reconcile(finished=(PARENT,), more=True))
    assert not driver.runs(agent)
    driver.feed(agent, messages.Reconcile(finished=(OTHER,)))
    assert driver.runs(agent).keys() == {new}
    assert [list(resend.tasks) for resend in driver.take(agent, messages.Resend)] == [[PARENT], [OTHER]]


def test_a_wanted_task_that_is_submitted_before_its_agent_has_reported_is_one_task(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=OLDER), driver.agent(peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    driver.feed(client, submit(PARENT))
    driver.feed(agent, messages.Reconcile(finished=(PARENT,)))
    assert [list(resend.tasks) for resend in driver.take(agent, messages.Resend)] == [[PARENT]]


def test_what_is_cancelled_in_the_recovery_period_is_not_adopted(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=OLDER), driver.agent(peer_incarnation=OLDER)
    driver.feed(client, messages.Reconcile(wanted=(PARENT,)), messages.Cancel((PARENT,)))
    driver.feed(agent, messages.Reconcile(running=(PARENT,), runs=(55,)))
    end_recovery(driver)
    assert [list(withdraw.runs) for withdraw in driver.take(agent, messages.Withdraw)] == [[55]]


def test_of_two_agents_that_keep_an_outcome_one_is_told_at_once(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    driver.done(agent, driver.runs(agent))
    other = driver.agent(b"other")
    driver.feed(other, messages.Reconcile(finished=(task,)))
    assert [list(release.tasks) for release in driver.take(other, messages.Release)] == [[task]]
    driver.feed(client, messages.Release((task,)))
    driver.later(1.0)
    assert [list(release.tasks) for release in driver.take(agent, messages.Release)] == [[task]]


@pytest.mark.parametrize("given_up", [False, True])
def test_a_run_that_comes_back_with_its_agent_was_not_lost(driver: SchedulerDriver, given_up: bool) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    (run,) = driver.runs(agent).values()
    for epoch in range(2, 6):
        if given_up:
            driver.feed(agent, PeerLost("silent"))
        hello = Hello(Role.AGENT, agent, 1, epoch=epoch, peer_incarnation=driver.incarnation, workers=1, queue_size=10)
        driver.feed(agent, PeerJoined(hello, False))
        assert not driver.runs(agent), "it is still to say what it runs"
        driver.feed(agent, messages.Reconcile(running=(task,), runs=(run,)))
    driver.feed(agent, PeerLost("it ends", farewell=True))
    driver.agent(b"other")
    assert [list(again.attempts) for again in driver.take(b"other".ljust(16, b"."), messages.Run)] == [[2]]
    driver.agent(agent.rstrip(b"."), peer_incarnation=driver.incarnation)
    driver.done(agent, {task: run})
    assert driver.outcomes(client) == {task: (Status.VALUE, b"r")}


def test_a_task_that_kills_hosts_before_they_can_report_it_is_charged(driver: SchedulerDriver) -> None:
    client = driver.client()
    (task,) = driver.submit(client)
    for turn in range(3):
        agent = driver.agent(b"agent%d" % turn)
        assert list(driver.runs(agent)) == [task]
        driver.feed(agent, PeerLost("killed"))
    status, payload = driver.outcomes(client)[task]
    assert status == Status.FAILED and isinstance(restore(payload), WorkerDiedError)


def test_grandchildren_belong_to_the_client(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=3)
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    (child,) = driver.submit(agent, parent=runs[parent], session=2**31 + 200)
    runs |= driver.runs(agent)
    (grandchild,) = driver.submit(agent, parent=runs[child], session=2**31 + 201)
    driver.feed(agent, messages.Output((grandchild,), (1,), Payloads([b"hello"])))
    assert driver.take(client, messages.Output)
    driver.feed(client, messages.Cancel((parent,)))
    assert list(driver.core.state.sessions) == [client[0]]


@pytest.mark.parametrize("behind", [0, 3])
def test_a_run_that_comes_back_and_is_lost_again_runs_once(driver: SchedulerDriver, behind: int) -> None:
    client, agent = driver.client(), driver.agent(b"back")
    (task,) = driver.submit(client)
    (run,) = driver.runs(agent).values()
    others = driver.submit(client, behind) if behind else []
    driver.feed(agent, PeerLost("gone", farewell=True))
    driver.agent(b"back", peer_incarnation=driver.incarnation)
    driver.feed(agent, messages.Reconcile(running=(task,), runs=(run,)))
    driver.feed(agent, PeerLost("gone", farewell=True))
    other = driver.agent(b"other", workers=4)
    given = [task for message in driver.take(other, messages.Run) for task in message.tasks]
    assert given == [task, *others] and driver.core.state.waiting.count == 0


def test_a_client_that_comes_back_under_its_number(driver: SchedulerDriver) -> None:
    for _ in range(3):
        client = driver.client()
        driver.submit(client)
        driver.submit(client, priority=1)
        driver.agent()
        driver.feed(client, PeerLost("left"))


def test_the_last_of_two_agents_is_not_compared_again_and_again(driver: SchedulerDriver) -> None:
    client, one, two = driver.client(), driver.agent(b"one"), driver.agent(b"two")
    driver.submit(client, 40)
    driver.later(1.0)
    driver.done(one, driver.runs(one), seconds=0.05)
    driver.later(1.0)
    driver.feed(two, PeerLost("killed"))
    driver.later(1.0)
    due = driver.core.due()
    assert due is None or due > driver.now


def test_the_session_of_a_task_on_another_agent_is_not_the_senders(driver: SchedulerDriver) -> None:
    driver.client(b"c")
    agent = driver.agent()
    with pytest.raises(ProtocolError):
        driver.feed(agent, messages.Reconcile(wanted=(PARENT,)))


def test_an_agent_has_no_session_of_a_client(driver: SchedulerDriver) -> None:
    """After a restart it knows the number, and would keep the client from coming back."""
    agent = driver.agent(b"a", workers=2, peer_incarnation=OLDER)
    with pytest.raises(ProtocolError, match="one of clients"):
        driver.feed(agent, messages.Reconcile(wanted=(PARENT,)))
    driver.feed(agent, messages.Reconcile())
    (task,) = driver.submit(driver.client(b"x"))
    with pytest.raises(ProtocolError, match="one of clients"):
        driver.feed(agent, submit(PARENT, parent=driver.runs(agent)[task]))
    client = Hello(Role.CLIENT, b"c".ljust(16, b"."), 1, session=session_of(PARENT), peer_incarnation=OLDER)
    assert isinstance(driver.core.admit(client), Welcome)


def test_an_agent_ends_no_run_of_a_client_that_has_lost_its_connection(driver: SchedulerDriver) -> None:
    """The client names its tasks again, but this scheduler has made their runs."""
    client, agent, liar = driver.client(b"c"), driver.agent(b"a"), driver.agent(b"liar", peer_incarnation=OLDER)
    (task,) = driver.submit(client)
    driver.client(b"c")
    driver.feed(client, messages.Reconcile(wanted=(task,)))
    driver.feed(liar, messages.Reconcile())
    driver.done(liar, {task: 55}, result=b"forged")
    assert not driver.outcomes(client)
    driver.done(agent, driver.runs(agent))
    assert driver.outcomes(client) == {task: (Status.VALUE, b"r")}


def test_an_agent_ends_no_run_that_it_was_not_given(driver: SchedulerDriver) -> None:
    client, agent, liar = driver.client(b"c"), driver.agent(b"a"), driver.agent(b"liar", peer_incarnation=OLDER)
    (task,) = driver.submit(client)
    found = {peer: driver.runs(peer) for peer in (agent, liar)}
    owner = next(peer for peer, runs in found.items() if runs)
    other = liar if owner is agent else agent
    run = found[owner][task]
    for claimed in (run, 55):  # the run of another agent, and one of an earlier scheduler
        driver.done(other, {task: claimed}, result=b"forged")
        driver.feed(other, messages.Reconcile(running=(task,), runs=(claimed,)))
    assert not driver.outcomes(client)
    driver.done(owner, {task: run}, result=b"true")
    assert driver.outcomes(client) == {task: (Status.VALUE, b"true")}


def test_a_returning_agent_ends_no_task_that_was_submitted_after_the_restart(driver: SchedulerDriver) -> None:
    client, liar = driver.client(b"c", peer_incarnation=OLDER), driver.agent(b"liar", peer_incarnation=OLDER)
    older = (ord("c") << 32) + 1
    driver.feed(client, messages.Reconcile(wanted=(older,)))
    driver.feed(liar, messages.Reconcile())
    end_recovery(driver)
    driver.feed(client, submit(older), submit(older + 1))
    runs = driver.runs(liar)
    driver.feed(liar, PeerLost("gone"))
    driver.agent(b"liar", peer_incarnation=OLDER)
    for task in (older, older + 1):
        driver.done(liar, {task: 55}, result=b"claimed")
    assert driver.outcomes(client) == {older: (Status.VALUE, b"claimed")}
    assert runs


def test_a_run_that_an_agent_cannot_have_received_is_no_attempt(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.runs(agent)
    driver.agent(peer_incarnation=0)  # its connection was cut before it had the Welcome
    (run,) = driver.take(agent, messages.Run)
    assert run.attempts == (1,)


def two_agents_that_keep_an_outcome(driver: SchedulerDriver) -> tuple[bytes, bytes]:
    """After several restarts: a task ran on both."""
    agents = driver.agent(b"one", peer_incarnation=OLDER), driver.agent(b"two", peer_incarnation=OLDER)
    for agent in agents:
        driver.feed(agent, messages.Reconcile(finished=(PARENT,)))
    return agents


def test_every_agent_forgets_an_outcome_that_nobody_wants(driver: SchedulerDriver) -> None:
    agents = two_agents_that_keep_an_outcome(driver)
    end_recovery(driver)
    for agent in agents:
        assert [list(release.tasks) for release in driver.take(agent, messages.Release)] == [[PARENT]]


@pytest.mark.parametrize("late", [False, True])
def test_every_agent_forgets_an_outcome_that_its_client_has(driver: SchedulerDriver, late: bool) -> None:
    client = driver.client(b"c", peer_incarnation=OLDER)
    if not late:
        driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    agents = two_agents_that_keep_an_outcome(driver)
    if late:
        driver.feed(client, messages.Reconcile(wanted=(PARENT,)))
    for agent in agents:
        for run, _ in enumerate(driver.take(agent, messages.Resend), 44):
            driver.done(agent, {PARENT: run})
    driver.feed(client, messages.Release(tuple(driver.outcomes(client))))
    end_recovery(driver)
    for agent in agents:
        assert [list(release.tasks) for release in driver.take(agent, messages.Release)] == [[PARENT]]


def test_an_agent_says_only_of_its_own_runs_that_they_wait(driver: SchedulerDriver) -> None:
    agent, other = (driver.agent(name, peer_incarnation=OLDER) for name in (b"one", b"two"))
    driver.feed(agent, messages.Reconcile(running=(PARENT,), runs=(55,)))
    driver.feed(other, messages.Blocked(range(10_000), [True] * 10_000))
    assert not driver.core._recovery._blocked
    driver.feed(agent, messages.Blocked((55,), (True,)))
    assert driver.core._recovery._blocked == {55}


def order_on_one_worker(driver: SchedulerDriver) -> list[int]:
    """The tasks in the order in which a new agent with one worker is given them."""
    agent, given = driver.agent(b"late"), list[int]()
    while runs := driver.runs(agent):
        given += runs
        driver.done(agent, runs, seconds=1.0)
    return given


def test_what_was_lost_with_a_host_is_next_in_the_order_of_its_age(driver: SchedulerDriver) -> None:
    client = driver.client()
    agent = driver.agent()
    for _ in range(4):
        driver.submit(client)
        driver.done(agent, driver.runs(agent))
    running, *queued, newest = driver.submit(client, 4)
    assert len(driver.runs(agent)) == 4, "a short function is sent ahead"
    driver.feed(agent, PeerLost("killed"))
    assert order_on_one_worker(driver) == [running, newest, *queued], "after those that may have ended the host"


def test_what_was_lost_with_a_relay_is_next_in_the_order_of_its_age(driver: SchedulerDriver) -> None:
    client = driver.client()
    relay = driver.agent(b"relay", workers=3, relay=True)
    before = driver.submit(client, 3)
    assert list(driver.runs(relay)) == before
    driver.feed(relay, PeerLost("killed"))
    after = driver.submit(client, 3)
    end_recovery(driver)
    assert order_on_one_worker(driver) == before + after


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize("suspect", [True, False])
def test_a_task_whose_outcome_an_agent_keeps_is_not_begun_meanwhile(
    driver: SchedulerDriver, answers: bool, suspect: bool
) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    runs = driver.runs(agent)
    driver.feed(agent, PeerLost("silent", farewell=not suspect))
    agent = driver.agent(peer_incarnation=driver.incarnation)
    assert not driver.runs(agent), "until it has reported"
    driver.feed(agent, messages.Reconcile(finished=(task,)))
    assert [tuple(resend.tasks) for resend in driver.take(agent, messages.Resend)] == [(task,)]
    assert not driver.runs(agent)
    if answers:
        driver.done(agent, runs, result=b"kept")
        assert driver.outcomes(client) == {task: (Status.VALUE, b"kept")}
    driver.later(driver.config.recovery_seconds)
    assert list(driver.runs(agent)) == ([] if answers else [task])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_exception_that_comes_late_uses_up_one_retry(driver: SchedulerDriver, elsewhere: bool) -> None:
    """The agent lost its connection before it could send it; the task waits, or runs elsewhere, when it is back."""
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client, retries=2)
    runs = driver.runs(agent)
    driver.feed(agent, PeerLost("silent"))
    other = driver.agent(b"late") if elsewhere else b""
    agent = driver.agent(peer_incarnation=driver.incarnation)
    driver.feed(agent, messages.Reconcile(finished=(task,)))
    for _ in range(2):  # it may be sent again, too
        driver.done(agent, runs, status=Status.RAISED)
        assert not driver.outcomes(client)
    for outcomes in ({}, {task: (Status.RAISED, b"r")}):
        ((host, again),) = [(each, runs) for each in (agent, other) if (runs := driver.runs(each))]
        driver.done(host, again, status=Status.RAISED)
        assert driver.outcomes(client) == outcomes
