"""scaler_ui in a real browser while real work runs: what pages show equals what the scheduler says."""

from __future__ import annotations

import math
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scaler import Client
from scaler_protocol.addresses import Address
from scaler_ui.listening import Listening
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.processes import PROGRAMS, Terminal, free_ports
from support.tasks import explode

if TYPE_CHECKING:
    from playwright.sync_api import Page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One of its own: how many tasks wait at the scheduler depends on how long such tasks took before."""
    started = LocalCluster(tmp_path_factory.mktemp("pages") / "log", n_workers=2)
    yield started
    started.end()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(address=cluster.address) as connected:
        yield connected


@pytest.fixture(scope="module")
def monitor(cluster: LocalCluster) -> Address:
    return Address.parse(cluster.address).beside(2)


@pytest.fixture(scope="module")
def site(monitor: Address) -> Iterator[str]:
    """Where the pages are."""
    port = free_ports(1)
    words = (PROGRAMS / "scaler_ui", str(monitor), "--port", str(port))
    # With this variable NiceGUI takes itself for a part of the test.
    with Terminal("env", "-u", "PYTEST_CURRENT_TEST", *words) as program:
        assert program.read_until("open").endswith(f"http://127.0.0.1:{port}/")
        wait_for(lambda: "scaler_scheduler_uptime_seconds" in read(f"http://127.0.0.1:{port}/metrics"))
        yield f"http://127.0.0.1:{port}"
        assert program.end() == 0


@pytest.fixture
def page(site: str) -> Iterator[Page]:
    """A page in a browser that asks nobody but us, and finds no fault."""
    if BROWSER is None:
        pytest.skip("there is no Chromium: install the Debian package chromium")
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(1000 * SECONDS)
        opened.on("pageerror", lambda error: faults.append(str(error)))
        opened.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        opened.on("request", lambda asked: None if asked.url.startswith((site, "data:")) else faults.append(asked.url))
        yield opened
        browser.close()
    assert faults == []


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.05)


def read(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer:
            text: str = answer.read().decode()
    except OSError:
        return ""
    return text


def shown(page: Page, name: str) -> str:
    return page.get_by_test_id(name).inner_text()


def wait_shown(page: Page, name: str, text: str) -> None:
    page.wait_for_function(
        "([name, text]) => document.querySelector(`[data-testid='${name}']`)?.innerText.includes(text)",
        arg=[name, text],
    )


def wait_order(page: Page, ids: list[str]) -> None:
    """Wait until the table of tasks shows these, from top to bottom."""
    page.wait_for_function(
        """ids => JSON.stringify(ids) === JSON.stringify([...document.querySelectorAll(
            "[data-testid='tasks'] tbody tr td:first-child")].map(cell => cell.innerText))""",
        arg=ids,
    )


def test_every_page_shows_what_the_scheduler_says(
    page: Page, site: str, monitor: Address, cluster: LocalCluster, client: Client, gate: Gate
) -> None:
    assert client.map(math.sqrt, range(300)) == [math.sqrt(number) for number in range(300)]
    assert isinstance(client.submit(explode, "no").exception(), ValueError)
    running = [client.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in running]
    waiting = [client.submit(wait_at, gate.port, number) for number in range(2, 5)]
    listening = Listening(monitor)
    listening.wait_for(lambda model: model.status is not None and model.status.waiting == 3, SECONDS)
    status = listening.model.status
    assert status is not None
    listening.close()

    page.goto(f"{site}/")
    wait_shown(page, "waiting", "3")
    wait_shown(page, "success", f"{status.succeeded:,}")
    assert shown(page, "note") == cluster.address
    assert (shown(page, "running"), shown(page, "workers"), shown(page, "agents")) == ("2", "2", "1")
    assert shown(page, "failed") == f"{status.raised + status.failed:,}"

    page.get_by_role("link", name="Tasks", exact=True).click()
    page.get_by_test_id("tasks-filter").fill("wait_at")
    wait_shown(page, "tasks", "1-5 of 5")
    for future, state in [*((future, "assigned") for future in running), *((future, "waiting") for future in waiting)]:
        line = page.get_by_test_id("tasks").get_by_role("row").filter(has_text=f"{future.task_id:x}").inner_text()
        assert state in line and "support.gates:wait_at" in line
    page.get_by_text(f"{waiting[-1].task_id:x}").click()
    wait_shown(page, "why", "it waits behind 2 tasks of priority 0; 2 workers have 2 tasks")
    page.keyboard.press("Escape")
    ids = sorted(f"{future.task_id:x}" for future in [*running, *waiting])
    for order in (ids, ids[::-1]):
        page.get_by_role("columnheader", name="task", exact=True).click()
        wait_order(page, order)
    page.get_by_test_id("tasks-filter").fill("explode")
    wait_shown(page, "tasks", "raised")

    page.goto(f"{site}/workers")
    wait_shown(page, "workers", "1-2 of 2")
    page.goto(f"{site}/clients")
    wait_shown(page, "clients", client.identity.decode())
    for arrival in arrivals:
        arrival.let_go()
    for _ in waiting:
        gate.arrive().let_go()
    assert [future.result() for future in [*running, *waiting]] == list(range(5))

    page.goto(f"{site}/functions?dark=1")
    wait_shown(page, "functions", "support.gates:wait_at")
    line = page.get_by_test_id("functions").get_by_role("row").filter(has_text="support.gates:wait_at").inner_text()
    assert line.split("\t")[1:3] == ["5", "5"]
    page.goto(f"{site}/stream")
    wait_shown(page, "stream-count", "tasks on 2 workers")
    page.wait_for_selector("canvas")
    page.goto(f"{site}/events")
    page.wait_for_selector("[data-testid='events']")


def test_a_page_marks_old_figures_and_comes_back_by_itself(page: Page, site: str, cluster: LocalCluster) -> None:
    from support.processes import listener_of, stopped

    page.goto(f"{site}/")
    wait_shown(page, "note", cluster.address)
    with stopped(listener_of(cluster.address)):
        wait_shown(page, "note", "stale: nothing was heard for")
    wait_shown(page, "note", cluster.address)


def test_metrics_of_the_pages_are_those_of_the_scheduler(site: str, cluster: LocalCluster, client: Client) -> None:
    client.map(math.sqrt, range(10))
    found = {family.name: family for family in text_string_to_metric_families(read(f"{site}/metrics"))}
    assert found["scaler_agent_workers"].samples[0].value == 2
    assert re.fullmatch(r"\S+:\d+", found["scaler_agent_workers"].samples[0].labels["agent"])


def test_other_names_and_origins_are_refused(site: str) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        request = urllib.request.Request(f"{site}/", headers=headers)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=SECONDS)


def test_a_port_in_use_is_one_line(site: str, monitor: Address) -> None:
    port = site.rpartition(":")[2]
    with Terminal(PROGRAMS / "scaler_ui", str(monitor), "--port", port) as program:
        program.read_until(f"scaler_ui: cannot listen to 127.0.0.1 port {port}: Address already in use")
        assert program.process.wait(SECONDS) == 1 and len(program.lines) == 1
