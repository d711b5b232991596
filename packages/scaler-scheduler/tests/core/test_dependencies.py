"""Graphs in the scheduler: outcomes are kept for consumers, and nodes without consumers are stopped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol import messages
from scaler_protocol.errors import ProtocolError
from scaler_protocol.ids import function_id
from scaler_protocol.messages import Group, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.storage import DeleteObjects
from scaler_scheduler.core.dispatch import AHEAD_RUNS

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
FIRST = (ord("c") << 32) + 1
NODES = 1000
"""Of a graph, most of which are not submitted."""


@pytest.fixture(params=["tasks", "nodes"], autouse=True)
def _graph(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of this holds for tasks that need others, and for nodes of graphs, which have no records at first."""
    if request.param == "nodes":
        monkeypatch.setattr(sys.modules[__name__], "Submit", partial(Submit, graph=FIRST, graph_size=NODES))


def piece(
    count: int, needs: Sequence[tuple[int, int]], consumers: Sequence[int], asked: Sequence[int], at: int = 0
) -> Submit:
    """Nodes `at` and following of a graph; `needs` are pairs of places in the whole graph."""
    return Submit(
        (Group(FUNCTION),),
        [FIRST + at + i for i in range(count)],
        Payloads([b"call"] * count),
        dependents=[dependent - at for dependent, _ in needs],
        needs=[FIRST + need for _, need in needs],
        functions=(FUNCTION,),
        names=("m:f",),
        bodies=Payloads([b"body"]),
        consumers=consumers,
        intermediate=[i for i in range(count) if at + i not in asked],
    )


