"""History: what is remembered for monitors that subscribe late."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from scaler_protocol.codec import decode, encode
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.limits import OUTPUT_BYTES
from scaler_protocol.messages import AgentStatus, Done, Group, Output, Status, Submit
from scaler_protocol.monitoring import MonitorHistory, TaskEvents
from scaler_protocol.outputs import KEPT, TRACEBACK
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE, Profile
from scaler_scheduler.core.history import CAUSES, EXCERPTS, FIGURE_SECONDS, PRINTED_BYTES, History, SharedRing

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def test_the_last_causes_are_kept() -> None:
    kept = History()
    for number in range(3 * CAUSES):
        assert kept.add_cause(10**9 + number, 10**9 + number - 1 if number else 7) == 7
    assert len(kept.causes) == CAUSES


def test_who_has_more_loses_its_oldest_first() -> None:
    ring: SharedRing[tuple[str, int]] = SharedRing(10, 1000)
    for number in range(4):
        ring.add("few", ("few", number), 10)
    for number in range(100):
        ring.add("many", ("many", number), 10)
    assert list(ring) == [*(("few", number) for number in range(4)), *(("many", number) for number in range(94, 100))]
    for number in range(100):
        ring.add("third", ("third", number), 10)
    assert sorted(Counter(owner for owner, _ in ring).values()) == [3, 3, 4]


def test_within_its_share_an_owner_loses_the_kind_of_which_it_has_most() -> None:
    ring: SharedRing[tuple[str, str, int]] = SharedRing(10, 1000)
    ring.add("alice", ("alice", "poison", 0), 1, kind="poison")
    for number in range(100):
        ring.add("alice", ("alice", "error", number), 1, kind="error")
    assert list(ring) == [("alice", "poison", 0), *(("alice", "error", number) for number in range(91, 100))]
    for number in range(100):
        ring.add("bob", ("bob", f"kind {number}", number), 1, kind=f"kind {number}")
    owners = [owner for owner, *_ in ring]
    assert owners.count("alice") >= 5, "many kinds are no greater share"
    assert ("alice", "poison", 0) in ring


def test_bytes_are_bounded_and_a_long_entry_goes_alone() -> None:
    ring: SharedRing[int] = SharedRing(10, 1000)
    for number in range(50):
        ring.add("one", number, 400)
    assert list(ring) == [48, 49]
    ring.add("one", 50, 2000)
    assert list(ring) == []
    ring.add("two", 51, 1)
    assert list(ring) == [51]


def test_figures_can_be_sent_whatever_agents_report(driver: SchedulerDriver) -> None:
    agent, most, zeros = driver.agent(workers=2), 2**64 - 1, (0, 0)
    columns = {"names": ("a", "b"), "cpus": (1e9, 1e9), "rsses": (most, most)}
    columns |= dict.fromkeys(("pids", "states", "runs", "queues"), zeros)
    driver.feed(agent, AgentStatus(**columns))  # type: ignore[arg-type]
    driver.later(FIGURE_SECONDS)
    assert decoded(driver.core.state.event_log.history.message(0.0)).figure_rsses[-1] == most


def test_tasks_that_lack_inputs_wait(driver: SchedulerDriver) -> None:
    client = driver.client()
    first = first_task(client[0]) + 1
    driver.feed(
        client,
        Submit(
            (Group(function_id(b"body")),), [first, first + 1], Payloads([b"call"] * 2), graph=first, graph_size=2,
            dependents=[1], needs=[first], functions=(function_id(b"body"),), names=("f",), bodies=Payloads([b"body"]),
        ),
    )  # fmt: skip
    driver.later(FIGURE_SECONDS)
    assert driver.core.state.waiting.count == 1
    assert decoded(driver.core.state.event_log.history.message(0.0)).figure_waiting[-1] == 2


def decoded(message: MonitorHistory) -> MonitorHistory:
    read = decode([bytes(frame) for frame in encode(message)])
    assert isinstance(read, MonitorHistory)
    return read


def printing(driver: SchedulerDriver, agent: bytes, texts: dict[int, list[bytes]], stream: int = KEPT + 1) -> None:
    for task, said in texts.items():
        driver.feed(agent, Output([task] * len(said), [stream] * len(said), Payloads(said)))


def told(message: MonitorHistory | TaskEvents | None) -> list[tuple[int, int, str]]:
    assert message is not None
    return list(zip(message.printed_tasks, message.printed_attempts, message.printed, strict=True))


def test_what_tasks_print_is_kept_for_monitors_and_sent_to_no_client(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    event_log = driver.core.state.event_log
    client, agent = driver.client(), driver.agent()
    (task,) = driver.submit(client)
    driver.runs(agent)
    printing(driver, agent, {task: [b"one\n", b"\xff"], task + 7: [b"a task that is not known"]})
    printing(driver, driver.agent(b"other"), {task: [b"of another agent"]})
    expected = [(task, 1, "one\n"), (task, 1, "\ufffd")]
    assert told(event_log.history.message(0.0)) == expected
    assert event_log.take(0.0) is None and driver.take(client, Output) == []
    event_log.start([], [])
    printing(driver, agent, {task: [b"two\n"]})
    assert told(event_log.take(0.0)) == [(task, 1, "two\n")] and event_log.take(0.0) is None
    printing(driver, agent, {task: [b"to the client"]}, stream=1)
    assert [list(message.streams) for message in driver.take(client, Output)] == [[1]]
    assert told(event_log.history.message(0.0)) == [*expected, (task, 1, "two\n")]


def test_output_is_bounded_by_run_and_in_all(make_driver: type[SchedulerDriver]) -> None:
    """Also of an agent that ignores the limit of a run."""
    driver = make_driver()
    client, agent = driver.client(), driver.agent(workers=300)
    tasks = driver.submit(client, 300)
    driver.runs(agent)
    for _ in range(30):
        printing(driver, agent, {task: [b"x" * 4000] for task in tasks})
    history = driver.core.state.event_log.history
    kept = told(history.message(0.0))
    assert sum(len(text) for _, _, text in kept) < PRINTED_BYTES
    assert max(Counter(task for task, _, _ in kept).values()) * 4000 <= OUTPUT_BYTES + 4096
    assert len(history.printed_bytes) == len(tasks)
    assert len(told(decoded(history.message(0.0)))) == len(kept)


def test_the_type_of_an_exception_that_is_stored_is_known(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    history = driver.core.state.event_log.history
    client, agent = driver.client(), driver.agent(workers=2)
    said, other = driver.submit(client, count=2)
    runs = driver.runs(agent)
    printing(driver, agent, {said: [b"ValueError: a\nTraceback, its end:\nz"]}, stream=TRACEBACK)
    for task in (said, other):
        done = Done([task], [Status.RAISED], Payloads([b"r" * 24]), [runs[task]], [0], NO_PROFILE, "w")
        driver.feed(agent, done)
    assert [failure.read() for failure in history.failures] == [
        "ValueError: a\nTraceback, its end:\nz",
        "the error is too long for monitors: the client has it",
    ]
    for task in range(2 * EXCERPTS):
        history.add_excerpt(task, b"x" * 10_000)
    assert len(history.excerpts) == EXCERPTS and max(map(len, history.excerpts.values())) <= 4096


def test_functions_of_failures_that_are_forgotten_are_told(
    make_driver: type[SchedulerDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver()
    history = driver.core.state.event_log.history
    monkeypatch.setattr(history, "failures", SharedRing(2, 2 * 10_000))
    client, agent = driver.client(), driver.agent()
    times = []
    for _ in range(3):
        assert not decoded(history.message(0.0)).forgotten_functions
        driver.later(1.0)
        driver.submit(client)
        [(task, run)] = driver.runs(agent).items()
        driver.feed(
            agent, Done([task], [Status.RAISED], Payloads([b"r"]), runs=[run], profiles=NO_PROFILE, agents=("w",))
        )
        times.append(driver.core.state.event_log.now)
    told = decoded(history.message(100.0))
    assert (list(told.forgotten_functions), list(told.forgotten_times)) == (["module:function"], [100.0 + times[0]])
    assert len(told.failures) == 2


def test_what_runs_say_about_hosts_and_workers_is_told_to_who_comes_late(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    client, agent = driver.client(), driver.agent()
    for number in range(6):
        driver.submit(client)
        [(task, run)] = driver.runs(agent).items()
        status = Status.RAISED if number == 5 else Status.VALUE
        profile = Profile(2_000_000, 1, 100 + 10 * number, 7, 0, 1).packed()
        driver.feed(agent, Done([task], [status], Payloads([b"r"]), runs=[run], profiles=profile, agents=("w",)))
    told = driver.core.history(0.0)
    assert (told.run_functions, told.run_hosts) == (["module:function"], ["agent"])
    assert (told.run_counts, told.run_seconds) == ([6], [2.0])
    assert told.run_failures[0] == pytest.approx(1 / 6)
    assert (told.growth_functions, told.growth_pids, told.growth_peaks) == (["module:function"], [7], [150])
    assert (told.growth_runs, told.growth_raised, told.growth_sizes) == ([5], [5], [50])
    written = decode([bytes(frame) for frame in encode(told)])
    assert isinstance(written, MonitorHistory) and list(written.growth_sizes) == [50]


def test_the_death_of_a_worker_names_its_agent_once(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    agent = driver.agent(b"vm:6015")
    driver.feed(agent, AgentStatus(deaths=["Worker[0] (vm:6015-6053) was killed", "Symphony was killed (vm:60151)"]))
    told = [text for text in driver.core.history(0.0).events if "killed" in text]
    assert told == ["Worker[0] (vm:6015-6053) was killed", "vm:6015: Symphony was killed (vm:60151)"]


def test_a_relay_alone_names_the_hosts_of_deaths(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    for agent in (driver.agent(b"relay", relay=True), driver.agent(b"agent")):
        driver.feed(agent, AgentStatus(deaths=["a: it was killed"], death_hosts=["there"]))
    told = driver.core.history(0.0)
    deaths = [subject for subject, text in zip(told.event_subjects, told.events, strict=True) if "killed" in text]
    assert deaths == ["there", "agent"]
