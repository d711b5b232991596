"""Nodes of graphs that lack inputs have no records of their own, until one is needed."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerLost
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import Cancel, Group, NeedInputs, Release, Run, Status, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.node_columns import FEW_TASKS, are_rows, dependents_by_need, joined
from scaler_scheduler.core.records import HeldNodes
from scaler_scheduler.core.task_states import HELD

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
FIRST = first_task(ord("c")) + 1000
DEFINITION: dict[str, Any] = {"functions": (FUNCTION,), "names": ("m:f",), "bodies": Payloads([b"body"])}
NODE_BYTES = 400
"""Most bytes that a node may take which needs three others and whose call has 40 bytes."""


def graph(needs: list[tuple[int, int]], count: int = 6) -> Submit:
    """Nodes of two groups; `needs` are pairs of positions. The last node is requested."""
    return Submit(
        (Group(FUNCTION), Group(FUNCTION, priority=2)),
        range(FIRST, FIRST + count),
        Payloads([b"call %d" % number for number in range(count)]),
        task_groups=[number % 2 for number in range(count)],
        dependents=[dependent for dependent, _ in needs],
        needs=[FIRST + need for _, need in needs],
        consumers=[len({dependent for dependent, need in needs if need == number}) for number in range(count)],
        intermediate=range(count - 1),
        graph=FIRST,
        graph_size=count,
        **DEFINITION,
    )


NEEDS = [(1, 0), (2, 0), (3, 1), (3, 2), (4, 3), (5, 2), (5, 4)]


def held(driver: SchedulerDriver) -> list[int]:
    """The positions of nodes without records."""
    tasks = driver.core.state.sessions[ord("c")].tasks
    return [task - FIRST for task, entry in tasks.items() if isinstance(entry, HeldNodes)]


def test_a_node_has_a_record_when_its_inputs_are_there(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=4)
    driver.feed(client, graph(NEEDS))
    assert held(driver) == [1, 2, 3, 4, 5]
    for left in ([3, 4, 5], [4, 5], [5], []):
        driver.done(agent, driver.runs(agent), result=b"v", seconds=1.0)
        assert held(driver) == left
    (run,) = driver.take(agent, Run)
    assert (list(run.tasks), list(run.needs), list(run.calls)) == ([FIRST + 5], [FIRST + 2, FIRST + 4], [b"call 5"])
    assert list(run.inputs) == [b"v", b"v"]
    driver.done(agent, {FIRST + 5: run.first_run}, result=b"all")
    assert driver.outcomes(client) == {FIRST + 5: (Status.VALUE, b"all")}
    driver.feed(client, Release([FIRST + 5]))
    session = driver.core.state.sessions[ord("c")]
    assert not session.tasks and not session.graphs


@pytest.mark.parametrize("arrivals", [(2, 1, 0), (1, 0, 2), (0, 1, 2)])
def test_inputs_are_in_the_order_in_which_their_consumer_names_them(
    driver: SchedulerDriver, arrivals: tuple[int, ...]
) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=4)
    driver.feed(client, graph([(3, 1), (3, 2), (3, 0)], count=4))
    runs = driver.runs(agent)
    for number in arrivals:
        driver.done(agent, {FIRST + number: runs[FIRST + number]}, result=b"%d" % number, seconds=1.0)
    (run,) = driver.take(agent, Run)
    assert (list(run.needs), list(run.inputs)) == ([FIRST + 1, FIRST + 2, FIRST], [b"1", b"2", b"0"])


def test_a_record_has_what_was_submitted(driver: SchedulerDriver) -> None:
    client = driver.client(b"c")
    driver.feed(client, graph(NEEDS))
    record = driver.core.state.find(FIRST + 3)
    assert record is not None and record.extra is not None and held(driver) == [1, 2, 4, 5]
    extra = record.extra
    assert (record.id, record.state, record.call, record.group.lane.priority) == (FIRST + 3, HELD, b"call 3", 2)
    assert (list(extra.inputs), list(extra.dependents)) == ([FIRST + 1, FIRST + 2], [FIRST + 4])
    assert (extra.missing_inputs, extra.consumers, extra.intermediate, extra.owner_waits) == (2, 1, True, False)
    driver.core.check()


def test_nodes_that_are_cancelled_or_supplied_by_the_client_have_records(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=4)
    driver.feed(client, graph(NEEDS))
    driver.feed(client, Cancel([FIRST + 1]))
    assert held(driver) == [2, 4, 5]
    (asked,) = driver.take(client, NeedInputs)
    assert (list(asked.tasks), list(asked.needs)) == ([FIRST + 3], [FIRST + 1])
    driver.runs(agent)
    driver.core.check()


def test_a_node_that_is_cancelled_and_submitted_again_waits_for_all_inputs(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=4)
    submit = graph([(2, 0), (2, 1)], count=3)
    driver.feed(client, replace(submit, graph_size=4, consumers=[2, 2, 0]))
    driver.feed(client, Cancel([FIRST + 2]))
    again = replace(submit, tasks=range(FIRST + 2, FIRST + 4), calls=Payloads([b"again", b""]), task_groups=(0, 0))
    columns: Any = {"dependents": [0, 0], "needs": [FIRST, FIRST + 1], "consumers": [0, 0], "intermediate": ()}
    driver.feed(client, replace(again, graph_size=4, **columns))
    runs = driver.runs(agent)
    driver.done(agent, {FIRST: runs[FIRST]}, result=b"0")
    driver.core.check()
    assert FIRST + 2 not in driver.runs(agent)


@pytest.mark.parametrize(
    ("needs", "found"),
    [
        ([(3, 1), (2, 0), (1, 0)], []),  # not in the order of the nodes
        ([(1, 0), (2, 0), (2, 0)], []),  # one names what it needs twice
        ([(1, 0), (2, 0), (3, -500)], [1, 2]),  # one needs what is not known
    ],
)
def test_odd_nodes_have_records_at_once(
    driver: SchedulerDriver, needs: list[tuple[int, int]], found: list[int]
) -> None:
    client = driver.client(b"c")
    driver.feed(client, graph(needs))
    assert held(driver) == found
    driver.core.check()


def test_nodes_with_gaps_between_their_ids_are_no_rows() -> None:
    assert are_rows(graph(NEEDS))
    assert not are_rows(Submit((Group(FUNCTION),), (FIRST, FIRST + 2), Payloads([b"", b""])))
    assert dependents_by_need(graph(NEEDS), {4, 5}) == {
        FIRST + 3: [FIRST + 4], FIRST + 2: [FIRST + 5], FIRST + 4: [FIRST + 5],
    }  # fmt: skip


def test_many_dependents_are_a_list_that_grows() -> None:
    few = joined((), range(FEW_TASKS))
    assert few == tuple(range(FEW_TASKS))
    many = joined(few, [99])
    assert joined(many, (100, 101)) is many and many == [*range(FEW_TASKS), 99, 100, 101]


def test_a_session_that_ends_leaves_no_node(driver: SchedulerDriver) -> None:
    client = driver.client(b"c")
    driver.feed(client, graph(NEEDS))
    driver.feed(client, PeerLost("it said goodbye", farewell=True))
    driver.later(1.0)
    event_log = driver.core.state.event_log
    assert event_log.submitted == sum(event_log.ended) and not driver.core.state.ended_sessions


def test_a_node_that_lacks_inputs_takes_few_bytes(driver: SchedulerDriver) -> None:
    client, count = driver.client(b"c"), 4096
    submits = [
        Submit(
            (Group(FUNCTION),),
            range(FIRST + at, FIRST + at + 1024),
            Payloads([b"x" * 40] * 1024),
            dependents=[row for row in range(1024) if at or row >= 3 for _ in range(3)],
            needs=[FIRST + at + row - back for row in range(1024) if at or row >= 3 for back in (1, 2, 3)],
            consumers=[3] * 1024,
            intermediate=range(1024),
            graph=FIRST,
            graph_size=count + 1,
            **(DEFINITION if not at else {}),
        )
        for at in range(0, count, 1024)
    ]
    gc.collect()
    tracemalloc.start()
    try:
        while submits:
            driver.feed(client, submits.pop(0))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / count < NODE_BYTES
