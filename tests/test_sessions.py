"""Named sessions with real processes: a client is killed in the middle of its work, and another one gets all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from operator import add
from pathlib import Path

import pytest

from scaler import Client
from scaler_launch.results import NoResultsError, show
from scaler_protocol.addresses import Address
from scaler_protocol.errors import SessionInUseError
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.relays import Relay
from support.session_client import BIG, CALLS, expected, graph, work
from support.waiting import wait_until

PROGRAM = Path(__file__).parent / "support" / "session_client.py"


def lines(runs: Path) -> Counter[int]:
    """How often each number was worked on."""
    return Counter(map(int, runs.read_text("ascii").split())) if runs.exists() else Counter()


def begin_and_kill(cluster: LocalCluster, session: str, runs: Path, kind: str, after: int) -> None:
    """Start a client in a process of its own, and kill it when so many of its tasks have begun."""
    command = [sys.executable, "-m", "support.session_client", cluster.address, session, str(runs), kind]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        wait_until(lambda: lines(runs).total() >= after)
        process.kill()


def test_a_map_of_a_killed_client_goes_on_and_is_read_by_another_one(cluster: LocalCluster, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    begin_and_kill(cluster, "killed-map", runs, "map", after=300)
    assert lines(runs).total() < CALLS
    with Client(cluster.address, session="killed-map", timeout_seconds=SECONDS) as client:
        first, *others = client.session.futures()
        assert client.session.future("first") is first and first.result(SECONDS) == -1
        assert [future.result(SECONDS) for future in others] == [expected(number) for number in range(CALLS)]
    assert lines(runs) == Counter(range(-1, CALLS)), "a task was lost or ran twice"
    with Client(cluster.address, session="killed-map", timeout_seconds=SECONDS) as client:
        again = client.session.futures()
        assert len(again) == CALLS + 1 and again[101].result(SECONDS) == expected(100), "results are kept when read"
        client.session.end()
    with Client(cluster.address, session="killed-map", timeout_seconds=SECONDS) as client:
        assert client.session.futures() == []


def test_a_graph_of_a_killed_client_goes_on(cluster: LocalCluster, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    begin_and_kill(cluster, "killed-graph", runs, "graph", after=3)
    with Client(cluster.address, session="killed-graph", timeout_seconds=SECONDS) as client:
        total = sum(range(1000, 1016))
        assert client.session.future("root").result(SECONDS) == total
        assert sorted(future.result(SECONDS) for future in client.session.futures()) == sorted(
            [total, sum(range(1008, 1016))]
        )
        client.session.end()
    assert lines(runs).total() == len(graph("")) - 1


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster that gives clients up after 1 s."""
    started = LocalCluster(tmp_path_factory.mktemp("hasty") / "log", n_workers=2, client_timeout_seconds=1)
    yield started
    started.end()


def wait_given_up(cluster: LocalCluster, session: str) -> None:
    wait_until(lambda: f"session {session}: its client is gone" in cluster.log.read_text("utf-8"))


def test_a_graph_that_was_lost_on_its_way_while_the_client_was_given_up_is_sent_again(hasty: LocalCluster) -> None:
    with (
        Gate() as gate,
        Relay(Address.parse(hasty.address)) as relay,
        Client(str(relay.address), session="lost-graph", timeout_seconds=SECONDS) as client,
    ):
        received = client.submit(wait_at, gate.port, 1)
        arrival = gate.arrive()
        relay.swallow()
        nodes = client.get({"one": 1, "sum": (add, "one", 2), "last": (add, "sum", 4)}, ["last"], block=False)
        wait_given_up(hasty, "lost-graph")
        relay.cut()
        assert nodes["last"].result(SECONDS) == 7
        arrival.let_go()
        received.result(SECONDS)
        client.session.end()


def test_a_client_that_was_stopped_for_longer_than_its_timeout_goes_on(hasty: LocalCluster, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "support.session_client", hasty.address, "stopped", str(runs), "graph"]
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            wait_until(lambda: lines(runs))  # the scheduler has the graph
            process.send_signal(signal.SIGSTOP)
            wait_given_up(hasty, "stopped")
            process.send_signal(signal.SIGCONT)
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
    assert lines(runs).total() == len(graph("")) - 1


def test_a_second_client_is_refused_while_the_first_is_there(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler_client.runtime.connection.SESSION_SECONDS", 0.0)
    with Client(cluster.address, session="one-at-a-time") as first:
        with pytest.raises(SessionInUseError, match="'one-at-a-time' is in use by a client on"):
            Client(cluster.address, session="one-at-a-time")
        assert first.submit(pow, 2, 3).result(SECONDS) == 8
    with Client(cluster.address, session="one-at-a-time") as second:
        second.session.end()


def test_calls_that_wait_for_their_arguments_outlive_a_client_that_disconnects(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with Gate() as gate:
        with Client(cluster.address, session="left") as first:
            held = [first.submit(wait_at, gate.port, number) for number in range(2)]
            arrived = [gate.arrive() for _ in held]
            table = first.send_object(b"t" * BIG)
            behind = first.submit(work, str(tmp_path / "runs"), 100, table)
            first.session.publish("behind", first.submit(len, behind))
        for arrival in arrived:
            arrival.let_go()
        with Client(cluster.address, session="left") as second:
            assert second.session.future("behind").result(SECONDS) == BIG
            assert second.submit(len, second.session.futures()[2]).result(SECONDS) == BIG
            second.session.end()


def test_what_only_the_calls_hold_outlives_a_client_that_disconnects(cluster: LocalCluster) -> None:
    text = "t" * BIG
    with Gate() as gate:
        with Client(cluster.address, session="left-objects") as first:
            held = [first.submit(wait_at, gate.port, number) for number in range(2)]
            arrived = [gate.arrive() for _ in held]
            first.submit(len, b"a" * BIG)
            first.submit(lambda: text)
            first.get({"data": bytearray(BIG), "size": (len, "data")}, ["size"], block=False)
        for arrival in arrived:
            arrival.let_go()
        with Client(cluster.address, session="left-objects") as second:
            futures = second.session.futures()[2:]
            assert [future.result(SECONDS) for future in futures] == [BIG, text, BIG]
            second.session.end()


def test_results_on_the_command_line(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(cluster.address, session="shown") as client:
        client.session.publish("kilo", client.submit(pow, 2, 10))
        client.session.publish("broken", client.submit(int, "x"))
        assert client.session.future("kilo").result(SECONDS) == 1024
        assert client.session.future("broken").exception(SECONDS) is not None
        with pytest.raises(NoResultsError, match="is in use"):
            show([cluster.address, "shown", "--drop"])
    assert show([cluster.address, "shown", "--json"]) == 0
    kilo, broken = map(json.loads, capsys.readouterr().out.splitlines())
    assert (kilo["name"], kilo["state"], kilo["result"]) == ("kilo", "succeeded", "1024")
    assert (broken["state"], broken["error"]) == (
        "raised",
        "ValueError: invalid literal for int() with base 10: 'x'",
    )
    assert show([cluster.address, "shown"]) == 0
    assert "succeeded builtins:pow kilo result 1024" in capsys.readouterr().out
    assert show([cluster.address, "shown", "--drop"]) == 0
    with pytest.raises(NoResultsError, match="there is no session 'shown'"):
        show([cluster.address, "shown"])