def test_an_inner_value_goes_to_its_consumers_only_and_is_forgotten_after_the_last(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.feed(client, piece(3, [(1, 0), (2, 0)], [2, 0, 0], [1, 2]))
    driver.done(agent, driver.runs(agent), result=b"42")
    assert not driver.outcomes(client)
    (run,) = driver.take(agent, messages.Run)
    assert list(run.inputs) == [b"42", b"42"]
    driver.done(agent, {FIRST + 1: run.first_run})
    driver.later(0.1)
    assert driver.core.state.find(FIRST) is not None and not driver.take(agent, messages.Release)
    driver.done(agent, {FIRST + 2: run.first_run + 1})
    assert list(driver.outcomes(client)) == [FIRST + 1, FIRST + 2] and driver.core.state.find(FIRST) is None
    driver.later(0.1)
    assert [tuple(release.tasks) for release in driver.take(agent, messages.Release)] == [(FIRST,)]


def test_consumers_may_come_later_and_a_requested_node_may_have_some(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.feed(client, piece(1, [], [1], [0, 1]))
    driver.done(agent, driver.runs(agent), result=b"42")
    driver.feed(client, messages.Release((FIRST,)))
    driver.feed(client, piece(1, [(1, 0)], [0], [0, 1], at=1))
    (run,) = driver.take(agent, messages.Run)
    assert list(run.inputs) == [b"42"] and not driver.take(client, messages.NeedInputs)
    driver.done(agent, {FIRST + 1: run.first_run})
    assert driver.core.state.find(FIRST) is None
    assert set(driver.outcomes(client)) == {FIRST, FIRST + 1}


def test_an_object_of_an_inner_node_is_freed_with_its_last_consumer(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.feed(client, piece(2, [(1, 0)], [1, 0], [1]))
    ((task, run),) = driver.runs(agent).items()
    reference = b"o" * 16 + (9).to_bytes(8, "little")
    profile = NO_PROFILE
    done = messages.Done((task,), (0,), Payloads((reference,)), runs=(run,), stored=(0,), profiles=profile)
    driver.feed(agent, done)
    (taking,) = driver.take(agent, messages.Run)
    assert list(taking.inputs_stored) == [0] and not driver.take(client, DeleteObjects)
    driver.done(agent, {FIRST + 1: taking.first_run})
    assert [tuple(m.objects) for m in driver.take(client, DeleteObjects)] == [(b"o" * 16,)]


def test_a_failure_is_shared_down_a_long_chain_and_what_only_it_needed_is_stopped(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    size = 5_000
    needs = [(2, 0), (2, 1), *((i, i - 1) for i in range(3, size))]
    consumers = [1] * (size - 1) + [0]
    driver.feed(client, piece(size, needs, consumers, [size - 1]))
    runs = driver.runs(agent)
    driver.done(agent, {FIRST: runs[FIRST]}, Status.RAISED, b"error")
    assert driver.outcomes(client) == {FIRST: (Status.RAISED, b"error"), FIRST + size - 1: (Status.RAISED, b"error")}
    assert [tuple(w.runs) for w in driver.take(agent, messages.Withdraw)] == [(runs[FIRST + 1],)]
    driver.feed(client, messages.Release((FIRST, FIRST + size - 1)))
    assert not driver.core.state.sessions[client[0]].tasks, "an id leaked"


def test_a_cancelled_key_stops_what_only_it_needed(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.feed(client, piece(5, [(3, 0), (3, 1), (4, 1), (4, 2)], [1, 2, 1, 0, 0], [3, 4]))
    runs = driver.runs(agent)
    driver.feed(client, messages.Cancel((FIRST + 3,)))
    assert [tuple(w.runs) for w in driver.take(agent, messages.Withdraw)] == [(runs[FIRST],)]
    driver.done(agent, {task: runs[task] for task in (FIRST + 1, FIRST + 2)})
    assert list(driver.runs(agent)) == [FIRST + 4]


def test_what_needs_a_cancelled_task_depends_on_what_its_client_says(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.feed(client, piece(4, [(1, 0), (2, 0), (3, 2)], [2, 0, 1, 0], range(4)))
    driver.feed(client, messages.Cancel((FIRST,)))
    assert not driver.outcomes(client)
    (asked,) = driver.take(client, messages.NeedInputs)
    assert (tuple(asked.tasks), tuple(asked.needs)) == ((FIRST + 1, FIRST + 2), (FIRST, FIRST))
    statuses, given = (Status.VALUE, Status.CANCELLED), Payloads([b"42", b""])
    driver.feed(client, messages.Inputs(asked.tasks, asked.needs, statuses, given))
    assert driver.outcomes(client) == {FIRST + 2: (Status.CANCELLED, b""), FIRST + 3: (Status.CANCELLED, b"")}
    (run,) = [run for run in driver.take(agent, messages.Run) if tuple(run.inputs)]
    assert (tuple(run.tasks), list(run.inputs)) == ((FIRST + 1,), [b"42"])


def test_nobody_is_asked_for_inputs_of_what_is_cancelled_too(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.agent(workers=4)
    driver.feed(client, piece(3, [(1, 0), (2, 1)], [1, 1, 0], range(3)))
    driver.feed(client, messages.Cancel([FIRST + at for at in range(3)]))
    assert not driver.take(client, messages.NeedInputs) and not driver.core.state.sessions[client[0]].tasks


def test_a_node_that_keys_share_is_stopped_with_the_last_of_them(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.feed(client, piece(5, [(1, 0), (2, 1), (3, 1), (4, 0)], [2, 2, 0, 0, 0], [2, 3, 4]))
    runs = driver.runs(agent)
    for key in (2, 4):
        driver.feed(client, messages.Cancel((FIRST + key,)))
        assert not driver.take(agent, messages.Withdraw)
    driver.feed(client, messages.Cancel((FIRST + 3,)))
    assert [tuple(w.runs) for w in driver.take(agent, messages.Withdraw)] == [(runs[FIRST],)]
    assert not driver.core.state.sessions[client[0]].tasks, "an id leaked"


def test_a_sibling_of_a_failed_node_is_stopped_unless_a_key_needs_it(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.feed(client, piece(5, [(3, 0), (3, 1), (3, 2), (4, 1)], [1, 2, 1, 0, 0], [3, 4]))
    runs = driver.runs(agent)
    driver.done(agent, {FIRST: runs[FIRST]}, Status.RAISED, b"error")
    assert [tuple(w.runs) for w in driver.take(agent, messages.Withdraw)] == [(runs[FIRST + 2],)]
    driver.done(agent, {FIRST + 1: runs[FIRST + 1]})
    driver.done(agent, driver.runs(agent))
    assert driver.outcomes(client)[FIRST + 4] == (Status.VALUE, b"r")


def test_ready_nodes_go_before_others_that_wait(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.feed(client, piece(4, [(1, 0)], [1, 0, 0, 0], [1, 2, 3]))
    driver.done(agent, driver.runs(agent), seconds=1.0)
    assert list(driver.runs(agent)) == [FIRST + 1]


def test_an_inner_position_that_is_not_there_is_refused(driver: SchedulerDriver) -> None:
    client = driver.client()
    with pytest.raises(ProtocolError, match="intermediate names position"):
        driver.feed(client, Submit((Group(FUNCTION),), (FIRST,), Payloads((b"c",)), consumers=(0,), intermediate=(1,)))


def test_a_session_that_watches_hears_of_inner_nodes(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.feed(client, replace(piece(3, [(1, 0), (2, 1)], [1, 1, 0], [2]), watched=True))
    for _ in range(3):
        driver.done(agent, driver.runs(agent))
    driver.later(0.1)
    assert [tuple(ended.tasks) for ended in driver.take(client, messages.Ended)] == [(FIRST, FIRST + 1)]


CHAIN = [(11, 10), (12, 11), (13, 12)]


def chain_of_four(driver: SchedulerDriver) -> tuple[bytes, bytes, messages.Run]:
    """A chain at an agent that knows its function to be cheap."""
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.done(agent, driver.runs(agent), seconds=0.0001)
    driver.feed(client, piece(4, CHAIN, [1, 1, 1, 0], [13], at=10))
    (run,) = driver.take(agent, messages.Run)
    assert driver.outcomes(client)
    return client, agent, run


def test_a_chain_of_cheap_nodes_goes_to_an_agent_at_once(driver: SchedulerDriver) -> None:
    client, agent, run = chain_of_four(driver)
    assert [task - FIRST - 10 for task in run.tasks] == [0, 1, 2, 3]
    assert (list(run.dependents), list(run.inputs_awaited), list(run.inputs)) == ([1, 2, 3], [0, 1, 2], [b""] * 3)
    driver.done(agent, dict(zip(run.tasks, range(run.first_run, run.first_run + 4), strict=True)))
    assert list(driver.outcomes(client)) == [FIRST + 13]


def test_an_agent_with_enough_work_is_sent_no_nodes_ahead_of_their_inputs(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client, 2 * AHEAD_RUNS)
    while runs := driver.runs(agent):  # its window grows
        driver.done(agent, runs, seconds=0.0001)
    driver.feed(client, *(piece(1, [], [0], [at], at=at) for at in range(100, 100 + AHEAD_RUNS)))
    assert len(driver.runs(agent)) == AHEAD_RUNS
    driver.feed(client, piece(4, [(201, 200), (202, 201), (203, 202)], [1, 1, 1, 0], [203], at=200))
    assert list(driver.runs(agent)) == [FIRST + 200]


def test_what_an_agent_gives_back_of_a_chain_waits_for_its_input(driver: SchedulerDriver) -> None:
    client, agent, run = chain_of_four(driver)
    driver.feed(agent, messages.Returned([run.first_run + 1, run.first_run + 2, run.first_run + 3]))
    assert not driver.runs(agent)
    driver.done(agent, {FIRST + 10: run.first_run}, result=b"42")
    (again,) = driver.take(agent, messages.Run)
    assert list(again.tasks) == [FIRST + 11, FIRST + 12, FIRST + 13]
    assert list(again.inputs) == [b"42", b"", b""] and list(again.inputs_awaited) == [1, 2]
    driver.feed(client, messages.Cancel((FIRST + 13,)))
    (withdrawn,) = driver.take(agent, messages.Withdraw)
    assert sorted(withdrawn.runs) == [again.first_run + at for at in range(3)]


def test_the_rest_of_a_chain_shares_the_fate_of_its_beginning(driver: SchedulerDriver) -> None:
    client, agent, run = chain_of_four(driver)
    driver.done(agent, {FIRST + 10: run.first_run}, Status.RAISED, b"error")
    assert driver.outcomes(client)[FIRST + 13] == (Status.RAISED, b"error")
    (withdrawn,) = driver.take(agent, messages.Withdraw)
    assert list(withdrawn.runs) == [run.first_run + at for at in (1, 2, 3)]
    driver.feed(agent, messages.Returned([run.first_run + at for at in (1, 2, 3)]))
    assert not driver.runs(agent)


def test_a_chain_is_restarted_on_another_host_when_its_host_is_lost(driver: SchedulerDriver) -> None:
    _, agent, run = chain_of_four(driver)
    driver.feed(agent, PeerLost("gone"))
    other = driver.agent(b"other")
    (again,) = driver.take(other, messages.Run)
    assert list(again.tasks) == list(run.tasks) and list(again.inputs_awaited) == [0, 1, 2]


def graph(first: Submit, size: int) -> Submit:
    """The same as (part of) a graph."""
    return replace(first, graph=FIRST, graph_size=size)


def test_ready_nodes_run_in_the_order_of_their_graph(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    needs = [(1, 0), (4, 0), (3, 2), (5, 2), (6, 1), (6, 3), (7, 4), (7, 5)]
    shuffle = piece(8, needs, [2, 1, 2, 1, 1, 1, 0, 0], [6, 7])
    driver.feed(client, graph(shuffle, 8))
    ran = []
    while runs := driver.runs(agent):
        ran += [task - FIRST for task in runs]
        driver.done(agent, runs, seconds=1.0)
    assert ran == list(range(8)), "not 0, 1, 4: the result of 4 would be held for longer"


def test_what_is_ready_goes_before_other_graphs_and_tasks(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.feed(client, graph(piece(2, [(1, 0)], [1, 0], [1]), 2))
    runs = driver.runs(agent)
    other = replace(piece(1, [], [0], [20], at=20), graph=FIRST + 20, graph_size=1)
    driver.feed(client, other)
    driver.submit(client)
    driver.done(agent, runs, seconds=1.0)
    assert list(driver.runs(agent)) == [FIRST + 1]


def test_graphs_are_counted_while_they_run(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    session = driver.core.state.sessions[client[0]]
    whole = piece(4, [(2, 0), (3, 1), (3, 2)], [1, 1, 1, 0], [3])
    driver.feed(client, graph(whole, 5))
    (record,) = session.graphs.values()
    (counts,) = record.counts.values()
    assert (record.size, record.open, counts.submitted) == (5, 4, 4)
    runs = driver.runs(agent)
    driver.done(agent, {FIRST: runs[FIRST]}, seconds=1.0)
    assert (record.open, counts.done) == (3, 1)
    driver.feed(client, graph(piece(1, [], [0], [4], at=4), 5))
    driver.done(agent, {FIRST + 1: runs[FIRST + 1]}, Status.RAISED, b"error")
    assert (counts.failed, counts.cancelled, record.open) == (2, 1, 1), "3 shares its fate, and 2 has no consumer left"
    assert list(session.graphs) == [FIRST]
    driver.done(agent, driver.runs(agent))
    assert not session.graphs and counts.done == 2
