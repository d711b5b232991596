"""Messages that a peer may not send are refused before any state changes, without effect on other peers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import HubEvent, PeerJoined, PeerLost, SendFailed
from scaler_protocol import messages
from scaler_protocol.codec import decode, encode
from scaler_protocol.errors import ProtocolError, ScalerError, restore
from scaler_protocol.handshake import Hello, Refused, Role, Welcome
from scaler_protocol.ids import first_task, function_id, named_function_id
from scaler_protocol.limits import KEPT_FUNCTIONS
from scaler_protocol.messages import Done, Group, Inputs, Status, Submit
from scaler_protocol.operations import Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import PROFILE
from scaler_scheduler.core.functions import RECORDS_LIMIT
from scaler_scheduler.core.intake import GROUPS_LIMIT
from scaler_scheduler.core.queue import TaskQueue
from scaler_scheduler.requirements import WorkerClass

if TYPE_CHECKING:
    from types import FrameType

    from conftest import SchedulerDriver

FIRST = first_task(ord("c"))
FUNCTION = function_id(b"body")
WRONG = b"w" * 16
"""A function id that is not the hash of anything here."""


def done(task: int, run: int, status: int = Status.VALUE, result: bytes = b"forged") -> Done:
    return Done((task,), (status,), Payloads([result]), runs=(run,), profiles=bytes(PROFILE.size), agents=("w",))


def submit(*tasks: int, needs: dict[int, int] | None = None, body: bytes = b"body") -> Submit:
    pairs, function = needs or {}, function_id(body)
    return Submit(
        (Group(function),),
        tasks,
        Payloads([b"call"] * len(tasks)),
        dependents=[tasks.index(task) for task in pairs],
        needs=list(pairs.values()),
        functions=(function,),
        names=("n",),
        bodies=Payloads([body]),
    )


def totals(driver: SchedulerDriver) -> tuple[int, ...]:
    event_log = driver.core.state.event_log
    return event_log.submitted, *event_log.ended


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (messages.NeedFunctions((FUNCTION,)), "only an agent"),
        (messages.Output((FIRST + 1,), (1,), Payloads([b"text"])), "only an agent"),
        (done(FIRST + 1, 1), "only an agent"),
        (messages.Inputs((FIRST + 1,), (FIRST,), (4,), Payloads([b""])), "no status"),
        (messages.Inputs((FIRST + 1,), (FIRST,), (0,), Payloads([b"short"]), stored=(0,)), "a reference has 24 bytes"),
    ],
)
def test_what_a_client_may_not_say(driver: SchedulerDriver, message: messages.Message, what: str) -> None:
    client = driver.client(b"c")
    before = totals(driver)
    with pytest.raises(ProtocolError, match=what):
        driver.feed(client, message)
    driver.settle()
    assert totals(driver) == before and not driver.core.state.sessions[ord("c")].tasks


@pytest.mark.parametrize("status", [Status.VALUE, Status.RAISED, Status.FAILED])
def test_an_agent_ends_only_what_it_was_given(driver: SchedulerDriver, status: int) -> None:
    client, agent, other = driver.client(), driver.agent(), driver.agent(b"other")
    tasks = driver.submit(client, 3)
    runs = driver.runs(agent)
    stranger = other if runs else agent
    owner, runs = (agent, runs) if runs else (other, driver.runs(other))
    for task in tasks:
        for run in (12345, runs.get(task, 0), driver.core.state.next_run):
            driver.feed(stranger, done(task, run, status))
    assert not driver.outcomes(client)
    while runs:
        driver.done(owner, runs)
        runs = driver.runs(owner)
        for task, run in driver.runs(stranger).items():
            driver.done(stranger, {task: run})
    assert driver.outcomes(client).keys() == set(tasks)


def test_a_run_is_one_of_its_own_task(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    one, two = driver.submit(client, 2)
    runs = driver.runs(agent)
    with pytest.raises(ProtocolError, match="as one of task"):
        driver.feed(agent, done(two, runs[one]))
    driver.done(agent, runs)
    assert driver.outcomes(client) == dict.fromkeys((one, two), (Status.VALUE, b"r"))


@pytest.mark.parametrize(
    "message",
    [
        submit(FIRST + 1, FIRST + 1, FIRST + 1),
        submit(FIRST + 1, needs={FIRST + 1: FIRST + 1}),
        done(FIRST + 1, 1, 77),
        Done((FIRST + 1,) * 2, (0, 0), Payloads([b"r"] * 2), runs=(1, 1), profiles=bytes(2 * PROFILE.size)),
        replace(submit(FIRST + 1), functions=(b"short",)),
    ],
)
def test_what_the_codec_refuses_reaches_no_core(message: messages.Message) -> None:
    with pytest.raises(ScalerError):
        decode([bytes(frame) for frame in encode(message)])


def test_an_agent_takes_up_only_runs_that_it_was_given(driver: SchedulerDriver) -> None:
    client = driver.client()
    (task,) = driver.submit(client)
    thief = driver.agent(b"thief", peer_incarnation=driver.incarnation)
    driver.feed(thief, messages.Reconcile(running=(task,), runs=(driver.core.state.next_run,)))
    assert [len(withdraw.runs) for withdraw in driver.take(thief, messages.Withdraw)] == [1]
    agent = driver.agent()
    runs = driver.runs(agent) | driver.runs(thief)
    assert list(runs) == [task]


def test_an_agent_that_grows_is_given_more_tasks(driver: SchedulerDriver) -> None:
    agent, client = driver.agent(workers=2, queue_size=1), driver.client()
    driver.submit(client, 8)
    assert len(driver.runs(agent)) == 2
    driver.feed(agent, Resized(4))
    assert len(driver.runs(agent)) == 2 and driver.core.state.agents[agent].workers == 4


@pytest.mark.parametrize(
    ("role", "changes", "what"),
    [
        (Role.CLIENT, {"session": 77}, "has session 99, not 77"),
        (Role.CLIENT, {"role": Role.AGENT, "workers": 1, "queue_size": 1}, "has role 1, not 2"),
        (Role.AGENT, {"role": Role.CLIENT, "session": 77}, "has role 2, not 1"),
        (Role.OPERATOR, {"role": Role.CLIENT, "session": 77}, "has role 3, not 1"),
    ],
)
def test_a_peer_stays_what_it_is(driver: SchedulerDriver, role: int, changes: dict[str, int], what: str) -> None:
    peer = b"p" * 16
    hello = Hello(role, peer, 1, session=99, workers=1, queue_size=1)
    driver.feed(peer, PeerJoined(hello, False))
    changed = replace(hello, incarnation=2, **changes)  # type: ignore[arg-type]
    answer = driver.core.admit(changed)
    assert isinstance(answer, Refused) and what in answer.reasons[0]
    assert isinstance(driver.core.admit(replace(hello, incarnation=2)), Welcome)
    driver.feed(peer, PeerLost("gone"))
    assert isinstance(driver.core.admit(changed), Welcome)


def test_an_input_that_comes_twice_counts_once(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=1)
    first, second = driver.submit(client, 2)
    runs = driver.runs(agent)
    third = FIRST + 10
    both = Submit((Group(FUNCTION),), (third,), Payloads([b"call"]), dependents=(0, 0), needs=(first, second))
    driver.feed(client, both)
    driver.feed(client, messages.Inputs((third,), (first,), (Status.VALUE,), Payloads([b"early"])))
    while runs:
        driver.done(agent, runs)
        runs = driver.runs(agent)
    assert driver.outcomes(client).keys() == {first, second, third}


# --- tables ---------------------------------------------------------------------------------------------------------


def test_tables_do_not_grow_with_every_function(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c", peer_incarnation=0), driver.agent(workers=4)
    count = 3 * max(RECORDS_LIMIT, KEPT_FUNCTIONS)
    for number in range(count):
        driver.core.handle(client, submit(FIRST + 1 + number, body=b"%d" % number), driver.now)
        driver.core.settle(driver.now)
        ((run, task),) = [(run, record.id) for run, record in driver.core.state.agents[agent].runs.items()]
        driver.core.handle(agent, done(task, run), driver.now)
        driver.core.handle(client, messages.Release((task,)), driver.now)
        driver.core.settle(driver.now)
    driver.settle()
    state = driver.core.state
    gc.collect()  # PyPy frees nothing before
    assert len(state.functions) <= RECORDS_LIMIT + 1
    assert len(state.agents[agent].functions) <= KEPT_FUNCTIONS
    assert len(state.sessions[ord("c")].groups) < RECORDS_LIMIT
    assert sum(map(len, driver.core._dispatch._agents_with_room.values())) < 100, (
        "void entries of agents with room pile up"
    )


def test_lanes_go_with_their_groups(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=20)
    session, waiting = driver.core.state.sessions[ord("c")], driver.core.state.waiting
    kept = []
    for number in range(2 * GROUPS_LIMIT):
        unserved, task = number % 2, FIRST + 1 + number
        group = Group(FUNCTION, (f"c{number % 3}",) * unserved, (-1,) * unserved, priority=number)
        driver.core.handle(client, replace(submit(task), groups=(group,)), driver.now)
        driver.core.settle(driver.now)
        if unserved:
            driver.core.handle(client, messages.Cancel((task,)), driver.now)
        elif number < 10:
            kept.append(task)
        else:
            record = session.find(task)
            assert record is not None
            driver.core.handle(agent, done(task, record.run), driver.now)
            driver.core.handle(client, messages.Release((task,)), driver.now)
    driver.settle()
    assert len(session.lanes) <= GROUPS_LIMIT
    driver.feed(agent, PeerLost("gone", True))  # what it ran waits again, in lanes that were forgotten
    other = driver.agent(b"other", workers=20)
    runs = driver.runs(other)
    assert sorted(runs) == kept
    driver.done(other, runs)
    assert driver.outcomes(client).keys() >= set(kept)
    driver.feed(client, PeerLost("left"))
    assert not waiting._lanes and not waiting._requirements and not session.lanes


def test_a_function_that_is_used_again_after_many_others(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    driver.feed(client, submit(FIRST + 1, body=b"another"))
    driver.done(agent, driver.runs(agent))
    for number in range(RECORDS_LIMIT):
        body = b"%d" % number
        driver.core.handle(client, messages.Functions((function_id(body),), ("n",), Payloads([body])), 1.0)
    again = Submit((Group(function_id(b"another")),), (FIRST + 2,), Payloads([b"call"]))
    driver.feed(client, again)
    driver.feed(agent, PeerLost("gone"))
    driver.agent(b"two")
    needed = driver.take(client, messages.NeedFunctions)
    assert [list(need.functions) for need in needed] == [[function_id(b"another")]]
    driver.feed(client, messages.Functions((function_id(b"another"),), ("n",), Payloads([b"another"])))
    assert list(driver.runs(b"two".ljust(16, b"."))) == [FIRST + 2]


def test_a_task_that_lacks_two_functions_runs_once(driver: SchedulerDriver) -> None:
    client = driver.client(b"c")
    driver.feed(client, Submit((Group(FUNCTION, serializer=function_id(b"class")),), (FIRST + 1,), Payloads([b"call"])))
    agent = driver.agent(workers=4)
    for body in (b"body", b"class"):
        driver.feed(client, messages.Functions((function_id(body),), ("n",), Payloads([body])))
    assert len(driver.runs(agent)) == 1 and driver.core.state.waiting.count == 0


def work(act: Callable[[], object]) -> int:
    """How many opcodes Python needs for it."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # callbacks of weak references that other tests have left would count
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def submit_each(driver: SchedulerDriver, client: bytes, groups: Sequence[Group]) -> None:
    """A task of each group."""
    first = first_task(client[0]) + 1
    for at in range(0, len(groups), messages.MESSAGE_GROUPS):
        some = groups[at : at + messages.MESSAGE_GROUPS]
        tasks, calls = range(first + at, first + at + len(some)), Payloads([b"c"] * len(some))
        driver.feed(client, Submit(some, tasks, calls, task_groups=range(len(some))))


