"""The dump: who waits for what, and why."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_io.links.link_record import LinkFigures
from scaler_protocol import messages
from scaler_protocol.errors import ProtocolError
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import function_id
from scaler_protocol.messages import AgentStatus, Blocked, Group, Status, Submit
from scaler_protocol.operations import Dump, Resized
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core import dump
from scaler_scheduler.core.call_budgets import TASK_BYTES
from scaler_scheduler.core.effects import WriteDump
from scaler_scheduler.core.snapshot import ProcessStats

if TYPE_CHECKING:
    from conftest import SchedulerDriver

FUNCTION = function_id(b"body")
OPERATOR = b"o" * 16
STATS = ProcessStats("tcp://127.0.0.1:2345", 1e9, 12.0, 0.5, 1000, {"Run": 3}, {"Done": 2}, lambda peer: 0.25)


def dumped(driver: SchedulerDriver, links: list[LinkFigures] | None = None) -> dict[str, Any]:
    """The dump, as others read it."""
    made = driver.core.dump(STATS, links or [], driver.now)
    read: dict[str, Any] = json.loads(json.dumps(made))
    return read


def rows(driver: SchedulerDriver, section: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dumped(driver)[section]["rows"]
    return found


def test_an_operator_alone_is_sent_a_dump(driver: SchedulerDriver) -> None:
    driver.feed(OPERATOR, PeerJoined(Hello(Role.OPERATOR, OPERATOR, 1, name="web"), False))
    driver.feed(OPERATOR, Dump())
    assert driver.others == [WriteDump(OPERATOR)]
    for peer in (driver.client(), driver.agent()):
        with pytest.raises(ProtocolError, match="operator"):
            driver.feed(peer, Dump())


def test_an_idle_scheduler(driver: SchedulerDriver) -> None:
    found = dumped(driver)
    assert found["scheduler"] == {
        "address": "tcp://127.0.0.1:2345", "incarnation": "7", "at": 1e9, "uptime": 12.0, "cpu": 0.5, "rss": 1000,
    }  # fmt: skip
    assert set(found["tasks"].values()) == {0}
    with_rows = {name: section for name, section in found.items() if name not in ("scheduler", "tasks")}
    assert all(section["rows"] == [] and section["left_out"] == 0 for section in with_rows.values())
    assert found["links"]["sent"] == {"Run": 3} and found["links"]["received"] == {"Done": 2}


def test_sessions_agents_and_what_waits(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent(workers=2, capabilities=["linux"])
    tasks = driver.submit(client, 10)
    driver.submit(client, 3, priority=5, capability_names=("gpu",), capability_values=(-1,))
    driver.feed(agent, AgentStatus(queued=1))
    driver.later(4.0)
    found = dumped(driver)
    assert found["tasks"]["waiting"] == 11 and found["tasks"]["assigned"] == 2
    (session,) = found["sessions"]["rows"]
    counts = {name: session[name] for name in ("tasks", "waiting_in_lanes", "waiting", "assigned", "held", "done")}
    assert counts == {"tasks": 13, "waiting_in_lanes": 11, "waiting": 11, "assigned": 2, "held": 0, "done": 0}
    assert session["looked_at"] == 13 and session["credit_bytes"] == 32 * 1024 * 1024
    assert 13 * TASK_BYTES < session["task_bytes"] < session["task_bytes_limit"] == 2**62
    (row,) = found["agents"]["rows"]
    assert (row["name"], row["host"], row["workers"], row["runs"], row["queued"]) == ("agent", "agent", 2, 2, 1)
    assert (row["capabilities"], row["report_age"], row["round_trip"]) == ("linux", 4.0, 0.25)
    assert (row["draining"], row["reserved_for"], row["suspect"]) == (False, "", "")
    lanes = {lane["needs"]: lane for lane in found["lanes"]["rows"]}
    assert lanes["gpu"]["why"] == ["it waits: no worker offers gpu"] and lanes["gpu"]["ahead"] == 0
    plain = lanes[""]
    assert (plain["waiting"], plain["ahead"], plain["priority"], plain["not_served_for"]) == (8, 3, 0, 4.0)
    assert plain["first_task"] == f"{tasks[2]:x}"
    assert plain["why"] == ["it waits behind 3 tasks of priority 5; 2 workers have 2 tasks"]
    driver.feed(agent, Resized(0))
    assert rows(driver, "agents")[0]["draining"]


def test_a_task_that_lacks_inputs_tells_where_they_are_made(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    made, queued = driver.submit(client, 2)
    dependent = queued + 1
    submit = Submit(
        (Group(FUNCTION),), (dependent,), Payloads([b"call"]), dependents=(0, 0, 0), needs=(made, queued, 99)
    )
    driver.feed(client, submit)
    assert driver.runs(agent).keys() == {made}
    found = dumped(driver)["held"]
    assert found["total"] == 1 and found["counts"]["inputs_or_call"] == 1 and found["left_out"] == 0
    (row,) = found["rows"]
    assert (row["task"], row["reason"], row["missing_inputs"]) == (f"{dependent:x}", "inputs", 3)
    waits_for = [(need["task"], need["state"], need.get("agent")) for need in row["waits_for"]]
    assert waits_for == [(f"{made:x}", "assigned", "agent"), (f"{queued:x}", "waiting", None), ("63", "unknown", None)]


def test_a_task_that_lacks_the_bytes_of_its_function(driver: SchedulerDriver) -> None:
    client, _ = driver.client(), driver.agent()
    unknown = function_id(b"another")
    task = driver.submit(client)[0] + 1
    driver.later(1.0)
    driver.feed(client, Submit((Group(unknown),), (task,), Payloads([b"call"])))
    driver.agent(b"free")
    found = dumped(driver)
    assert found["held"]["counts"]["function_bytes"] == 1
    (row,) = found["held"]["rows"]
    assert (row["task"], row["reason"], row["waits_for"]) == (f"{task:x}", "function_bytes", [unknown.hex()])
    first = found["functions"]["rows"][0]
    assert (first["function"], first["body_bytes"], first["tasks_held"]) == (unknown.hex(), None, 1)


def test_a_suspect_waits_for_a_host_of_its_own(driver: SchedulerDriver) -> None:
    client = driver.client()
    first = driver.agent(b"first", workers=2)
    driver.submit(client, 2)
    driver.feed(first, PeerLost("its connection is gone"))
    driver.agent(b"second", workers=2)
    found = dumped(driver)
    assert found["held"]["counts"]["suspect"] == 1, "the other one runs"
    assert [row["reason"] for row in found["held"]["rows"]] == ["suspect"]
    (agent,) = found["agents"]["rows"]
    assert agent["suspect"] and agent["runs"] == 1


def test_a_parent_waits_for_nested_tasks(driver: SchedulerDriver) -> None:
    client, agent = driver.client(), driver.agent()
    (parent,) = driver.submit(client)
    run = driver.runs(agent)[parent]
    first, second = driver.submit(agent, 2, parent=run, session=2**31 + 200)
    driver.feed(agent, Blocked((run,), (True,)))
    driver.done(agent, {first: driver.runs(agent)[first]}, Status.VALUE, b"r")
    found = dumped(driver)
    (row,) = found["blocked_parents"]["rows"]
    assert (row["task"], row["children"], row["open"], row["agent"]) == (f"{parent:x}", 2, 1, "agent")
    assert [child["task"] for child in row["waits_for"]] == [f"{second:x}"]
    assert found["agents"]["rows"][0]["blocked"] == 1
    assert {session["nested"] for session in found["sessions"]["rows"]} == {False, True}


def test_graphs_with_the_functions_of_their_open_nodes(driver: SchedulerDriver) -> None:
    client, _ = driver.client(), driver.agent()
    first = driver.submit(client)[0] + 1
    tasks = (first, first + 1)
    driver.feed(client, Submit((Group(FUNCTION),), tasks, Payloads([b"call"] * 2), graph=first, graph_size=5))
    driver.later(3.0)
    (row,) = rows(driver, "graphs")
    assert (row["first_task"], row["nodes"], row["open"], row["age"]) == (f"{first:x}", 5, 2, 3.0)
    assert [function["submitted"] for function in row["open_functions"]] == [2]


def test_the_worst_links_come_first(driver: SchedulerDriver) -> None:
    good = LinkFigures("good", "h", "a client", 0.1, False, 0, 0, 0.001)
    links = [good] * (dump.LINKS + 5)
    links += [LinkFigures("slow", "h", "a client", 0.1, False, 900, 10, 0.001)]
    links += [LinkFigures("broken", "h", "an agent", 7.0, True, 100, 0, 0.001)]
    found = dumped(driver, links)["links"]
    assert [row["name"] for row in found["rows"][:3]] == ["broken", "slow", "good"]
    assert (found["kept"], found["unread"], found["broken"]) == (1000, 10, 1)
    assert len(found["rows"]) == dump.LINKS and found["left_out"] == 7


def test_names_are_cut_and_everything_can_be_written(driver: SchedulerDriver) -> None:
    driver.feed(
        b"c" * 16, PeerJoined(Hello(Role.CLIENT, b"c" * 16, 1, session=9, name="n" * 4000, host="é" * 2000), False)
    )
    (row,) = rows(driver, "sessions")
    assert len(row["name"].encode()) <= dump.TEXT.most and len(row["host"].encode()) <= dump.TEXT.most


def test_work_and_size_are_bounded(driver: SchedulerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty times as many tasks, sessions and lanes cost no more once the bounds are reached."""
    for bound in ("SESSIONS", "LANES", "HELD_TASKS", "AGENTS"):
        monkeypatch.setattr(dump, bound, 3)
    monkeypatch.setattr(dump, "TASKS_LOOKED", 30)
    for number in range(5):
        driver.agent(b"agent%d" % number)
    for letter in b"abcdef":
        client = driver.client(bytes([letter]))
        driver.submit(client, 50, priority=letter)
    found = dumped(driver)
    for section, left_out in (("sessions", 3), ("agents", 2), ("lanes", 3)):
        assert len(found[section]["rows"]) == 3 and found[section]["left_out"] == left_out, section
    assert [session["looked_at"] for session in found["sessions"]["rows"]] == [10] * 3
    assert found["tasks"]["waiting"] == 295


def test_a_dump_of_many_tasks_takes_no_longer(driver: SchedulerDriver) -> None:
    client = driver.client()
    driver.submit(client, 2 * dump.TASKS_LOOKED)

    def least_seconds() -> float:
        taken = []
        for _ in range(5):
            started = time.thread_time()
            driver.core.dump(STATS, [], driver.now)
            taken.append(time.thread_time() - started)
        return min(taken)

    few = least_seconds()
    for _ in range(2):
        driver.submit(client, 50_000)
    assert least_seconds() < 3 * few + 0.002


def test_a_task_whose_call_is_missing_after_a_restart(driver: SchedulerDriver) -> None:
    client = driver.client(peer_incarnation=6)
    wanted = (ord("c") << 32) + 1
    driver.feed(client, messages.Reconcile(wanted=(wanted,)))
    agent = driver.agent(peer_incarnation=6)
    driver.feed(agent, messages.Reconcile((wanted,), (5,)))
    driver.feed(agent, PeerLost("gone"))
    (row,) = rows(driver, "held")
    assert row["reason"] == "call"
