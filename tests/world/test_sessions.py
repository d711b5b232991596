"""Named sessions: clients leave them, or are lost, and later ones get what was left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaler_client.core.events import SessionRequested, TaskLabelled
from scaler_protocol.errors import HandshakeRefusedError, ResultDroppedError, SessionInUseError
from scaler_protocol.ids import session_key
from scaler_protocol.messages import Group, Status
from scaler_protocol.sessions import ConfirmTasks, EndSession, KeepSession, ListTasks
from world.callers import WorldClient, WorldFuture
from world.cluster import CONFIG, World, plans
from world.plans import FUNCTION, Plan

NAME = "nightly-run"


def world_with(seed: int = 0, **settings: object) -> tuple[World, WorldClient]:
    """A World whose only client has a named session."""
    world = World(seed, hosts=[2, 2], clients=0, **settings)  # type: ignore[arg-type]
    client = world.add_client(NAME)
    world.run(0.05)
    return world, client


def come_back(world: World, left: list[WorldFuture]) -> tuple[WorldClient, list[WorldFuture]]:
    """Another client of the session, with the futures of these tasks, all of which the session must have."""
    client = world.add_client(NAME)
    world.until(lambda: client.core._link.up, 5.0)
    client.ask(SessionRequested(ListTasks(1)))
    world.until(lambda: client.listed, 5.0)
    assert [task for task, (_, _, claimed) in client.listed.items() if not claimed] == [each.task_id for each in left]
    return client, client.adopt(*left)


def check_each_ran_once(world: World, futures: list[WorldFuture]) -> None:
    assert sorted(execution.task for execution in world.history) == sorted(future.task_id for future in futures)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("way", ["leave", "kill", "silence"])
def test_all_tasks_of_a_client_that_is_gone_end_once_and_are_read_by_the_next(seed: int, way: str) -> None:
    world, first = world_with(seed)
    futures = first.submit(*plans(100, 0.05))
    world.run(1.0)
    assert 0 < len(first.answers) < 100
    if way == "leave":
        first.leave(world.now)
    elif way == "kill":
        first.kill()
    else:
        first.gone = True
        world.connection(first).stall(1e6)
        first.shell.alive = False
    world.run(15.0)
    second, again = come_back(world, futures)
    world.finish()
    world.check_as_expected(again)
    check_each_ran_once(world, futures)
    more = second.submit(*plans(10))
    world.finish()
    world.check_as_expected(more)
    assert not {future.task_id for future in more} & {future.task_id for future in futures}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_task_has_two_runs_when_its_client_is_killed(restarts: bool) -> None:
    world, first = world_with(journal=restarts)
    world.host.slowness = 20.0
    futures = first.submit(*plans(20, 0.5), group=Group(FUNCTION, speculate=True))
    world.until(lambda: len(world.history) > len(futures))
    first.kill()
    if restarts:
        world.restart_scheduler()
    world.run(1.0)
    _, again = come_back(world, futures)
    world.finish()
    world.check_as_expected(again)


def test_what_runs_is_read_when_it_ends_and_what_failed_fails() -> None:
    world, first = world_with()
    futures = first.submit(Plan(5.0, value="late"), Plan(0.01, raises=True), Plan(0.01, value="early"))
    world.run(1.0)
    first.leave(world.now)
    _, again = come_back(world, futures)
    world.until(lambda: again[2].outcome(), 1.0)
    assert again[0].outcome() is None
    world.finish()
    world.check_as_expected(again)
    check_each_ran_once(world, futures)


def test_dependencies_and_graphs_go_on_without_their_client() -> None:
    world, first = world_with()
    base = first.submit(Plan(0.5, value="base"))
    others = first.submit(Plan(0.5, value="other"), needs=base)
    asked = first.graph(
        [Plan(0.3, value=f"n{at}") for at in range(10)], [[], *([at] for at in range(9))], asked=[4, 9], size=3
    )
    world.run(0.6)
    first.kill()
    world.run(20.0)
    _, again = come_back(world, [*base, *others, *asked])
    world.finish()
    assert [future.outcome() for future in again] == [future.expected() for future in [*base, *others, *asked]]
    assert len(world.history) == len({execution.task for execution in world.history}) == 12


def test_faults_while_nobody_is_there() -> None:
    world, first = world_with(5)
    futures = first.submit(*plans(60, 0.1))
    world.run(0.5)
    first.kill()
    world.kill_worker(world.hosts[0])
    world.run(1.0)
    world.hosts[1].kill()
    world.add_host(2)
    world.run(30.0)
    _, again = come_back(world, futures)
    world.finish()
    world.check_as_expected(again)


def test_a_client_that_was_away_longer_than_its_timeout_goes_on_and_nothing_runs_twice() -> None:
    world, client = world_with()
    futures = client.submit(*plans(50, 0.5))
    world.run(2.0)
    connection = world.connection(client)
    connection.stall(40.0)
    world.run(38.0)
    world.finish()
    world.check_as_expected(futures)
    check_each_ran_once(world, futures)


def test_a_second_client_is_refused_unless_the_first_is_gone() -> None:
    world, first = world_with()
    futures = first.submit(*plans(4, 30.0))
    second = world.add_client(NAME)
    world.run(1.0)
    assert isinstance(second.failure, SessionInUseError) and "in use by a client on client0" in str(second.failure)
    second.kill()
    world.connection(first).stall(1e6)
    world.run(12.0)
    third, again = come_back(world, futures)
    assert third.failure is None
    world.connection(first).cut()
    world.until(lambda: all(future.outcome() for future in futures), 10.0)
    assert isinstance(first.failure, SessionInUseError)
    assert {future.status for future in futures} == {Status.FAILED}
    first.kill()
    world.finish()
    world.check_as_expected(again)


def test_another_secret_is_refused() -> None:
    world, first = world_with()
    stranger = world.add_client(NAME)
    stranger.dialer.uplink._hello = replace(stranger.dialer.uplink._hello, session_key=b"x" * 32)
    world.run(1.0)
    assert isinstance(stranger.failure, HandshakeRefusedError) and "another secret" in str(stranger.failure)
    first.leave(world.now)


def test_names_of_futures_and_the_end_of_the_session() -> None:
    world, first = world_with()
    futures = first.submit(*plans(3, 0.01), Plan(60.0))
    first.ask(TaskLabelled(futures[1].task_id, "total"))
    world.run(1.0)
    first.leave(world.now)
    second, _ = come_back(world, futures)
    assert [label for label, _, _ in second.listed.values()] == ["", "total", "", ""]
    second.ask(SessionRequested(EndSession(2)))
    world.run(1.0)
    second.leave(world.now)
    world.run(1.0)
    state = world.scheduler.core.state
    assert not state.sessions and not state.results.bytes and not any(agent.runs for agent in state.agents.values())
    orders = [order.message for order in world.scheduler.to_storage if isinstance(order.message, KeepSession)]
    assert [order.keep for order in orders] == [True, False]


def test_results_are_kept_for_the_retention_and_then_the_session_is_forgotten() -> None:
    world, first = world_with(config=replace(CONFIG, result_retention_seconds=100.0))
    futures = first.submit(*plans(20, 0.01))
    world.run(1.0)
    first.leave(world.now)
    world.run(60.0)
    second, again = come_back(world, futures)
    world.finish()
    world.run(0.2)
    second.leave(world.now)
    world.run(95.0)
    assert world.scheduler.core.state.results.bytes
    world.run(10.0)
    state = world.scheduler.core.state
    assert not state.sessions and not state.results.bytes and world.scheduler.core.due() is None
    world.check_as_expected(again)


def test_beyond_the_limit_those_go_first_that_a_client_has_received() -> None:
    world, first = world_with(config=replace(CONFIG, result_limit=2000))
    read = first.submit(*plans(5, 0.01))
    world.finish()
    world.run(1.0)
    unread = first.submit(*plans(10, 0.5))
    world.run(0.01)
    first.kill()
    world.run(30.0)
    second = world.add_client(NAME)
    world.run(1.0)
    second.ask(SessionRequested(ListTasks(1)))
    world.until(lambda: second.listed, 5.0)
    assert second.listed.keys().isdisjoint(future.task_id for future in read)
    again = second.adopt(*(future for future in unread if future.task_id in second.listed))
    world.finish()
    lost = [future for future in again if future.status == Status.FAILED]
    assert 0 < len(lost) < 10 and all(isinstance(future.error, ResultDroppedError) for future in lost)
    world.check_as_expected(future for future in again if future not in lost)
    results = world.scheduler.core.state.results
    assert results.bytes <= 2000 and results.dropped


def test_after_a_restart_of_the_scheduler_a_client_that_is_there_goes_on() -> None:
    world, first = world_with()
    futures = first.submit(*plans(100, 0.05))
    world.run(1.0)
    world.restart_scheduler()
    world.finish(30.0)
    world.check_as_expected(futures)
    assert len(world.history) == len({execution.task for execution in world.history})
    first.leave(world.now)
    world.run(1.0)
    assert world.scheduler.core.state.sessions


def test_a_journal_brings_a_session_back_whose_client_and_scheduler_are_gone() -> None:
    world, first = world_with(journal=True)
    futures = first.submit(*plans(60, 0.2))
    first.ask(TaskLabelled(futures[5].task_id, "five"))
    world.run(1.0)
    assert 0 < len(first.answers) < 60
    first.kill()
    world.run(0.5)
    world.restart_scheduler()
    world.run(60.0)
    second, again = come_back(world, futures)
    world.finish()
    world.check_as_expected(again)
    check_each_ran_once(world, futures)
    assert second.listed[futures[5].task_id][0] == "five"


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_client_that_leaves_after_a_restart_leaves_all_its_tasks(seed: int, journal: bool) -> None:
    world, first = world_with(seed, journal=journal)
    futures = first.submit(*plans(60, 0.2))
    futures += first.submit(Plan(0.1, value="behind"), needs=futures[-1:])
    world.run(0.3)
    world.restart_scheduler()
    read = set(first.answers)
    world.until(lambda: first.core._link.up, 5.0)
    first.ask(SessionRequested(ConfirmTasks(1)))
    world.until(lambda: 1 in first.confirmed, 15.0)
    first.leave(world.now)
    world.run(30.0)
    left = [future for future in futures if future.task_id not in read or journal]
    second = world.add_client(NAME)
    world.run(1.0)
    again = second.adopt(*left)
    world.finish()
    assert [future.outcome() for future in again] == [future.expected() for future in left]


def test_a_confirmation_counts_only_if_nothing_was_sent_since_it_was_asked_for() -> None:
    world, first = world_with()
    world.connection(first).stall(0.5)
    first.ask(SessionRequested(ConfirmTasks(1)))
    world.run(0.1)
    futures = first.submit(*plans(20))
    world.run(0.1)
    world.restart_scheduler()
    world.until(lambda: 1 in first.confirmed, 15.0)
    first.kill()
    world.run(5.0)
    _, again = come_back(world, futures)
    world.finish()
    world.check_as_expected(again)


def chain(count: int) -> tuple[list[Plan], list[list[int]]]:
    """A graph in which each node needs the one before."""
    return [Plan(0.05, value=f"n{at}") for at in range(count)], [[], *([at] for at in range(count - 1))]


@pytest.mark.parametrize("received", range(5))
@pytest.mark.parametrize("asked", [(19,), (2, 19), (1, 9, 12, 19)])
def test_graphs_of_a_client_that_was_away_too_long_are_sent_again_as_far_as_they_were_missed(
    received: int, asked: tuple[int, ...]
) -> None:
    world, client = world_with()
    pieces = client.graph_pieces(*chain(20), asked, size=5)
    plain = client.submit(*plans(5, 0.01))
    for piece in pieces[:received]:
        client.ask(piece)
    world.run(0.5)
    world.connection(client).cut(dialer_notices=False)
    for piece in pieces[received:3]:
        client.ask(piece)
    plain += client.submit(*plans(5, 0.01))
    world.run(1.0)
    client.shell.stop(40.0)
    world.connection(client).cut()
    world.run(30.0)
    assert not world.scheduler.hub.is_connected(client.identity)
    for piece in pieces[max(received, 3) :]:
        client.ask(piece)
    plain += client.submit(*plans(5, 0.01))
    world.finish()
    world.check_as_expected(client.futures.values())
    nodes = {task for piece in pieces for task in piece.tasks}
    assert sorted(execution.task for execution in world.history) == sorted({*nodes, *(each.task_id for each in plain)})


def test_a_client_whose_session_was_ended_while_it_was_away_is_told_so_and_nothing_runs_again() -> None:
    world, first = world_with()
    futures = first.submit(*plans(4, 30.0))
    world.run(1.0)
    first.shell.stop(40.0)
    world.connection(first).cut()
    world.run(30.0)
    other = world.add_client()
    other.ask(SessionRequested(EndSession(1, NAME, session_key(NAME, b""))))
    world.until(lambda: 1 in other.confirmed, 5.0)
    world.finish()
    assert {future.status for future in futures} == {Status.FAILED}
    assert isinstance(first.failure, HandshakeRefusedError)
    assert f"session {NAME!r} was ended while this client was away" in str(first.failure)
    assert len(world.history) == len({execution.task for execution in world.history})
    another = world.add_client(NAME)
    world.run(1.0)
    assert another.failure is None and another.core._link.up