@pytest.mark.parametrize("act", ["a client leaves", "an agent asks for functions"])
def test_what_one_client_has_costs_no_other(driver: SchedulerDriver, act: str) -> None:
    agent, costs = driver.agent(), []
    unknown = messages.NeedFunctions([function_id(b"%d" % number) for number in range(200)])
    for count in (1, 2000):
        hoarder, passer = driver.client(b"h"), driver.client(b"p")
        groups = [Group(FUNCTION, (f"c{number}",), (-1,)) for number in range(count)]
        submit_each(driver, hoarder, groups)
        driver.submit(passer)
        event: HubEvent
        peer, event = (passer, PeerLost("left")) if act == "a client leaves" else (agent, unknown)
        costs.append(work(partial(driver.core.handle, peer, event, driver.now)))
        for client in (hoarder, passer):
            driver.feed(client, PeerLost("left"))
    assert costs[1] < 1.5 * costs[0], costs


def test_a_decision_does_not_look_at_every_priority(make_driver: type[SchedulerDriver]) -> None:
    costs, offer = [], WorkerClass((), None)
    for count in (50, 5000):
        driver = make_driver()
        tasks = list(range(FIRST + 1, FIRST + 1 + count))
        groups = [Group(FUNCTION, priority=number) for number in range(count)]
        submit_each(driver, driver.client(b"c"), groups)
        room, taken = driver.core.state.waiting, list[int]()
        room.add_class(offer)

        def decide(room: TaskQueue = room, taken: list[int] = taken) -> None:
            for _ in range(20):
                queue = room.of_class(offer)
                lane = queue.next()
                assert lane is not None
                taken.extend(task.id for task in room.take(queue, lane, 1))

        costs.append(work(decide))
        assert taken == tasks[:-21:-1]
    assert costs[1] < 3 * costs[0], costs


