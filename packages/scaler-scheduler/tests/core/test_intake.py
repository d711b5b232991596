"""Intake: whatever fails in it, the sender hears of it, and nothing is changed by halves."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.errors import restore
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Group, NeedInputs, Release, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.config import SchedulerConfig

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
FIRST = first_task(ord("c")) + 1000
TASKS = list(range(FIRST, FIRST + 6))


def graph(earlier: int, *, in_order: bool = True) -> Submit:
    """Six nodes, of two groups: some take results of others, one that of an earlier task, one of a forgotten one.

    Clients send what nodes need in the order of the nodes.
    """
    needs = [(1, TASKS[0]), (2, TASKS[1]), (3, earlier), (4, FIRST - 500)]
    dependents, needed = zip(*(needs if in_order else needs[::-1]), strict=True)
    return Submit(
        (Group(FUNCTION), Group(FUNCTION, priority=2)),
        TASKS,
        Payloads([b"call"] * 6),
        task_groups=[0, 1, 0, 1, 0, 1],
        dependents=dependents,
        needs=needed,
        functions=(FUNCTION,),
        names=("n",),
        bodies=Payloads([b"body"]),
        graph=FIRST,
        graph_size=6,
        consumers=[1, 1, 0, 0, 0, 0],
        intermediate=[0, 1],
    )


class OnceError(Exception):
    """Raised on purpose."""


def break_once(patched: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    """The next call raises, before or after it does its work."""
    work = getattr(owner, name)

    def broken(*args: Any, **options: Any) -> Any:
        patched.setattr(owner, name, work)
        if after:
            work(*args, **options)
        raise OnceError("on purpose")

    patched.setattr(owner, name, broken)


def places(driver: SchedulerDriver) -> dict[str, Any]:
    core = driver.core
    return {
        "_group": core._intake,
        "_records": core._intake,
        "_held": core._intake,
        "_take_piece": core._intake,
        "_connect": core._intake,
        "hold": core._completion.dependencies,
        "_graph": core._intake,
        "_enter": core._intake,
        "enter": core._completion,
        "queue": core.state,
        "add": core.state.waiting,
        "check_eligible": core._dispatch,
    }


STEPS = ["_group", "_connect", "_graph", "_enter", "enter", "queue", "add", "check_eligible"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("name", "in_order"),
    [
        *product([*STEPS, "_held", "_take_piece", "hold"], [True]),
        *product([*STEPS, "_records"], [False]),
    ],
)
def test_a_submit_that_can_not_be_taken_fails_as_a_whole(
    driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch, name: str, in_order: bool, after: bool
) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (earlier,) = driver.submit(client)
    runs = driver.runs(agent)
    break_once(monkeypatch, places(driver)[name], name, after=after)
    with pytest.raises(OnceError):
        driver.feed(client, graph(earlier, in_order=in_order))
    driver.settle()  # and its check
    told = driver.outcomes(client)
    assert {*told, TASKS[1]} == set(TASKS)  # of an intermediate node that shares a fate nobody need be told
    for status, payload in told.values():
        assert status == Status.FAILED and "could not take this task: OnceError" in str(restore(payload))
    assert not driver.runs(agent) and not driver.core.state.waiting.count
    driver.take(client, NeedInputs)
    driver.feed(client, Release(TASKS))
    driver.done(agent, runs)
    driver.feed(client, Release([earlier]))
    session = driver.core.state.sessions[client[0]]
    assert not session.tasks and not session.graphs
    event_log = driver.core.state.event_log
    assert event_log.submitted == sum(event_log.ended)
    (task,) = driver.submit(client)
    driver.done(agent, driver.runs(agent))
    assert list(driver.outcomes(client)) == [earlier, task]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["add_block", "check_eligible"])
def test_tasks_with_nothing_but_calls_that_can_not_be_taken_fail(
    driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch, name: str, after: bool
) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    break_once(
        monkeypatch, driver.core.state.waiting if name == "add_block" else driver.core._dispatch, name, after=after
    )
    with pytest.raises(OnceError):
        driver.submit(client, 3)
    driver.settle()
    told = driver.outcomes(client)
    assert len(told) == 3 and {status for status, _ in told.values()} == {Status.FAILED}
    assert not driver.runs(agent) and not driver.core.state.waiting.count
    driver.feed(client, Release(list(told)))
    event_log = driver.core.state.event_log
    assert not driver.core.state.sessions[client[0]].tasks and event_log.submitted == sum(event_log.ended)


def test_known_tasks_of_a_submit_that_can_not_be_taken_go_on(
    driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (known,) = driver.submit(client)
    runs = driver.runs(agent)
    break_once(monkeypatch, driver.core.state, "queue", after=False)
    with pytest.raises(OnceError):
        driver.feed(client, Submit((Group(FUNCTION),), [known, known + 1], Payloads([b"call"] * 2)))
    driver.settle()
    assert list(driver.outcomes(client)) == [known + 1]
    driver.done(agent, runs)
    assert driver.outcomes(client) == {known: (Status.VALUE, b"r")}


def piece(at: int, count: int, *, last: int = 5, call: bytes = b"call") -> Submit:
    """Nodes of a graph that has nodes up to `last`."""
    return Submit(
        (Group(FUNCTION),),
        TASKS[at : at + count],
        Payloads([call] * count),
        functions=(FUNCTION,),
        names=("n",),
        bodies=Payloads([b"body"]),
        graph=FIRST,
        graph_size=last + 1,
        consumers=[0] * count,
    )


@pytest.mark.parametrize("refused", [0, 2, 4])
def test_a_graph_of_which_a_piece_was_refused_ends(make_driver: type[SchedulerDriver], refused: int) -> None:
    driver = make_driver(SchedulerConfig(max_session_bytes=1_000_000))
    client, agent = driver.client(b"c"), driver.agent(workers=6)
    for at in (0, 2, 4):
        driver.feed(client, piece(at, 2, call=bytes(600_000 if at == refused else 0)))
    told = driver.outcomes(client)
    assert list(told) == TASKS[refused : refused + 2]
    assert all(b"max-session-bytes" in reason for _, reason in told.values())
    driver.done(agent, driver.runs(agent))
    assert not driver.core.state.sessions[client[0]].graphs and driver.core.state.graphs_ended == 1


def test_a_graph_ends_although_its_last_piece_is_refused_when_all_others_have_ended(
    make_driver: type[SchedulerDriver],
) -> None:
    driver = make_driver(SchedulerConfig(max_session_bytes=1_000_000))
    client, agent = driver.client(b"c"), driver.agent(workers=6)
    driver.feed(client, piece(0, 4))
    driver.done(agent, driver.runs(agent))
    driver.feed(client, piece(4, 2, call=bytes(600_000)))
    assert not driver.core.state.sessions[client[0]].graphs and driver.core.state.graphs_ended == 1


def test_a_refused_submit_of_a_task_makes_no_session(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver(SchedulerConfig(max_session_bytes=1_000_000))
    client, agent = driver.client(b"c"), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    child = first_task(2**31 + 7) + 1
    nested = Submit((Group(FUNCTION),), [child], Payloads([bytes(2_000_000)]), parent=runs[parent])
    driver.feed(agent, nested)
    assert list(driver.core.state.sessions) == [client[0]]
    assert list(driver.outcomes(agent)) == [child]
