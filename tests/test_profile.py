"""scaler_profile and the page Profile, over real workers that run real tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scaler import Client
from scaler_io.service.operator_link import OperatorLink
from scaler_protocol.addresses import Address
from scaler_protocol.handshake import ServiceKind
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_ui.model.stack_profile import StackProfile
from scaler_ui.terminal.profile import taken
from support.browsers import opened, served, wait_connected, wait_shown
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.own_keys import OPERATOR, own
from support.processes import PROGRAMS
from support.waiting import wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    started = LocalCluster(tmp_path_factory.mktemp("profile") / "log", n_workers=2)
    yield started
    started.end()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(address=cluster.address) as connected:
        yield connected


def profile_program(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [PROGRAMS / "scaler_profile", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def test_a_task_that_hangs_is_seen_where_it_hangs(
    cluster: LocalCluster, client: Client, gate: Gate, tmp_path: Path
) -> None:
    future = client.submit(wait_at, gate.port, 1)
    arrival = gate.arrive()
    collapsed, page, speedscope = (tmp_path / f"profile.{suffix}" for suffix in ("txt", "html", "json"))
    done = profile_program(cluster.address, "-f", "support.gates:wait_at", "-s", "1", "-o", collapsed)
    assert (done.returncode, done.stderr) == (0, "") and " samples of 2 workers" in done.stdout
    stack, _, count = collapsed.read_text("utf-8").strip().rpartition(" ")
    assert stack.startswith("support.gates:wait_at;wait_at (support/gates.py:") and int(count) > 10
    for file in (page, speedscope):
        assert profile_program(cluster.address, "-s", "1", "-o", file).returncode == 0
    assert "wait_at (support/gates.py:" in page.read_text("utf-8")
    ElementTree.fromstring(page.read_text("utf-8").partition("<svg")[2].join(["<svg", ""]).rpartition("<script>")[0])
    assert json.loads(speedscope.read_text("utf-8"))["profiles"][0]["weights"]
    other = profile_program(cluster.address, "-f", "math:sqrt", "-s", "1")
    assert (other.returncode, other.stdout) == (1, "no task of math:sqrt was seen running\n")
    arrival.let_go()
    assert future.result() == 1 and client.submit(len, "ab").result() == 2


def test_a_worker_that_dies_meanwhile_does_not_matter_and_a_second_profile_waits(
    cluster: LocalCluster, client: Client, gate: Gate
) -> None:
    futures = [client.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in futures]
    address, profile = Address.parse(cluster.address), StackProfile()
    links = [OperatorLink(address, name, ServiceKind.SCHEDULER, credentials=own(OPERATOR)) for name in ("ann", "bob")]

    def is_complete() -> bool:
        for message in links[0].turn():
            if isinstance(message, ProfilePart):
                profile.add(message)
        return profile.is_complete

    try:
        links[0].send(TakeProfile(1, "", 4.0))
        wait_until(lambda: not is_complete() and links[0].is_up, "the first one has asked")
        second = taken(links[1], TakeProfile(2, "", 1.0), cluster.address)
        assert re.fullmatch(r"ann takes a profile of all functions now: ask again in \d s", second.problems[0])
        os.kill(arrivals[0].pid, signal.SIGKILL)
        again = gate.arrive()  # the task is repeated by another worker
        wait_until(is_complete, "the profile is complete")
    finally:
        for link in links:
            link.close()
    assert profile.workers == 1 and profile.problems == [] and "wait_at (support/gates.py:" in profile.as_text()
    for arrival in (again, arrivals[1]):
        arrival.let_go()
    assert [future.result() for future in futures] == [0, 1]


def test_who_may_not_ask_is_told_so(cluster: LocalCluster, tmp_path: Path) -> None:
    for words, said in (
        ((cluster.address, "--insecure"), "scaler_profile: the scheduler at"),
        (("tcp://127.0.0.1:1", "-s", "700"), "'700' is not a number from 1 to 600"),
        ((cluster.address, "-o", "profile.pdf"), "ends with none of .html, .json, .txt"),
        ((cluster.address, "-o", str(tmp_path / "no" / "x.txt")), "there is no directory"),
    ):
        done = profile_program(*words)
        assert done.returncode in (1, 2) and said in done.stderr and len(done.stderr.splitlines()) == 1, done


def test_the_page_draws_flames(cluster: LocalCluster, client: Client, gate: Gate) -> None:
    future = client.submit(wait_at, gate.port, 1)
    arrival = gate.arrive()
    with served(Address.parse(cluster.address).beside(2), "secret") as site, opened(site) as page:
        page.goto(f"{site}/profile?token=secret&function=support.gates:wait_at")
        wait_connected(page)
        page.get_by_label("for", exact=True).click()
        page.get_by_text("5 s", exact=True).click()
        page.get_by_test_id("take").click()
        wait_shown(page, "profile-state", "Workers are sampled for another")
        wait_shown(page, "profile-state", " samples of 2 workers.")
        frames = page.locator(".flames > svg")
        frames.filter(has_text="wait_at (support/gates.py:").wait_for()
        wait_shown(page, "hottest", "wait_at (support/gates.py:")
        frames.last.click()
        page.wait_for_function("() => document.querySelector('.flames > svg').getAttribute('width') === '100%'")
    arrival.let_go()
    assert future.result() == 1