def test_a_task_that_cannot_be_sent_fails_alone(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    driver.submit(client, 1)
    (run,) = driver.take(agent, messages.Run)
    (other,) = driver.submit(client, 1)
    driver.core.handle(agent, SendFailed(run, "Run.attempts is too great"), driver.now)
    driver.settle()
    told = driver.outcomes(client)
    assert list(told) == list(run.tasks)
    assert "Run.attempts is too great" in str(restore(told[run.tasks[0]][1]))
    driver.done(agent, driver.runs(agent))
    assert list(driver.outcomes(client)) == [other]


# --- refused Submits ------------------------------------------------------------------------------------------------


def failures(driver: SchedulerDriver, peer: bytes) -> dict[int, str]:
    """What the peer was told of tasks that failed."""
    told = driver.outcomes(peer)
    assert all(status == Status.FAILED for status, _ in told.values())
    return {task: str(restore(payload)) for task, (_, payload) in told.items()}


FOREIGN = first_task(ord("x")) + 1
NESTED = first_task(2**31 + 1) + 1
CYCLE = [FIRST + 1, FIRST + 2]


@pytest.mark.parametrize(
    ("message", "told", "what"),
    [
        (replace(submit(FIRST + 1, FIRST + 2), stored=(1,)), [FIRST + 1, FIRST + 2], "a reference has 24 bytes"),
        (submit(FIRST + 1, FOREIGN), [FIRST + 1], "tasks of one session"),
        (submit(*CYCLE, needs={CYCLE[0]: CYCLE[1], CYCLE[1]: CYCLE[0]}), CYCLE, "need each other in a cycle"),
        (replace(submit(FIRST + 1), functions=(WRONG,)), [FIRST + 1], "is not the BLAKE2b-128 of the body of 'n'"),
        (replace(submit(FIRST + 1), bodies=Payloads([b""])), [FIRST + 1], "is not the BLAKE2b-128 of the name of 'n'"),
        (submit(FOREIGN), [], "not the sender's"),
    ],
)
def test_a_refused_submit_ends_the_senders_tasks(
    driver: SchedulerDriver, message: Submit, told: list[int], what: str
) -> None:
    client, other = driver.client(b"c"), driver.client(b"x")
    before = totals(driver)
    with pytest.raises(ProtocolError, match=what):
        driver.feed(client, message)
    driver.settle()
    failed = failures(driver, client)
    assert list(failed) == told and all(what in reason for reason in failed.values())
    assert not driver.outcomes(other) and totals(driver) == before
    assert not any(session.tasks for session in driver.core.state.sessions.values())
    assert not len(driver.core.state.functions)


def test_a_refused_submit_ends_the_tasks_of_a_nested_session(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (parent,) = driver.submit(client)
    run = driver.runs(agent)[parent]
    with pytest.raises(ProtocolError):
        driver.feed(agent, replace(submit(NESTED), functions=(WRONG,), parent=run))
    driver.settle()
    assert list(failures(driver, agent)) == [NESTED] and NESTED >> 32 not in driver.core.state.sessions


def test_a_refused_submit_leaves_known_tasks_alone(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    (task,) = driver.submit(client)
    with pytest.raises(ProtocolError):
        driver.feed(client, replace(submit(task, FIRST + 9), functions=(WRONG,)))
    driver.settle()
    assert list(failures(driver, client)) == [FIRST + 9]
    driver.done(agent, driver.runs(agent))
    assert driver.outcomes(client) == {task: (Status.VALUE, b"r")}


def test_a_task_that_is_submitted_again_counts_for_nothing(driver: SchedulerDriver) -> None:
    client, state = driver.client(b"c"), driver.core.state
    for graph in range(20):
        driver.feed(client, replace(submit(FIRST + 1), graph=graph and FIRST + graph, graph_size=2**63))
    assert [function.submitted for function in state.functions.latest()] == [1]
    assert not state.sessions[ord("c")].graphs and state.event_log.submitted == 1
    driver.feed(client, submit(FIRST + 1, FIRST + 2))
    assert [function.submitted for function in state.functions.latest()] == [2]


def test_a_stranger_makes_no_records_of_tasks(driver: SchedulerDriver) -> None:
    """They take three times the memory of tasks that wait together."""
    client, stranger = driver.client(b"c"), driver.client(b"x")
    tasks = driver.submit(client, 100)
    inputs = Inputs(tasks, [FIRST] * 100, [Status.VALUE] * 100, Payloads([b"v"] * 100))
    driver.feed(stranger, messages.Cancel(tasks))
    with pytest.raises(ProtocolError, match="not the sender's"):
        driver.feed(stranger, inputs)
    assert len(set(map(id, driver.core.state.sessions[ord("c")].tasks.values()))) == 1


def test_a_child_that_is_submitted_again_stays_one_child(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=2)
    (parent,) = driver.submit(client)
    run = driver.runs(agent)[parent]
    for _ in range(20):
        driver.feed(agent, replace(submit(NESTED), parent=run))
    record = driver.core.state.find(parent)
    assert record is not None and record.note().children == [NESTED]


def test_needs_may_stand_in_any_order(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent(workers=4)
    driver.feed(client, submit(FIRST + 1, FIRST + 2, FIRST + 3, needs={FIRST + 1: FIRST + 2, FIRST + 2: FIRST + 3}))
    while runs := driver.runs(agent):
        driver.done(agent, runs)
    assert driver.outcomes(client).keys() == {FIRST + 1, FIRST + 2, FIRST + 3}


@pytest.mark.parametrize(
    "theft",
    [
        messages.Functions((named_function_id("operator:neg"),), ("harmless",), Payloads([b"operator:neg"])),
        messages.Functions((function_id(bytes(24), stored=True),), ("harmless",), Payloads([bytes(24)])),
    ],
)
def test_what_is_known_by_name_or_reference_is_nobodys_body(driver: SchedulerDriver, theft: messages.Functions) -> None:
    with pytest.raises(ProtocolError, match="is not the BLAKE2b-128 of the body of 'harmless'"):
        driver.feed(driver.client(b"t"), theft)


def test_a_function_belongs_to_its_id(driver: SchedulerDriver) -> None:
    client, agent = driver.client(b"c"), driver.agent()
    thief = driver.client(b"t")
    with pytest.raises(ProtocolError, match=r"Functions\.functions: .* is not the BLAKE2b-128 of the body of 'stolen'"):
        driver.feed(thief, messages.Functions((function_id(b"body"),), ("stolen",), Payloads([b"another"])))
    (task,) = driver.submit(client)
    (run,) = driver.take(agent, messages.Run)
    assert list(run.tasks) == [task] and list(run.bodies) == [b"body"]
