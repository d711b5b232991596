"""Which runs may return results above the inline limit by message, and what a client may hold of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.ids import function_id, session_key
from scaler_protocol.messages import Cancel, Group, Release, Returned, Run, Submit
from scaler_protocol.objects import Reference
from scaler_protocol.payloads import Payloads
from scaler_protocol.result_sizes import class_of, limit_of
from scaler_scheduler.core import long_results

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
SIZE = 50_000
GRANT = limit_of(class_of(SIZE))
CREDIT = 4 * GRANT
LONG = b"r" * SIZE


def stored(driver: SchedulerDriver, agent: bytes, runs: dict[int, int], size: int = SIZE) -> None:
    """The agent reports these runs, whose results are in object storage."""
    driver.done(agent, runs, result=Reference(b"o" * 16, size).pack(), stored=range(len(runs)))


def learn(driver: SchedulerDriver, client: bytes, agent: bytes, size: int = SIZE) -> None:
    """The function returns a result of this size."""
    driver.submit(client)
    stored(driver, agent, driver.runs(agent), size)


def given(driver: SchedulerDriver, agent: bytes) -> tuple[dict[int, int], list[int]]:
    """The runs that an agent was newly given, by task, and the classes that were granted to them."""
    runs: dict[int, int] = {}
    classes: list[int] = []
    for run in driver.take(agent, Run):
        runs.update({task: run.first_run + at for at, task in enumerate(run.tasks)})
        classes += run.result_sizes or [0] * len(run.tasks)
    return runs, classes


@pytest.mark.parametrize(
    ("size", "size_class"),
    [(0, 0), (INLINE_LIMIT, 0), (INLINE_LIMIT + 1, 1), (2**15 + 1, 2), (2**18, 4), (2**18 + 1, 5)],
)
def test_classes(size: int, size_class: int) -> None:
    assert class_of(size) == size_class
    assert size <= limit_of(size_class)


def test_what_a_function_returns_is_granted_to_its_next_runs_as_far_as_the_credit_goes(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent(workers=6)
    learn(driver, client, agent)
    driver.submit(client, 6)
    runs, classes = given(driver, agent)
    assert classes == [2, 2, 2, 2, 0, 0]
    driver.done(agent, dict(list(runs.items())[:4]), result=LONG)
    driver.submit(client, 3)
    assert given(driver, agent)[1] == [0, 0, 0], "the client has not let go of anything"
    driver.feed(client, Release((), freed=2 * SIZE))
    driver.submit(client, 3)
    assert given(driver, agent)[1] == [2, 2, 0], "half of it is free"
    driver.feed(client, Release((), freed=2 * SIZE))
    driver.submit(client, 3)
    assert given(driver, agent)[1] == [2, 2, 0], "the other half"


def warm_up(driver: SchedulerDriver, client: bytes, agent: bytes) -> None:
    """So many short runs of the function that much is dispatched ahead."""
    driver.submit(client, 40)
    while runs := given(driver, agent)[0]:
        reference = Reference(b"o" * 16, SIZE).pack()
        driver.done(agent, runs, result=reference, stored=range(len(runs)), seconds=1e-5)


def test_tasks_of_others_do_not_wait_behind_those_that_wait_for_credit(driver: SchedulerDriver) -> None:
    other, client, agent = driver.client(b"other"), driver.client(result_credit=CREDIT), driver.agent(workers=1)
    warm_up(driver, other, agent)
    driver.submit(client, 20)
    runs, _ = given(driver, agent)
    tasks = driver.submit(other, 20)
    driver.done(agent, runs, result=LONG, seconds=1e-5)
    assert given(driver, agent)[0].keys() >= set(tasks), "they come after those of the client that was served less"


def test_tasks_of_a_function_whose_results_are_mostly_short_do_not_wait_for_credit(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent(workers=1)
    warm_up(driver, client, agent)
    for _ in range(4):
        driver.submit(client, 20)
        while runs := given(driver, agent)[0]:
            driver.done(agent, runs, seconds=1e-5)
    driver.submit(client, 20)
    assert len(given(driver, agent)[0]) == 20


def test_tasks_beyond_the_credit_wait_for_it_but_for_some_that_keep_workers_busy(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent(workers=1)
    warm_up(driver, client, agent)
    driver.submit(client, 20)
    runs, classes = given(driver, agent)
    assert classes == [2, 2, 2, 2]
    driver.done(agent, dict(list(runs.items())[:3]), result=LONG, seconds=1e-5)
    assert given(driver, agent)[1] == [0, 0, 0]
    driver.feed(client, Release((), freed=3 * SIZE))
    driver.done(agent, dict(list(runs.items())[3:]), result=LONG, seconds=1e-5)
    assert given(driver, agent)[1] == [2, 2, 2]


def test_a_client_that_says_it_has_let_go_of_more_than_it_was_sent_has_its_credit(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent(workers=6)
    learn(driver, client, agent)
    driver.feed(client, Release((), freed=2**60))
    driver.submit(client, 6)
    assert given(driver, agent)[1] == [2, 2, 2, 2, 0, 0]


@pytest.mark.parametrize("end", ["returned", "agent lost", "cancelled", "raised"])
def test_a_grant_ends_with_its_run(driver: SchedulerDriver, end: str) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent(workers=4)
    learn(driver, client, agent)
    tasks = driver.submit(client, 4)
    runs, classes = given(driver, agent)
    assert classes == [2] * 4
    if end == "returned":
        driver.feed(agent, Returned(list(runs.values())))
    elif end == "agent lost":
        driver.feed(agent, PeerLost("killed"))
        agent = driver.agent(b"other", workers=4)
    elif end == "cancelled":
        driver.feed(client, Cancel(tasks))
        driver.done(agent, runs, messages.Status.CANCELLED)
        driver.submit(client, 4)
    else:
        driver.done(agent, runs, messages.Status.RAISED)
        driver.submit(client, 4)
    _, again = given(driver, agent)
    # What ran before has notes of its own, and is not granted anything; nothing is left of the first grants.
    assert again == ([2] * 4 if end != "agent lost" else [0])
    session = driver.core.state.sessions[client[0]]
    assert session.result_bytes == sum(limit_of(each) for each in again if each)


def test_long_results_beyond_what_is_cheap_by_message_are_not_granted(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=2**25), driver.agent(workers=4)
    learn(driver, client, agent, 2**18 + 1)
    driver.submit(client)
    assert given(driver, agent)[1] == [0]


def test_a_client_that_names_no_credit_and_one_whose_session_goes_on_are_granted_nothing(
    driver: SchedulerDriver,
) -> None:
    agent, credited = driver.agent(workers=8), driver.client(result_credit=CREDIT)
    learn(driver, credited, agent)
    plain = driver.client(b"plain")
    driver.submit(plain)
    assert given(driver, agent)[1] == [0]
    key = session_key("name", b"")
    named = driver.client(b"named", result_credit=CREDIT, session_name="name", session_key=key)
    (session,) = [each.number for each in driver.core.state.sessions.values() if each.named is not None]
    driver.submit(named, session=session)
    assert given(driver, agent)[1] == [0]


def test_all_clients_together_are_granted_so_much(driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_results, "MOST_BYTES", 3 * GRANT)
    first, agent = driver.client(result_credit=CREDIT), driver.agent(workers=8)
    learn(driver, first, agent)
    driver.submit(first, 2)
    runs, classes = given(driver, agent)
    assert classes == [2, 2]
    driver.done(agent, runs, result=LONG)
    second = driver.client(b"second", result_credit=CREDIT)
    driver.submit(second, 2)
    assert given(driver, agent)[1] == [2, 0]
    driver.feed(first, PeerLost("left"))
    driver.submit(second, 3)
    assert given(driver, agent)[1] == [2, 2, 0], "who is gone holds nothing"


def test_results_for_other_tasks_are_not_granted(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent(workers=4)
    learn(driver, client, agent)
    first = (client[0] << 32) + 2**30
    driver.feed(
        client, Submit((Group(FUNCTION),), (first, first + 1), Payloads([b"call"] * 2), dependents=(1,), needs=(first,))
    )
    runs, classes = given(driver, agent)
    assert set(runs) >= {first} and not any(classes)


def test_a_relay_is_granted_nothing(driver: SchedulerDriver) -> None:
    client, agent = driver.client(result_credit=CREDIT), driver.agent()
    learn(driver, client, agent)
    driver.feed(agent, PeerLost("left"))
    relay = driver.agent(b"relay", workers=4, relay=True)
    driver.submit(client)
    assert given(driver, relay)[1] == [0]
