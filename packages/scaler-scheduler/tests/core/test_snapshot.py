"""The snapshot that monitors are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scaler_protocol import status_counts
from scaler_protocol.codec import encode
from scaler_protocol.ids import function_id
from scaler_protocol.limits import COUNT, DEATHS
from scaler_protocol.messages import AgentStatus, Group, Submit, WorkerState
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.agent_reports import WORKERS
from scaler_scheduler.core.event_log import TEXTS
from scaler_scheduler.core.snapshot import GRAPHS, SESSIONS, ProcessStats

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FIGURES = ProcessStats("ipc:///test", 0.0, 0.0, 0.0, 0)


def report(count: int, deaths: int = 0, first_run: int = 0) -> AgentStatus:
    """Of an agent with so many workers, with these runs if one is given."""
    ones, texts = [1] * count, ["killed"] * deaths
    runs = range(first_run, first_run + count) if first_run else [0] * count
    return AgentStatus(0.0, 0, 0, 0, ["w"] * count, ones, ones, runs, [1.0] * count, ones, ones, texts)


def test_an_agent_with_many_workers_is_not_told_of_at_the_cost_of_others(driver: SchedulerDriver) -> None:
    agents = {driver.agent(b"one", 2): 2, driver.agent(b"many", 65_535): 65_535, driver.agent(b"two", 3): 3}
    for agent, count in agents.items():
        driver.feed(agent, report(count))
    told = driver.core.snapshot(FIGURES, driver.now)
    one, many, two = (driver.core.state.agents[agent].number for agent in agents)
    assert [told.worker_agents.count(number) for number in (one, many, two)] == [2, 0, 3]
    assert len(told.agents) == 3 and len(told.worker_names) == 5


def test_agents_that_report_too_many_workers_take_little_memory(make_driver: type[SchedulerDriver]) -> None:
    driver, exaggerated = make_driver(), report(WORKERS, deaths=10, first_run=2**50)
    for number in range(100):
        driver.feed(driver.agent(number.to_bytes(2, "big"), 1), exaggerated)
    driver.feed(modest := driver.agent(b"modest", 200), report(200))
    agents = driver.core.state.agents
    kept = [agent.status for agent in agents.values() if agent.status is not None]
    assert len(kept) == 101 and not any(status.deaths for status in kept)
    assert sum(len(status.names) for status in kept) < 40 * WORKERS
    assert sum(len(agent.running) for agent in agents.values()) == 0, "they were not given these runs"
    assert (status := agents[modest].status) is not None and len(status.names) == len(status.queues) == 200


def test_deaths_are_told_of_as_far_as_anybody_could_read_them(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    driver.core.state.event_log.start([], [])
    agent = driver.agent()
    for _ in range(5 * TEXTS // DEATHS):
        driver.feed(agent, report(1, deaths=DEATHS))
    events = driver.core.state.event_log.take(0.0)
    assert events is not None and len(events.texts) == TEXTS


def test_sessions_and_graphs_beyond_a_number_are_summed_up(make_driver: type[SchedulerDriver]) -> None:
    driver = make_driver()
    for number in range(SESSIONS + 3):
        client = driver.client(number.to_bytes(2, "big"), session=number + 1)
        first = ((number + 1) << 32) + 1
        tasks = [first, first + 1] if number else [first, first + 1, first + 2]
        calls, group = Payloads([b"call"] * len(tasks)), Group(b"f" * 16)
        driver.feed(
            client, Submit([group], tasks, calls, graph=first, graph_size=len(tasks), consumers=[0] * len(tasks))
        )
    told = driver.core.snapshot(FIGURES, driver.now)
    assert told.sessions == SESSIONS + 3
    assert len(told.client_sessions) == SESSIONS + 1 and told.client_sessions[0] == 1
    assert (told.client_sessions[-1], told.client_names[-1], told.client_tasks[-1]) == (0, "3 others", 6)
    assert len(told.graphs) == GRAPHS + 1
    assert (told.graphs[-1], told.graph_nodes[-1], told.graph_succeeded[-1]) == (0, 7, 0)


def test_nodes_of_a_graph_run_once_their_agent_has_begun_them(driver: SchedulerDriver) -> None:
    client, agent = driver.client(session=1), driver.agent()
    driver.submit(client, session=1)
    driver.done(agent, driver.runs(agent))
    tasks = list(range(first := (1 << 32) + 2, first + 3))
    group, calls = Group(function_id(b"body")), Payloads([b"call"] * 3)
    driver.feed(client, Submit([group], tasks, calls, graph=first, graph_size=4, consumers=[0] * 3))
    runs = driver.runs(agent)
    assert len(runs) == 2
    driver.feed(agent, report(1, first_run=min(runs.values())))
    told = driver.core.snapshot(FIGURES, driver.now)
    assert (told.graph_nodes, told.graph_assigned, told.graph_running) == ([4], [2], [1])


def test_a_graph_that_claims_any_size_keeps_no_monitor_from_its_status(driver: SchedulerDriver) -> None:
    first = (1 << 32) + 1
    client, group = driver.client(session=1), Group(function_id(b"body"))
    driver.feed(client, Submit([group], [first], Payloads([b"call"]), graph=first, graph_size=2**64 - 1, consumers=[0]))
    told = driver.core.snapshot(FIGURES, driver.now)
    encode(told)
    assert told.graph_nodes == [COUNT.most]


@pytest.mark.parametrize("listened", [False, True])
def test_workers_that_are_too_many_to_be_listed_are_counted(driver: SchedulerDriver, listened: bool) -> None:
    """Those of agents with more than their share, and those of listed agents beyond WORKERS."""
    sizes = {driver.agent(b"few", 2): 2, driver.agent(b"many", WORKERS - 1): WORKERS - 1}
    sizes |= {driver.agent(b"most", WORKERS + 1): WORKERS + 1}
    driver.submit(driver.client(), sum(sizes.values()))
    for agent, size in sizes.items():
        runs = [*driver.runs(agent).values()][:size]
        ones, states = [1] * size, [WorkerState.BLOCKED] + [WorkerState.RUNNING] * (size - 1)
        driver.feed(agent, AgentStatus(0.0, 0, 0, 0, ["w"] * size, ones, states, runs, [0.5] * size, ones, ones))
    agents = [driver.core.state.agents[agent] for agent in sizes]
    assert [agent.sums is not None for agent in agents] == [False, True, True]
    if not listened:  # when it reported, nobody listened
        agents[1].sums = None
    told = driver.core.snapshot(FIGURES, driver.now, first=True)
    few, many, most = (driver.core.state.agents[agent].number for agent in sizes)
    assert set(told.worker_agents) == {few} and sorted(told.unlisted_agents) == [many, most]
    assert status_counts.workers(told) == status_counts.running(told) == 2 * WORKERS + 2
    assert status_counts.unlisted_workers(told) == 2 * WORKERS
    assert status_counts.busy_by_agent(told) == {few: 1, many: WORKERS - 2, most: WORKERS}
    assert (status_counts.blocked(told), status_counts.queued(told)) == (3, 0)
    assert (status_counts.worker_cpu(told), status_counts.worker_rss(told)) == (WORKERS + 1.0, 2 * WORKERS + 2)
    driver.core.state.event_log.take_figures(driver.core.state.agents.values())
    figures = driver.core.state.event_log.history.figures[-1]
    assert (figures.cpu, figures.rss) == (WORKERS + 1.0, 2 * WORKERS + 2)
