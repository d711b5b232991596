"""SchedulerCore, event by event."""

from __future__ import annotations

import gc
import pickle
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from scaler_io.links.effects import Stop
from scaler_io.links.events import PeerJoined, PeerLost, SendFailed
from scaler_protocol import messages
from scaler_protocol.errors import NoWorkerError, ProtocolError, WorkerDiedError, describe, restore
from scaler_protocol.handshake import Goodbye, Hello, Refused, Role, Welcome
from scaler_protocol.ids import function_id, session_of
from scaler_protocol.limits import limit_of
from scaler_protocol.messages import MESSAGE_IDS, Group, Status, Submit
from scaler_protocol.operations import Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import LONGEST_RUN_US, NO_PROFILE, Profile
from scaler_protocol.ranges import Column
from scaler_protocol.schema import struct
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore
from scaler_scheduler.core.foreign_runtimes import PATIENCE_SECONDS
from scaler_scheduler.core.peers import RESIZED_SECONDS
from scaler_scheduler.core.permissions import PERMITTED
from scaler_scheduler.core.queue import AGEING_SECONDS
from scaler_scheduler.core.records import SessionRecord
from scaler_scheduler.core.snapshot import ProcessStats

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")


def test_a_task_goes_to_a_worker_and_its_outcome_to_its_owner(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    runs = driver.runs(agent)
    assert list(runs) == [task]
    driver.done(agent, runs)
    assert driver.outcomes(client) == {task: (Status.VALUE, b"r")}


def test_a_plain_report_is_passed_on_as_it_came(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.done(agent, driver.runs(agent))
    (done,) = driver.take(client, messages.Done)
    assert done.agents == ("w",) and done.runs and len(done.profiles) == len(NO_PROFILE)


def test_the_function_travels_to_an_agent_once(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    (first,) = driver.take(agent, messages.Run)
    driver.done(agent, {first.tasks[0]: first.first_run})
    driver.submit(client)
    (second,) = driver.take(agent, messages.Run)
    assert list(first.bodies) == [b"body"] and not second.functions


def test_unmeasured_work_is_not_piled_up_and_measured_work_is(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    driver.submit(client, 5000)
    given = driver.runs(agent)
    assert len(given) == 2
    sizes = []
    while given:
        sizes.append(len(given))
        driver.done(agent, given, seconds=1e-5)
        given = driver.runs(agent)
    assert sizes[:4] == [2, 4, 8, 16] and max(sizes) > 500


def test_slow_work_is_prefetched_by_one_horizon_at_most(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=4)
    driver.submit(client, 100)
    given = driver.runs(agent)
    driver.done(agent, given, seconds=1.0)
    assert len(driver.runs(agent)) == 4


def test_release_is_passed_on_to_the_agent_that_keeps_the_outcome(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    driver.done(agent, driver.runs(agent))
    driver.feed(client, messages.Release((task,)))
    driver.later(0.1)
    assert [tuple(r.tasks) for r in driver.take(agent, messages.Release)] == [(task,)]
    assert driver.core.state.find(task) is None


def test_a_cancelled_task_that_waits_is_forgotten(driver: SchedulerDriver) -> None:
    client = driver.client()
    first, second = driver.submit(client, 2)
    driver.feed(client, messages.Cancel((first,)))
    agent = driver.agent(workers=2)
    assert list(driver.runs(agent)) == [second]


def test_a_cancelled_run_is_withdrawn_and_holds_its_place_until_it_has_ended(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    first, second = driver.submit(client, 2)
    runs = driver.runs(agent)
    driver.feed(client, messages.Cancel((first,)))
    assert [tuple(w.runs) for w in driver.take(agent, messages.Withdraw)] == [(runs[first],)]
    assert not driver.runs(agent)
    driver.done(agent, runs, Status.CANCELLED)
    assert list(driver.runs(agent)) == [second]
    assert not driver.outcomes(client)


def test_an_agent_that_is_lost_has_its_tasks_run_elsewhere(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"one")
    tasks = driver.submit(client, 3)
    driver.feed(agent, PeerLost("killed"))
    other = driver.agent(b"two", workers=3)
    assert sorted(driver.runs(other)) == tasks


def test_a_task_that_kills_its_workers_is_given_up_at_the_limit(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    for _ in range(3):
        runs = driver.runs(agent)
        assert list(runs) == [task]
        driver.done(agent, runs, Status.LOST, describe(WorkerDiedError("killed by SIGSEGV", host="h", runs=1)))
    status, payload = driver.outcomes(client)[task]
    error = restore(payload)
    assert status == Status.FAILED and isinstance(error, WorkerDiedError)
    assert "SIGSEGV" in str(error) and error.details == {"host": "h", "runs": 3}


def test_a_run_that_had_ended_when_its_worker_died_is_an_attempt_and_not_charged(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    attempts = []
    for _ in range(5):
        (run,) = driver.take(agent, messages.Run)
        attempts += list(run.attempts) or [1]
        lost = describe(WorkerDiedError("killed by SIGSEGV", charged=False))
        driver.done(agent, {task: run.first_run}, Status.LOST, lost)
    assert attempts == [1, 2, 3, 4, 5] and not driver.outcomes(client)
    driver.done(agent, driver.runs(agent), Status.VALUE, b"result")
    assert driver.outcomes(client)[task][0] == Status.VALUE


def test_a_host_that_dies_charges_only_what_was_running(driver: SchedulerDriver) -> None:
    client = driver.client()
    poison, innocent = driver.submit(client, 2)
    for turn in range(3):
        agent = driver.agent(b"agent%d" % turn, workers=2)
        runs = driver.runs(agent)
        driver.feed(
            agent,
            messages.AgentStatus(
                names=("w", "idle"), pids=(1, 2), states=(2, 1), runs=(runs[poison], 0), cpus=(0, 0), rsses=(0, 0),
                queues=(0, 0), newest_run=max(runs.values()),
            ),
        )  # fmt: skip
        driver.feed(agent, PeerLost("killed"))
    assert list(driver.outcomes(client)) == [poison]
    assert list(driver.runs(driver.agent(b"last"))) == [innocent]


def test_user_errors_are_repeated_only_as_often_as_asked(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client, retries=2)
    attempts = []
    for _ in range(3):
        (run,) = driver.take(agent, messages.Run)
        attempts += list(run.attempts) or [1]
        driver.done(agent, {task: run.first_run}, Status.RAISED, pickle.dumps(ValueError()))
    assert attempts == [1, 2, 3]
    assert driver.outcomes(client)[task][0] == Status.RAISED


def test_runs_that_no_connection_took_are_neither_charged_nor_attempts(driver: SchedulerDriver) -> None:
    client = driver.client()
    (task,) = driver.submit(client)
    for turn in range(4):
        agent = driver.agent(b"agent%d" % turn)
        (run,) = driver.take(agent, messages.Run)
        assert tuple(run.tasks) == (task,) and (list(run.attempts) or [1]) == [1]
        driver.feed(agent, PeerLost("its connection is gone", unwritten=((bytes(16), run),)))
    assert not driver.outcomes(client) and not list(driver.core.state.suspects)


@pytest.mark.parametrize("loss", [PeerLost("killed"), PeerLost("it ends", farewell=True)])
def test_runs_that_were_given_up_on_a_worker_are_counted_and_queued_ones_are_not(
    driver: SchedulerDriver, loss: PeerLost
) -> None:
    client, agent = driver.client(), driver.agent()
    running, queued = driver.submit(client, 2)
    given = driver.runs(agent) | driver.runs(agent)
    driver.feed(
        agent,
        messages.AgentStatus(
            names=("w",), pids=(1,), states=(2,), runs=(given[running],), cpus=(0,), rsses=(0,), queues=(0,)
        ),
        Resized(0),
        loss,
    )
    again = driver.agent(b"again", workers=2)
    attempts: dict[int, int] = {}
    for run in driver.take(again, messages.Run):
        attempts.update(zip(run.tasks, run.attempts or [1] * len(run.tasks), strict=True))
    assert attempts == {running: 2, queued: 1}


def test_an_agent_that_reports_many_sizes_is_logged_once_a_second(driver: SchedulerDriver) -> None:
    """A line for each would fill the disk."""
    agent, other = driver.agent(b"one", workers=4), driver.agent(b"two", workers=4)
    before = len(driver.logs)
    for size in (*[5, 4] * 50, 2):
        driver.feed(agent, Resized(size))
    driver.feed(other, Resized(3), Resized(4))
    assert driver.logs[before:] == []
    driver.later(RESIZED_SECONDS)
    assert driver.logs[before:] == ["agent one has 2 workers, 4 before"]


def test_the_outcome_of_a_run_given_up_for_lost_counts_if_it_is_first(driver: SchedulerDriver) -> None:
    client, one = driver.client(), driver.agent(b"one")
    (task,) = driver.submit(client)
    old = driver.runs(one)
    driver.feed(one, PeerLost("silent"))
    two = driver.agent(b"two")
    new = driver.runs(two)
    one = driver.agent(b"one")
    driver.done(one, old, result=b"early")
    assert driver.outcomes(client) == {task: (Status.VALUE, b"early")}
    assert [tuple(w.runs) for w in driver.take(two, messages.Withdraw)] == [(new[task],)]
    driver.done(two, new, result=b"late")
    assert not driver.outcomes(client)
    assert not driver.core.state.agents[two].runs


def test_higher_priority_first_then_in_order(driver: SchedulerDriver) -> None:
    client = driver.client()
    low = driver.submit(client, 2)
    high = driver.submit(client, 2, priority=1)
    agent = driver.agent()
    order: list[int] = []
    while runs := driver.runs(agent):
        order += runs
        driver.done(agent, runs, seconds=1.0)
    assert order == high + low


def test_a_low_priority_is_not_starved_for_ever(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client, 1, priority=1)
    (low,) = driver.submit(client)
    for _ in range(200):
        runs = driver.runs(agent)
        if low in runs:
            return
        driver.now += 1.0
        driver.submit(client, 1, priority=1)
        driver.done(agent, runs, seconds=1.0)
    pytest.fail("the task of low priority never ran")


def test_sessions_take_turns(driver: SchedulerDriver) -> None:
    many, few = driver.client(b"a"), driver.client(b"b")
    agent = driver.agent()
    driver.submit(many, 100)
    late = driver.submit(few, 3)
    position = 0
    places = []
    while runs := driver.runs(agent):
        places += [position for task in runs if task in late]
        position += 1
        driver.done(agent, runs, seconds=1.0)
    assert len(places) == 3 and max(places) < 10


def test_sessions_share_the_time_of_workers(driver: SchedulerDriver) -> None:
    """Although both call the same function, whose mean says nothing about the tasks of either."""
    slow, fast = driver.client(b"a"), driver.client(b"b")
    agent, seconds, worked = driver.agent(workers=1), {}, {1.0: 0.0, 0.01: 0.0}
    seconds.update(dict.fromkeys(driver.submit(slow, 20), 1.0))
    seconds.update(dict.fromkeys(driver.submit(fast, 1500), 0.01))
    while sum(worked.values()) < 20:
        for task, run in driver.runs(agent).items():
            driver.done(agent, {task: run}, seconds=seconds[task])
            worked[seconds[task]] += seconds[task]
    assert 0.45 < worked[0.01] / sum(worked.values()) < 0.55, worked


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST, Status.CANCELLED])
def test_the_time_of_runs_that_were_stopped_or_lost_counts_for_the_share(driver: SchedulerDriver, status: int) -> None:
    """Otherwise a client whose tasks time out, end their workers or are cancelled has all workers for itself."""
    stopped, plain = driver.client(b"a"), driver.client(b"b")
    agent, worked = driver.agent(workers=1), {"stopped": 0.0, "plain": 0.0}
    tasks = set(driver.submit(stopped, 100, timeout_seconds=1.0))
    driver.submit(plain, 1500)
    died = describe(WorkerDiedError("it was killed"))
    while sum(worked.values()) < 20:
        for task, run in driver.runs(agent).items():
            if task not in tasks:
                driver.done(agent, {task: run}, seconds=0.01)
                worked["plain"] += 0.01
                continue
            if status == Status.CANCELLED:
                driver.feed(stopped, messages.Cancel((task,)))
            driver.done(agent, {task: run}, status, b"" if status == Status.CANCELLED else died, seconds=1.0)
            worked["stopped"] += 1.0
    assert 0.45 < worked["plain"] / sum(worked.values()) < 0.55, worked


def test_no_run_took_longer_than_since_its_dispatch(driver: SchedulerDriver) -> None:
    """Else an agent makes the scheduler serve a client never again, and start workers for the work of ages."""
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.later(2.0)
    profile = Profile(LONGEST_RUN_US, 1, 1, 1, 0, 1).packed()
    for task, run in driver.runs(agent).items():
        driver.feed(agent, messages.Done((task,), (0,), Payloads([b""]), runs=(run,), profiles=profile, agents=("w",)))
    status = driver.core.snapshot(ProcessStats("", 0.0, 0.0, 0.0, 0), driver.now)
    assert status.function_seconds == [2.0]
    assert driver.core.state.sessions[client[0]].served == 2.0


def test_the_wait_of_parents_for_their_children_is_no_time_of_workers(driver: SchedulerDriver) -> None:
    """Otherwise their session is served less, its children wait longer, and it is served even less."""
    families, plain = driver.client(b"a"), driver.client(b"b", session=2)
    agent, ran = driver.agent(workers=1), Counter[str]()
    waiting: dict[int, tuple[int, int]] = {}
    """By child: its parent, and the parent's run."""
    started = set(driver.submit(families, 300))
    driver.submit(plain, 600, session=2)
    while sum(ran.values()) < 600:
        for task, run in driver.runs(agent).items():
            if task in started:
                driver.feed(agent, messages.Blocked((run,), (True,)))
                (child,) = driver.submit(agent, parent=run, session=2**31 + ran["parents"])
                ran["parents"] += 1
                waiting[child] = (task, run)
            elif task in waiting:
                driver.done(agent, {task: run}, seconds=0.01)
                parent, its_run = waiting.pop(task)
                driver.done(agent, {parent: its_run}, seconds=30.0)
                ran["children"] += 1
            else:
                driver.done(agent, {task: run}, seconds=0.01)
                ran["plain"] += 1
    assert ran["children"] > ran["plain"] / 3, ran


def test_old_tasks_of_a_low_priority_go_before_younger_ones_of_a_higher_one(driver: SchedulerDriver) -> None:
    client = driver.client()
    old = driver.submit(client, 20)
    driver.now += AGEING_SECONDS - 5
    medium = driver.submit(client, 20, priority=1)
    driver.now += 10
    young = driver.submit(client, 20, priority=1)
    agent, order = driver.agent(workers=1), list[int]()
    while runs := driver.runs(agent):
        order += runs
        driver.done(agent, runs, seconds=1.0)
    assert order == medium + old + young


def test_capabilities_are_honoured_and_do_not_block_others(driver: SchedulerDriver) -> None:
    client, plain = driver.client(), driver.agent(b"plain")
    (special,) = driver.submit(client, capability_names=("gpu",), capability_values=(-1,))
    (simple,) = driver.submit(client)
    assert list(driver.runs(plain)) == [simple]
    assert [text for text in driver.logs if "gpu" in text] == [
        "no connected worker offers gpu: tasks that need it wait"
    ]
    assert list(driver.runs(driver.agent(b"big", capabilities=["gpu"]))) == [special]


@pytest.mark.parametrize("cancelled", range(60, 70))
@pytest.mark.parametrize("by", ["its client", "an operator"])
def test_a_lane_of_which_all_tasks_were_cancelled_serves_those_that_come_later(
    driver: SchedulerDriver, by: str, cancelled: int
) -> None:
    client, other, agent = driver.client(b"c"), driver.client(b"o"), driver.agent()
    operator = b"operator".ljust(16, b".")
    driver.feed(operator, PeerJoined(Hello(Role.OPERATOR, operator, 1), False))
    running = driver.submit(client)
    runs = driver.runs(agent)
    waiting = driver.submit(client, cancelled, priority=5)
    assert list(runs) == running and not driver.runs(agent)
    driver.feed(client if by == "its client" else operator, messages.Cancel(waiting))
    driver.submit(other)
    driver.done(agent, runs)
    driver.done(agent, driver.runs(agent))
    assert driver.runs(agent) == {}, "what was cancelled does not run"
    later = driver.submit(client, priority=5)
    assert list(driver.runs(agent)) == later and driver.core.state.waiting.count == 0


def test_ten_thousand_requirements_stay_cheap_and_each_is_served(driver: SchedulerDriver) -> None:
    names = [f"c{number}" for number in range(300)]
    client, agent = driver.client(), driver.agent(workers=300, capabilities=names)
    for name in names:
        driver.submit(client, capability_names=(name,), capability_values=(-1,))
    assert len(driver.runs(agent)) == 300


def test_the_capability_policy_keeps_rare_workers_free(driver: SchedulerDriver) -> None:
    driver.config = replace(driver.config, allocate_policy="capability")
    driver.__post_init__()
    rare, plain = driver.agent(b"rare", capabilities=["gpu"]), driver.agent(b"plain")
    client = driver.client()
    driver.submit(client)
    assert driver.runs(plain) and not driver.runs(rare)


def test_a_python_that_no_worker_has_fails_naming_both_sides(driver: SchedulerDriver) -> None:
    driver.agent(python="3.11.7", cloudpickle="3.1.2")
    client = driver.client(python="3.12.1", cloudpickle="3.1.2")
    (task,) = driver.submit(client)
    assert driver.outcomes(client) == {}
    driver.later(PATIENCE_SECONDS)
    status, payload = driver.outcomes(client)[task]
    assert status == Status.FAILED and isinstance(restore(payload), NoWorkerError)
    assert "Python 3.12" in str(restore(payload)) and "Python 3.11" in str(restore(payload))


def test_tasks_wait_for_workers_whose_python_was_there_before_or_comes_soon(driver: SchedulerDriver) -> None:
    driver.agent(b"other", python="3.11.7", cloudpickle="3.1.2")
    early = driver.client(python="3.12.1", cloudpickle="3.1.2")
    driver.submit(early)
    driver.later(PATIENCE_SECONDS / 2)
    agent = driver.agent(b"right", python="3.12.1", cloudpickle="3.1.2")
    driver.done(agent, driver.runs(agent))
    driver.feed(agent, PeerLost("its host is started again"))
    later = driver.client(b"later", python="3.12.1", cloudpickle="3.1.2")
    driver.submit(later)
    driver.later(3 * PATIENCE_SECONDS)
    assert len(driver.outcomes(early)) == 1 and driver.outcomes(later) == {}


def test_a_cluster_that_joins_late_gets_work_of_a_full_one(driver: SchedulerDriver) -> None:
    client, early = driver.client(), driver.agent(b"early", workers=2)
    driver.submit(client, 100)
    held = dict(driver.runs(early))
    for _ in range(12):  # until the early agent holds everything
        ended = dict(list(held.items())[:2])
        for task in ended:
            del held[task]
        driver.done(early, ended, seconds=0.001)
        held |= driver.runs(early)
    assert driver.core.state.waiting.count == 0 or len(held) >= 20
    driver.now += 1
    late = driver.agent(b"late", workers=2)
    driver.later(0.1)
    recalls = driver.take(early, messages.Recall)
    if recalls:
        back = list(held.values())[-recalls[0].count :]
        driver.feed(early, messages.Returned(back))
    assert driver.runs(late)


def test_blocked_runs_hold_no_place(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    parent, other = driver.submit(client, 2)
    runs = driver.runs(agent)
    assert list(runs) == [parent]
    driver.feed(agent, messages.Blocked((runs[parent],), (True,)))
    assert list(driver.runs(agent)) == [other]


def test_children_are_owned_through_the_agent_and_run_first(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    parent, sibling = driver.submit(client, 2)
    runs = driver.runs(agent)
    (child,) = driver.submit(agent, parent=runs[parent], session=2**31 + 200)
    driver.feed(agent, messages.Blocked((runs[parent],), (True,)))
    given = driver.runs(agent)
    assert list(given) == [child]
    driver.done(agent, given, result=b"inner")
    assert driver.outcomes(agent) == {child: (Status.VALUE, b"inner")}
    assert list(driver.runs(agent)) == [sibling]


def test_children_die_with_their_parents_run(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    (child,) = driver.submit(agent, parent=runs[parent], session=2**31 + 200)
    driver.done(agent, runs)
    assert driver.outcomes(agent) == {child: (Status.CANCELLED, b"")}
    late = driver.submit(agent, parent=runs[parent], session=2**31 + 200)
    assert driver.outcomes(agent) == {late[0]: (Status.CANCELLED, b"")}
    assert driver.core.state.waiting.count == 0


def test_sessions_that_are_over_do_not_wait_for_the_garbage_collector(driver: SchedulerDriver) -> None:
    def session_records() -> int:
        return sum(type(found) is SessionRecord for found in gc.get_objects())

    before = session_records()
    gc.disable()
    try:
        client, agent = driver.client(), driver.agent()
        for session in range(2**31 + 200, 2**31 + 220):
            (parent,) = driver.submit(client)
            runs = driver.runs(agent)
            driver.submit(agent, parent=runs[parent], session=session)
            driver.done(agent, runs)
        driver.feed(client, PeerLost("gone"))
        driver.feed(agent, PeerLost("gone"))  # which had not answered the last Withdraw
        assert session_records() == before
    finally:
        gc.enable()


def test_children_of_a_cancelled_parent_are_cancelled(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    (child,) = driver.submit(agent, parent=runs[parent], session=2**31 + 200)
    child_run = driver.runs(agent)
    driver.feed(client, messages.Cancel((parent,)))
    withdrawn = [run for w in driver.take(agent, messages.Withdraw) for run in w.runs]
    assert sorted(withdrawn) == sorted([runs[parent], child_run[child]])


def test_a_dependent_waits_for_its_input_and_gets_it(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (source,) = driver.submit(client)
    dependent = source + 100
    runs = driver.runs(agent)
    driver.feed(client, _dependent(dependent, source))
    assert not driver.runs(agent)
    driver.done(agent, runs, result=b"42")
    (run,) = driver.take(agent, messages.Run)
    assert (list(run.tasks), list(run.needs), list(run.inputs)) == ([dependent], [source], [b"42"])


def test_a_dependent_shares_the_fate_of_a_failed_input(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (source,) = driver.submit(client)
    runs = driver.runs(agent)
    driver.feed(client, _dependent(source + 100, source))
    driver.done(agent, runs, Status.RAISED, b"error")
    assert driver.outcomes(client) == {source: (Status.RAISED, b"error"), source + 100: (Status.RAISED, b"error")}


def test_an_input_that_has_ended_is_asked_for(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (source,) = driver.submit(client)
    driver.done(agent, driver.runs(agent), result=b"42")
    driver.feed(client, _dependent(source + 100, source))
    (asked,) = driver.take(client, messages.NeedInputs)
    assert (tuple(asked.tasks), tuple(asked.needs)) == ((source + 100,), (source,))
    driver.feed(client, messages.Inputs(asked.tasks, asked.needs, (Status.VALUE,), Payloads([b"42"])))
    (run,) = driver.take(agent, messages.Run)
    assert list(run.inputs) == [b"42"]


def test_missing_function_bytes_are_asked_for(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    task = (client[0] << 32) + 1
    driver.feed(client, Submit((Group(FUNCTION),), (task,), Payloads([b"call"])))
    (asked,) = driver.take(client, messages.NeedFunctions)
    assert tuple(asked.functions) == (FUNCTION,) and not driver.runs(agent)
    driver.feed(client, messages.Functions(asked.functions, ("n",), Payloads([b"body"])))
    assert list(driver.runs(agent)) == [task]


def test_an_agent_that_dropped_a_function_gets_it_again_from_its_session(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client)
    driver.core.state.functions.use(FUNCTION).body = None
    driver.feed(agent, messages.NeedFunctions((FUNCTION,)))
    (asked,) = driver.take(client, messages.NeedFunctions)
    assert (tuple(asked.functions), asked.session) == ((FUNCTION,), client[0])
    driver.feed(client, messages.Functions(asked.functions, ("n",), Payloads([b"body"])))
    assert [list(answer.bodies) for answer in driver.take(agent, messages.Functions)] == [[b"body"]]


def test_an_input_that_is_named_twice_is_waited_for_once(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (source,) = driver.submit(client)
    runs = driver.runs(agent)
    twice = replace(_dependent(source + 100, source), dependents=(0, 0), needs=(source, source))
    driver.feed(client, twice)
    driver.done(agent, runs, result=b"42")
    (run,) = driver.take(agent, messages.Run)
    assert list(run.inputs) == [b"42"]


def test_a_client_that_leaves_takes_its_work_along(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    driver.submit(client, 10)
    runs = driver.runs(agent)
    driver.feed(client, PeerLost("goodbye"))
    assert [tuple(w.runs) for w in driver.take(agent, messages.Withdraw)] == [tuple(runs.values())]
    driver.done(agent, runs, Status.CANCELLED)
    assert not driver.core.state.sessions and driver.core.state.waiting.count == 0
    assert not driver.core.state.agents[agent].runs


def test_a_protected_scheduler_is_not_shut_down(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.feed(client, messages.Shutdown())
    (answer,) = driver.take(client, messages.ShutdownAnswer)
    assert not answer.accepted and not driver.others


def test_an_unprotected_scheduler_ends_with_its_agents(driver: SchedulerDriver) -> None:
    driver.config = SchedulerConfig(protected=False)
    driver.__post_init__()
    client, agent = driver.client(), driver.agent()
    driver.feed(client, messages.Shutdown())
    assert driver.take(client, messages.ShutdownAnswer)[0].accepted and driver.take(agent, messages.Shutdown)
    assert isinstance(driver.others[0], Stop)


def test_the_end_of_a_cluster_is_told_to_all_clients_but_the_one_that_asked(driver: SchedulerDriver) -> None:
    driver.config = SchedulerConfig(protected=False)
    driver.__post_init__()
    asks, waits, agent = driver.client(b"asks"), driver.client(b"waits"), driver.agent()
    driver.feed(asks, messages.Shutdown())
    driver.core.end("shut down")
    driver.settle()
    assert driver.take(waits, Goodbye) == [Goodbye("shut down")]
    assert not driver.take(asks, Goodbye) and not driver.take(agent, Goodbye)


def test_after_a_restart_running_and_finished_work_is_not_repeated(driver: SchedulerDriver) -> None:
    running, finished, unheard = ((99 << 32) + number for number in (1, 2, 3))
    client = driver.client(b"c", peer_incarnation=3)
    agent = driver.agent(peer_incarnation=3, workers=2)
    driver.feed(client, messages.Reconcile(wanted=(running, finished, unheard)))
    driver.feed(agent, messages.Reconcile(running=(running,), runs=(55,), finished=(finished,)))
    assert [tuple(resend.tasks) for resend in driver.take(agent, messages.Resend)] == [(finished,)]
    driver.done(agent, {running: 55}, result=b"one")
    driver.feed(agent, _kept(finished, 44, b"two"))
    assert driver.outcomes(client) == {running: (0, b"one"), finished: (0, b"two")}
    driver.later(driver.config.recovery_seconds)
    assert [tuple(need.tasks) for need in driver.take(client, messages.NeedTasks)] == [(unheard,)]


def test_an_adopted_task_whose_agent_dies_is_submitted_again(driver: SchedulerDriver) -> None:
    task = (99 << 32) + 1
    agent = driver.agent(b"one", peer_incarnation=3)
    driver.feed(agent, messages.Reconcile(running=(task,), runs=(55,)))
    client = driver.client(b"c", peer_incarnation=3)
    driver.feed(client, messages.Reconcile(wanted=(task,)))
    driver.feed(agent, PeerLost("killed"))
    assert driver.take(client, messages.NeedTasks)
    driver.feed(
        client,
        Submit(
            (Group(FUNCTION),),
            (task,),
            Payloads([b"call"]),
            functions=(FUNCTION,),
            names=("n",),
            bodies=Payloads([b"body"]),
        ),
    )
    assert list(driver.runs(driver.agent(b"two"))) == [task]


@pytest.mark.parametrize(
    "message",
    [
        messages.Run(1, (), (), Payloads(())),
        messages.Done((1,), (0,), Payloads((b"",)), runs=(1,)),
        Submit((Group(FUNCTION),), ((99 << 32) + 1, (98 << 32) + 1), Payloads((b"", b""))),
        Submit((Group(FUNCTION),), ((99 << 32) + 1,), Payloads((b"",)), task_groups=(3,)),
        Submit((Group(FUNCTION),), ((99 << 32) + 1,), Payloads((b"",)), stored=(3,)),
        Submit((Group(FUNCTION),), ((55 << 32) + 1,), Payloads((b"",))),
    ],
)
def test_what_a_client_may_not_say_is_refused(driver: SchedulerDriver, message: messages.Message) -> None:
    client = driver.client(b"c")
    with pytest.raises(ProtocolError):
        driver.feed(client, message)
    driver.settle()


def test_a_refusal_lists_everything_that_is_wrong(driver: SchedulerDriver) -> None:
    refused = driver.core.admit(Hello(9, b"short", 1, protocol=99))
    assert isinstance(refused, Refused) and len(refused.reasons) >= 3
    driver.client(b"c")
    taken = driver.core.admit(Hello(Role.CLIENT, b"x" * 16, 1, session=ord("c")))
    assert isinstance(taken, Refused) and "taken" in taken.reasons[0]
    assert isinstance(driver.core.admit(Hello(Role.CLIENT, b"y" * 16, 1, session=5)), Welcome)


def test_output_goes_to_the_root_session(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2)
    (parent,) = driver.submit(client)
    runs = driver.runs(agent)
    (child,) = driver.submit(agent, parent=runs[parent], session=2**31 + 200)
    driver.feed(agent, messages.Output((child, parent), (1, 2), Payloads([b"in", b"out"])))
    (output,) = driver.take(client, messages.Output)
    assert list(output.texts) == [b"in", b"out"]


def test_an_agent_has_output_of_its_own_tasks_only(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(b"good")
    (task,) = driver.submit(client)
    assert list(driver.runs(agent)) == [task]
    driver.feed(driver.agent(b"evil"), messages.Output((task,), (1,), Payloads([b"forged"])))
    assert not driver.take(client, messages.Output)


def test_a_reconnected_client_finds_its_work(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    driver.feed(client, PeerJoined(Hello(Role.CLIENT, client, 1, session=client[0], epoch=2), True))
    driver.done(agent, driver.runs(agent))
    assert list(driver.outcomes(client)) == [task]


def _dependent(task: int, need: int) -> Submit:
    return Submit((Group(FUNCTION),), (task,), Payloads([b"call"]), dependents=(0,), needs=(need,))


def _kept(task: int, run: int, result: bytes) -> messages.Done:
    return messages.Done((task,), (0,), Payloads([result]), runs=(run,), profiles=NO_PROFILE, agents=("w",))


def test_every_message_that_the_core_takes_is_permitted_to_some_role() -> None:
    core = SchedulerCore(1, SchedulerConfig())
    taken = {kind for kind in core._handlers if kind not in (PeerJoined, PeerLost, SendFailed)}
    assert taken == frozenset[type]().union(*PERMITTED.values())
    assert PERMITTED.keys() == {Role.CLIENT, Role.AGENT, Role.OPERATOR, Role.MANAGER}


@pytest.mark.parametrize("has_key", [True, False])
def test_sessions_of_one_key_share_the_time_that_another_key_gets(
    make_driver: type[SchedulerDriver], has_key: bool
) -> None:
    driver = make_driver()
    driver.core = SchedulerCore(7, driver.config, key_of=lambda peer: peer[:1] if has_key else b"")
    clients = [driver.client(b"a" + bytes([at + 1]), session=at + 1) for at in range(20)]
    other = driver.client(b"b", session=99)
    for session, client in enumerate(clients, 1):
        driver.submit(client, 200, session=session)
    driver.submit(other, 200, session=99)
    agent, ran = driver.agent(), 0
    for _ in range(200):
        given = driver.runs(agent)
        ran += sum(session_of(task) == 99 for task in given)
        driver.done(agent, given, seconds=1.0)
    assert ran == pytest.approx(100 if has_key else 200 / 21, abs=3)


@pytest.mark.parametrize("kind", sorted(frozenset[type]().union(*PERMITTED.values()), key=str))
def test_no_message_is_about_more_tasks_than_one_message_may_name(kind: type) -> None:
    """A turn does nothing else meanwhile, and a message of 32 MiB has room for millions of ids."""
    fields = {field.attribute: field.kind for field in struct(kind.__name__).fields if field.is_list}
    columns = {name: limit_of(kind.__name__, name, each, is_column=True) for name, each in fields.items()}
    paired = getattr(kind, "COLUMNS", ())
    sparse = {"stored", "bodies_stored", "intermediate", "dependents", "needs"}
    alone = [(name,) for name in columns if name not in sparse and not any(name in group for group in paired)]
    for group in [*paired, *alone]:
        if not sparse.intersection(group):
            limits = [limit.most for name in group if isinstance(limit := columns.get(name), Column)]
            assert min(limits) <= MESSAGE_IDS, group
