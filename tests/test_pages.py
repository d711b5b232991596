"""scaler_ui in a real browser while real work runs: what pages show equals what the scheduler says."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scaler import Client
from scaler_protocol.addresses import Address
from scaler_protocol.units import size
from scaler_ui.listening import Listening
from scaler_ui.model.addresses import address
from support.browsers import (
    NAMELESS,
    PAGES,
    UNREADABLE,
    opened,
    process_of,
    read,
    refusal,
    served,
    shown,
    wait_connected,
    wait_shown,
)
from support.clusters import LocalCluster
from support.gates import SECONDS, Gate, wait_at
from support.own_keys import MONITOR, own
from support.processes import PROGRAMS, Terminal, descendants, free_ports
from support.tasks import explode
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One of its own: how many tasks wait at the scheduler depends on how long such tasks took before."""
    started = LocalCluster(tmp_path_factory.mktemp("pages") / "log", n_workers=2, output_limit_per_task="1KiB")
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
    with served(monitor) as pages:
        yield pages


@pytest.fixture
def page(site: str) -> Iterator[Page]:
    with opened(site) as made:
        yield made


def metrics_of(site: str) -> dict[tuple[str, str], float]:
    """Every sample by name and by the values of its labels."""
    return {
        (sample.name, "/".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(read(f"{site}/metrics"))
        for sample in family.samples
    }


def wait_order(page: Page, ids: list[str]) -> None:
    """Wait until the table of tasks shows these, from top to bottom."""
    page.wait_for_function(
        """ids => JSON.stringify(ids) === JSON.stringify([...document.querySelectorAll(
            "[data-testid='tasks'] tbody tr td:first-child")].map(cell => cell.innerText))""",
        arg=ids,
    )


IS_DRAWN = """() => {
  const canvas = document.querySelector("[data-testid='graph-canvas']");
  return canvas?.getContext('2d').getImageData(canvas.width * 0.83, canvas.height / 2, 1, 1).data[3] === 255;
}"""
"""Whether the node is drawn that takes the results of all others."""


def test_every_page_shows_what_the_scheduler_says(
    page: Page, site: str, monitor: Address, cluster: LocalCluster, client: Client, gate: Gate
) -> None:
    assert client.map(math.sqrt, range(300)) == [math.sqrt(number) for number in range(300)]
    failed = client.submit(explode, "no")
    assert isinstance(failed.exception(), ValueError)
    assert client.get({"a": (max, 1.0, 2.0), "b": (min, "a", 9.0), "c": (max, "a", "b")}, ["c"]) == {"c": 2.0}
    kept = client.send_object(bytes(300_000))
    lonely = client.submit_verbose(math.sqrt, (4,), {}, capabilities={"gpu": 1})
    running = [client.submit(wait_at, gate.port, number) for number in range(2)]
    arrivals = [gate.arrive() for _ in running]
    waiting = [client.submit(wait_at, gate.port, number) for number in range(2, 5)]
    listening = Listening(monitor, credentials=own(MONITOR))
    listening.wait_for(lambda model: model.status is not None and model.status.waiting == 4, SECONDS)
    listening.wait_for(lambda model: model.storage is not None and model.storage.objects == 1, SECONDS)
    status, storage = listening.model.status, listening.model.storage
    assert status is not None and storage is not None
    listening.close()

    page.goto(f"{site}/")
    wait_shown(page, "waiting", "4")
    wait_shown(page, "success", f"{status.succeeded:,}")
    assert shown(page, "note") == cluster.address
    wait_shown(page, "running", "2")
    assert (shown(page, "workers"), shown(page, "agents")) == ("2", "1")
    assert shown(page, "failed") == f"{status.raised + status.failed:,}"
    wait_shown(page, "progress", f"{client.name}\tsupport.gates:wait_at\t0%\t0\t5\tunknown")
    line = page.get_by_test_id("last-failures").get_by_role("row").filter(has_text="explode").inner_text()
    assert line.split("\t")[2:] == ["ValueError: no", f"{failed.task_id:x}"]
    page.locator(".nicegui-echart").hover(position={"x": 300, "y": 60})
    page.wait_for_function("() => /memory[^]*tasks\\/s/.test(document.querySelector('.nicegui-echart').innerText)")

    page.get_by_role("link", name="Tasks", exact=True).click()
    page.get_by_test_id("tasks-filter").fill("wait_at")
    wait_shown(page, "tasks", "1-5 of 5")
    for future, state in [*((future, "running") for future in running), *((future, "waiting") for future in waiting)]:
        row = page.get_by_test_id("tasks").get_by_role("row").filter(has_text=f"{future.task_id:x}")
        row.filter(has_text=state).filter(has_text="support.gates:wait_at").wait_for()
    page.get_by_role("link", name=f"{waiting[-1].task_id:x}").click()
    wait_shown(page, "why", "it waits behind about 2 tasks of priority 0; 2 workers have 2 tasks")
    assert shown(page, "read-only").startswith("To cancel this task here, start scaler_ui with a login: --token")
    page.go_back()
    wait_shown(page, "tasks", "1-5 of 5")  # the filter is in the address
    ids = sorted(f"{future.task_id:x}" for future in [*running, *waiting])
    for order in (ids, ids[::-1]):
        page.get_by_role("columnheader", name="task", exact=True).click()
        wait_order(page, order)
    page.get_by_test_id("tasks-filter").fill("explode")
    wait_shown(page, "tasks", "raised")
    wait_shown(page, "tasks", "ValueError: no")
    page.get_by_role("link", name=f"{failed.task_id:x}").click()
    wait_shown(page, "reasons", "it has ended: raised, after")
    assert page.get_by_role("heading", name=f"Task {failed.task_id:x}").count() == 1
    assert shown(page, "fault").startswith("Traceback") and "in explode" in shown(page, "fault")

    found = metrics_of(site)
    assert [found["scaler_tasks", state] for state in ("waiting", "held", "queued", "running")] == [4, 0, 0, 2]
    assert found["scaler_graphs_ended_total", ""] == 1 and found["scaler_graphs", ""] == 0
    assert [found["scaler_objects", state] for state in ("memory", "disk", "writing")] == [1, 0, 0]
    assert found["scaler_object_bytes", "memory"] == storage.bytes >= kept.size
    assert found["scaler_storage_memory_limit_bytes", ""] == storage.memory_limit
    assert found["scaler_storage_reads_total", "memory"] == storage.hits

    page.goto(f"{site}/task/{running[0].task_id:x}")
    page.get_by_role("link", name="Where tasks of this function spend their time").click()
    words = f"scaler_profile {cluster.address} --function support.gates:wait_at --seconds 30"
    wait_shown(page, "command", words)
    page.goto(f"{site}/workers")
    wait_shown(page, "workers", "1-2 of 2")
    uncut = [begin.evaluate("begin => begin.nextSibling.data") for begin in page.locator("td.worker .begin").all()]
    assert sorted(int(end.rpartition("-")[2]) for end in uncut) == sorted(status.worker_pids) and len(uncut) == 2
    page.goto(f"{site}/clients")
    wait_shown(page, "clients", client.name)
    page.goto(f"{site}/graphs")
    wait_shown(page, "graphs", "1-1 of 1")
    line = page.get_by_test_id("graphs").locator("tbody").get_by_role("row").inner_text()
    assert line.split("\t")[3:11] == ["3", "3", "0", "0", "0", "0", "0", "100%"]
    page.get_by_test_id("graphs").locator("tbody").get_by_role("link").first.click()
    wait_shown(page, "graph-drawn", "3 nodes in 3 layers")
    wait_shown(page, "fact-critical path", "% of the time")
    wait_shown(page, "critical-path", "builtins:max")
    page.wait_for_function(f"({IS_DRAWN})()")
    box = page.get_by_test_id("graph-canvas").bounding_box()
    assert box is not None
    page.get_by_test_id("graph-canvas").click(position={"x": 0.83 * box["width"], "y": 0.5 * box["height"]})
    wait_shown(page, "fact-function", "builtins:max")
    page.goto(f"{site}/objects")
    wait_shown(page, "objects", "1")
    assert shown(page, "in memory") == size(storage.bytes)
    line = page.get_by_test_id("biggest").locator("tbody").get_by_role("row").inner_text()
    assert line.split("\t")[1:] == [client.name, size(kept.size), "memory"]
    page.goto(f"{site}/capacity")
    wait_shown(page, "demand", "no worker offers gpu=1")
    line = page.get_by_test_id("capacity").locator("tbody").get_by_role("row").inner_text()
    assert line.split("\t")[2:6] == ["1", "2", "2", "2"]
    assert lonely.cancel()
    for arrival in arrivals:
        arrival.let_go()
    for _ in waiting:
        gate.arrive().let_go()
    assert [future.result() for future in [*running, *waiting]] == list(range(5))

    page.goto(f"{site}/functions?dark=1")
    wait_shown(page, "functions", "support.gates:wait_at\t5\t5\t")
    page.goto(f"{site}/stream")
    wait_shown(page, "stream-count", "tasks on 2 workers")
    page.wait_for_function(f"() => ({PARTS})().some((part) => part.stroke === '#d00')")  # what has failed is marked
    page.goto(f"{site}/events")
    wait_shown(page, "events", "ValueError: no")
    page.get_by_role("combobox", name="Kind").click()
    page.get_by_role("option", name="agent", exact=True).click()
    wait_shown(page, "events", "1-1 of 1")
    page.wait_for_url(f"{site}/events?kind=agent")
    assert "connected" in shown(page, "events")


NOTING_DRAWS = """
window.drawn ??= new Map();
const data = JSON.stringify([this.options.xAxis, this.options.series.map((each) => each.data)]);
window.drawn.set(this, [...(window.drawn.get(this) ?? []), data]);
this.chart.setOption("""
"""What a page does whenever it draws a chart: it notes the data."""


@pytest.mark.parametrize("address", ["", "stream"])
@pytest.mark.parametrize("by_link", [False, True])
def test_a_chart_is_drawn_once_when_it_is_new_and_once_for_each_change(
    page: Page, site: str, client: Client, gate: Gate, address: str, by_link: bool
) -> None:
    def noting(route: Route) -> None:
        answer = route.fetch()
        assert answer.text().count("this.chart.setOption(") == 1
        route.fulfill(response=answer, body=answer.text().replace("this.chart.setOption(", NOTING_DRAWS))

    page.route(re.compile(r"/echart\.js$"), noting)
    future = client.submit(wait_at, gate.port, 1)  # it runs, so that each second has another bar
    arrival = gate.arrive()
    page.goto(f"{site}/{'events' if by_link else address}")
    if by_link:
        page.locator(f"nav a[href='/{address}']").click()
    page.wait_for_function("() => [...(window.drawn?.values() ?? [])].some((draws) => draws.length > 3)")
    for draws in page.evaluate("() => [...window.drawn.values()]"):
        assert [before for before, after in itertools.pairwise(draws) if before == after] == []
    arrival.let_go()
    assert future.result() == 1


PARTS = """() => {
  const place = document.querySelector('.nicegui-echart:has(canvas)');
  const parts = getElement(place)?.chart?.getZr().storage.getDisplayList() ?? [];
  return parts.map(({style, shape: {x, y, width, height} = {}}) => (
    {...style, end: {x: x + width - 2, y: y + height / 2}}));
}"""
"""How bars and texts of the timeline are painted, and where bars end: those of running tasks at the right."""
RUNNING = f"() => ({PARTS})().filter((part) => part.opacity === 0.55)"
SPAN = f"""() => {{
  const texts = ({PARTS})().map((part) => String(part.text));
  const times = texts.filter((text) => /^[0-9:]{{8}}$/.test(text)).map((text) => Date.parse(`2000-01-01T${{text}}`));
  const since = times.map((time) => (time - times[0] + 129600000) % 86400000);  // they may go past midnight
  return (Math.max(...since) - Math.min(...since)) / 1000;
}}"""
"""Seconds from the first to the last time that is written below the timeline."""


def wait_running(page: Page, count: int) -> None:
    """Wait until the timeline has this many bars of running tasks."""
    page.wait_for_function(f"(count) => ({RUNNING})().length === count", arg=count)


def test_the_timeline_is_hovered_over_and_zoomed(page: Page, site: str, client: Client, gate: Gate) -> None:
    future = client.submit(wait_at, gate.port, 1)
    arrival = gate.arrive()
    page.goto(f"{site}/stream")
    timeline = page.locator(".nicegui-echart")
    wait_running(page, 1)
    assert page.evaluate(SPAN) > 30
    timeline.hover(position=page.evaluate(RUNNING)[0]["end"])
    page.wait_for_function("() => /wait_at/.test(document.querySelector('.nicegui-echart').innerText)")
    assert "running, " in timeline.inner_text()
    timeline.click(position=page.evaluate(RUNNING)[0]["end"])
    page.wait_for_url(f"{site}/task/{future.task_id:x}")
    page.go_back()
    box = page.get_by_role("checkbox", name="show support.gates:wait_at")
    box.click()
    wait_running(page, 0)
    box.click()
    wait_running(page, 1)
    page.get_by_role("list", name="colours of functions").get_by_role("link").first.click()
    page.wait_for_url(f"{site}/function/support.gates:wait_at")
    page.go_back()
    wait_running(page, 1)
    timeline.hover(position=page.evaluate(RUNNING)[0]["end"])
    for _ in range(10):
        page.mouse.wheel(0, -200)
    page.wait_for_function(f"() => ({SPAN})() < 25")
    page.get_by_role("switch", name="Pause").click()
    arrival.let_go()
    assert future.result() == 1
    ended = f"{site}/tasks?text={future.task_id:x}&state=success"
    wait_until(lambda: "wait_at" in read(ended), "the pages know that the task has ended")
    assert len(page.evaluate(RUNNING)) == 1
    page.get_by_role("switch", name="Pause").click()
    wait_running(page, 0)  # a later picture
    assert page.evaluate(SPAN) < 25


def test_the_labels_of_the_timeline_have_the_colour_of_the_theme(
    page: Page, site: str, client: Client, gate: Gate
) -> None:
    future = client.submit(wait_at, gate.port, 1)
    arrival = gate.arrive()
    page.goto(f"{site}/stream?dark=0")
    wait_running(page, 1)
    page.get_by_role("switch", name="Pause").click()
    inks = f"() => [...new Set(({PARTS})().filter((part) => part.text).map((part) => part.fill))]"
    assert page.evaluate(inks) == ["#55606f"]
    page.get_by_role("button", name="light or dark").click()
    page.wait_for_function(f"() => ({inks})() == '#9eabba'")
    arrival.let_go()
    assert future.result() == 1


def test_all_pages_are_one_document(page: Page, site: str) -> None:
    page.goto(f"{site}/events?dark=1")
    page.wait_for_selector("body.body--dark [data-testid='events']")
    wait_connected(page)
    page.evaluate("window.before = true")
    places = (("Workers", "workers", "workers-filter"), ("Overview", "", "success"), ("Objects", "objects", "biggest"))
    for name, path, part in places:
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_selector(f"[data-testid='{part}']")
        page.wait_for_url(f"{site}/{path}")
        page.wait_for_selector(f"nav a[aria-current=page]:text-is('{name}')")
        page.wait_for_function("name => document.title === `${name} - Scaler`", arg=name)
        assert page.locator("nav a[aria-current]").count() == 1
    page.go_back()
    page.wait_for_selector("[data-testid='success']")
    page.go_back()
    page.wait_for_selector("[data-testid='workers-filter']")
    page.go_forward()
    page.wait_for_selector("[data-testid='success']")
    page.wait_for_function("document.title === 'Overview - Scaler'")
    assert page.locator("[data-testid='workers-filter']").count() == 0
    assert page.evaluate("window.before && document.body.classList.contains('body--dark')")
    page.reload()
    page.wait_for_selector("[data-testid='success']:not(:empty)")
    assert not page.evaluate("window.before")


def test_the_overview_says_most_before_its_scripts_are_there(page: Page, site: str) -> None:
    browser = page.context.browser
    assert browser is not None
    without = browser.new_context(java_script_enabled=False).new_page()
    without.goto(site)
    assert "workers" in without.locator(".preview .findings").inner_text()
    assert without.locator(".preview .figure").all_inner_texts()[1].split() == ["waiting", "0"]
    page.goto(site)
    wait_shown(page, "findings", "workers")
    assert page.locator(".preview").is_hidden()


def test_a_page_marks_old_figures_and_comes_back_by_itself(page: Page, site: str, cluster: LocalCluster) -> None:
    from support.processes import listener_of, stopped

    page.goto(f"{site}/")
    wait_shown(page, "note", cluster.address)
    with stopped(listener_of(cluster.address)):
        wait_shown(page, "note", "stale: nothing was heard for")
    wait_shown(page, "note", cluster.address)


def test_metrics_of_the_pages_are_those_of_the_scheduler(site: str, cluster: LocalCluster, client: Client) -> None:
    client.map(math.sqrt, range(10))
    found = metrics_of(site)
    assert found["scaler_agent_workers", socket.gethostname()] == 2 and found["scaler_up", ""] == 1


@pytest.mark.parametrize(
    ("path", "title", "parts"),
    [
        ("", "Overview", "waiting running success failed workers agents"),
        ("tasks", "Tasks", "tasks tasks-filter tasks-state"),
        ("stream", "Task stream", "stream-count"),
        ("functions", "Functions", "functions functions-filter"),
        ("graphs", "Graphs", "graphs graphs-filter"),
        ("workers", "Workers", "workers workers-filter"),
        ("hosts", "Hosts", "hosts hosts-filter"),
        ("failures", "Failures", "failures failures-filter"),
        ("capacity", "Capacity", "capacity demand"),
        ("clients", "Clients", "clients clients-filter"),
        ("objects", "Objects", "objects biggest"),
        ("events", "Events", "events events-filter"),
        ("history", "History", "workloads workloads-filter kept"),
    ],
)
def test_every_page_is_built_by_the_server(site: str, cluster: LocalCluster, path: str, title: str, parts: str) -> None:
    """The only test of pages that needs no browser: a browser shows what it says here."""
    built = read(f"{site}/{path}")
    assert f"<title>{title} - Scaler</title>" in built
    figures = re.findall(r'"([a-z]+)":"[0-9]', built)
    assert {"note", *parts.split()} <= {*re.findall(r"data-testid[^a-z]+([a-z-]+)", built), *figures}
    assert cluster.address in built  # which the note says unless what is shown is old
    assert '<html lang="en-US">' in built and "role=main" not in built


def test_the_pages_of_tasks_and_functions_are_built_with_what_the_scheduler_says(site: str, client: Client) -> None:
    future = client.submit(math.sqrt, 2.25)
    assert future.result() == 1.5
    wait_until(lambda: f"{future.task_id:x}" in read(f"{site}/tasks"), "the page shows the task")
    assert "math:sqrt" in read(f"{site}/functions")
    printing = client.submit(print, "<b>loss</b> 0.25")
    printing.result()
    wait_until(lambda: "loss" in read(f"{site}/task/{printing.task_id:x}"), "the page shows what the task printed")
    assert "<b>loss" not in read(f"{site}/task/{printing.task_id:x}"), "which is no part of the page"


def test_pages_show_after_a_restart_what_was_before(monitor: Address, cluster: LocalCluster, tmp_path: Path) -> None:
    history = tmp_path / "history.db"
    with served(monitor, history=history) as site, Client(address=cluster.address, name="monday") as client:
        client.map(len, [""] * 30)
        failed = client.submit(explode, "in the night")
        assert isinstance(failed.exception(), ValueError)
        wait_until(lambda: "monday" in read(f"{site}/tasks"), "the page shows the tasks")
        history_page = f"{site}/history"
        wait_until(lambda: '"tasks":30,' in read(history_page), "the page knows how all tasks ended")
    with served(monitor, history=history) as site, opened(site) as page:
        page.goto(f"{site}/task/{failed.task_id:x}")
        wait_shown(page, "fault", "ValueError: in the night")
        page.goto(f"{site}/history")
        wait_shown(page, "kept", f"Kept for 7 days in {history}.")
        wait_connected(page)
        page.get_by_test_id("workloads-filter").fill("builtins:len")
        with Client(address=cluster.address, name="tuesday") as client:
            client.map(len, [""] * 60)
            wait_shown(page, "workloads", "tuesday")
        wait_shown(page, "workloads", "1-2 of 2")
        page.get_by_test_id("workloads").locator("tbody tr").first.get_by_role("link").first.click()
        wait_shown(page, "fact-client", "tuesday")
        wait_shown(page, "fact-client, the other", "monday")
        wait_shown(page, "comparison", "tasks\t60\t30\t+100%\n")
        page.get_by_test_id("other-workloads").get_by_role("link").first.click()
        page.wait_for_url(re.compile(r"/workload/\d+/\d+$"))
        wait_shown(page, "comparison", "run, p95")


@pytest.mark.parametrize("address", ["nowhere", "failure/f", "task/1/2", "workload/1/2/3"])
def test_an_unknown_address_is_a_page_of_ours(site: str, address: str) -> None:
    status, said = refusal(f"{site}/{address}")
    assert status == 404 and "<title>Unknown page - Scaler</title>" in said
    assert "linearGradient" in read(f"{site}/favicon.ico")


def test_addresses_say_what_is_shown(page: Page, site: str, cluster: LocalCluster) -> None:
    """Names in addresses hold any character; Back works; who opens an address sees the same."""
    odd = "a/b?c#d%25 é"
    with Client(address=cluster.address, name=odd) as client:
        client.map(math.sqrt, range(30))
        failed = client.submit(explode, "odd")
        assert isinstance(failed.exception(), ValueError)
        page.goto(f"{site}/clients")
        page.get_by_role("link", name=odd).click()
        page.wait_for_url(f"{site}/client/a%2Fb%3Fc%23d%2525%20%C3%A9")
        wait_shown(page, "tasks", "1-31 of 31")
        page.get_by_test_id("fact-tasks").get_by_role("link").click()
        wait_shown(page, "filter-client", odd)
        page.get_by_role("columnheader", name="duration", exact=True).click()
        page.wait_for_url("**sort=duration")
        page.get_by_role("columnheader", name="duration", exact=True).click()
        page.wait_for_url("**sort=-duration")
        page.get_by_test_id("tasks-filter").fill("sqrt")
        page.wait_for_url("**text=sqrt**")
        wait_shown(page, "tasks", "1-30 of 30")
        shared = page.url
        rows = shown(page, "tasks")
        page.get_by_test_id("tasks").locator("tbody tr").first.get_by_role("link", name="math:sqrt").click()
        page.wait_for_url(f"{site}/function/math:sqrt")
        page.wait_for_function("document.title === 'Function math:sqrt - Scaler'")
        page.go_back()
        page.wait_for_selector("[data-testid='filter-client']")
        assert page.url == shared
        page.goto("about:blank")
        page.goto(shared)
        page.wait_for_selector("th[aria-sort='descending']:has-text('duration')")
        wait_shown(page, "tasks", "1-30 of 30")
        assert shown(page, "tasks") == rows
        page.get_by_role("link", name="Tasks", exact=True).click()
        page.wait_for_url(f"{site}/tasks")
        page.wait_for_selector("[data-testid='filter-client']", state="detached")
        page.get_by_test_id("tasks-filter").fill(f"{failed.task_id:x}")
        wait_shown(page, "tasks", "1-1 of 1")
        for link, place in ((f"{failed.task_id:x}", "task"), ("support.tasks:explode", "function")):
            page.get_by_test_id("tasks").get_by_role("link", name=link).click()
            page.wait_for_selector(f"[data-testid='{place}']")
            page.go_back()
            wait_shown(page, "tasks", "1-1 of 1")


def test_failures_are_grouped_searched_and_copied(page: Page, site: str, client: Client) -> None:
    failed = [client.submit(explode, f"grouped {number}") for number in range(3)]
    assert all(isinstance(future.exception(), ValueError) for future in failed)
    page.goto(f"{site}/failures")
    page.get_by_test_id("failures-filter").fill("grouped 1")
    page.get_by_role("cell", name="1", exact=True).wait_for()
    line = page.get_by_test_id("failures").locator("tbody").get_by_role("row").inner_text()
    assert line.split("\t")[:3] == ["ValueError", "support.tasks:explode", "1"]
    page.get_by_role("link", name="ValueError").click()
    page.wait_for_url(f"{site}/failure/support.tasks:explode/ValueError")
    wait_shown(page, "fault", "in explode")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_test_id("copy").click()
    page.get_by_text("Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("Traceback") and copied == shown(page, "fault")
    page.get_by_test_id("failed-tasks-filter").fill(f"{failed[2].task_id:x}")
    wait_shown(page, "failed-tasks", "ValueError: grouped 2")
    page.goto(f"{site}/")
    sentence = page.get_by_test_id("findings").locator(":scope > *", has_text="raised lately")
    assert re.fullmatch(r"\d+ tasks of support\.tasks:explode raised lately\.", sentence.inner_text())
    sentence.get_by_role("link", name="support.tasks:explode").click()
    page.wait_for_url(f"{site}/function/support.tasks:explode")


@pytest.mark.parametrize(
    ("path", "known_as", "lists"),
    [
        ("task/xyz", "task xyz", "/tasks"),
        ("task/12", "task 12", "/tasks"),
        ("worker/vm-1", "worker vm-1", "/workers"),
        ("host/a%2Fb", "host a/b", "/hosts"),
        ("client/nobody", "client nobody", "/clients"),
        ("function/no:such", "function no:such", "/functions"),
        ("graph/x", "graph x", "/graphs"),
        ("failure/f/KeyError", "failure KeyError of f", "/failures"),
        ("workload/1/999", "workload 1 and 999", "/history"),
    ],
)
def test_unknown_names_have_a_page_with_a_link_to_the_list(site: str, path: str, known_as: str, lists: str) -> None:
    status, said = refusal(f"{site}/{path}")
    assert status == 404
    assert f"404: no {known_as} is known" in said and f'"href":"{lists}"' in said.replace("\\", "").replace(" ", "")


def test_a_page_of_what_is_not_known_yet_shows_it_as_soon_as_it_is(site: str, cluster: LocalCluster) -> None:
    with opened(site, faultless=False) as page:  # a browser logs the status 404
        page.goto(site + address("client", ".."))
        wait_shown(page, "unknown", "404: no client .. is known")
        with Client(address=cluster.address, name=".."):
            wait_shown(page, "fact-state", "connected")


def test_a_page_says_that_its_server_has_ended(monitor: Address) -> None:
    with served(monitor) as own_site, opened(own_site, faultless=False) as page:
        page.goto(f"{own_site}/")
        wait_connected(page)
        process = process_of(own_site)
        os.kill(process, signal.SIGINT)
        page.wait_for_function(f"({NOTE_AFTER})().includes('scaler_ui does not answer')")
        wait_until(lambda: process not in descendants(os.getpid()), "the server has ended")


def test_a_page_says_that_its_server_stands_still(monitor: Address) -> None:
    from support.processes import stopped

    with served(monitor) as own_site, opened(own_site) as page:
        page.goto(f"{own_site}/")
        page.evaluate("new Promise(done => { const hear = window.hear; window.hear = () => { hear(); done(); }; })")
        with stopped(process_of(own_site)):
            page.wait_for_function(f"({NOTE_AFTER})().includes('scaler_ui does not answer')")
            assert not page.evaluate("!!document.querySelector('#popup[aria-hidden=false]')"), "the connection is lost"
        page.wait_for_function(f"({NOTE_AFTER})() === 'none'")


NOTE_AFTER = "() => getComputedStyle(document.querySelector('.note'), '::after').content"


def test_the_choice_of_colours_is_kept(page: Page, site: str) -> None:
    page.emulate_media(color_scheme="dark")
    page.goto(f"{site}/")
    page.wait_for_selector("body.body--dark")
    page.get_by_label("light or dark").click()
    page.wait_for_selector("body.body--light")
    page.goto(f"{site}/workers")
    page.wait_for_selector("body.body--light [data-testid='workers']")


AT = "document.activeElement.closest('tr')?.sectionRowIndex"
"""The row of a table that has the focus."""


def test_the_focus_stays_in_a_table_whose_rows_move_or_leave(page: Page, site: str, client: Client) -> None:
    tasks = [client.submit(math.sqrt, number) for number in range(10)]
    assert tasks[-1].result() == 3
    page.goto(f"{site}/tasks")
    page.get_by_test_id("tasks-filter").fill(f"{client.submit(math.sqrt, 4).task_id >> 32:x}")
    wait_shown(page, "tasks", "1-11 of 11")
    page.get_by_test_id("tasks").locator("tbody tr").nth(2).get_by_role("link").first.focus()
    name = page.evaluate("document.activeElement.innerText")
    page.evaluate("document.querySelector('th.sorted').click()")
    page.wait_for_function(
        f"name => {AT} === 8 && document.activeElement.innerText === name",
        arg=name,
    )
    page.evaluate("document.querySelector('th.sorted').click()")
    page.wait_for_function(f"{AT} === 2")
    client.map(math.sqrt, range(60))
    page.wait_for_function(
        "name => document.activeElement.matches('td a') && document.activeElement.innerText > name", arg=name
    )
    assert page.evaluate(AT) == 2


LABEL = "cell => getComputedStyle(cell, '::before').content"


def test_on_phones_a_row_is_a_card(page: Page, site: str, client: Client) -> None:
    raised = client.submit(explode, "no")
    assert isinstance(raised.exception(), ValueError)
    lonely = client.submit_verbose(math.sqrt, (4,), {}, capabilities={"gpu": 1})
    page.set_viewport_size({"width": 390, "height": 844})
    for task, state, reason in ((raised, "raised", "ValueError: no"), (lonely, "waiting", "no worker offers gpu=1")):
        page.goto(f"{site}/tasks?text={task.task_id:x}")
        wait_shown(page, "tasks", reason)
        card = page.get_by_test_id("tasks").locator("tbody tr")
        cells = {cell.evaluate(LABEL).strip('"'): cell for cell in card.locator("td").all()}
        assert cells["state"].inner_text() == state and cells["error or reason"].inner_text() == reason
        boxes = [box for cell in cells.values() if (box := cell.bounding_box()) is not None]
        assert len(boxes) >= 6 and all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
        assert cells["function"].bounding_box()["y"] < cells["state"].bounding_box()["y"]  # type: ignore[index]
    assert lonely.cancel()


def test_times_are_those_of_the_reader(page: Page, site: str, client: Client) -> None:
    assert client.submit(math.sqrt, 4).result(SECONDS) == 2
    browser = page.context.new_cdp_session(page)
    for zone in ("Asia/Tokyo", "America/Anchorage"):
        browser.send("Emulation.setTimezoneOverride", {"timezoneId": zone})
        page.goto(f"{site}/tasks")
        wait_shown(page, "tasks", "math:sqrt")
        begun = datetime.now(ZoneInfo(zone))
        hours = {(begun - timedelta(minutes=minutes)).strftime("%Y-%m-%d %H:") for minutes in (0, 10)}
        assert any(hour in shown(page, "tasks") for hour in hours)
    browser.send("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_column_heads_stay_while_a_table_scrolls(page: Page, site: str, client: Client) -> None:
    client.map(math.sqrt, range(60))
    page.goto(f"{site}/tasks")
    page.wait_for_selector("[data-testid='tasks'] tbody tr:nth-child(50)")
    page.evaluate("document.querySelector(`[data-testid='tasks'] tbody tr:nth-child(50)`).scrollIntoView()")
    assert page.evaluate("document.querySelector('.q-table__middle').scrollTop") > 0
    assert page.get_by_role("columnheader", name="task", exact=True).bounding_box()["y"] > 0  # type: ignore[index]
    assert page.locator("[data-testid='tasks'] tbody tr").first.bounding_box()["y"] < 0  # type: ignore[index]


def test_other_names_and_origins_are_refused(site: str) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert refusal(urllib.request.Request(f"{site}/", headers=headers))[0] == 403


def test_odd_readers_do_not_keep_the_program_from_ending(monitor: Address) -> None:
    port = free_ports(1)
    site = f"http://127.0.0.1:{port}"
    words: list[str | Path] = [PROGRAMS / "scaler_ui", str(monitor), "--port", str(port)]
    with Terminal("env", "-u", "PYTEST_CURRENT_TEST", *words) as program, socket.socket() as reader:
        wait_until(lambda: read(site), "the pages are there")
        assert refusal(f"{site}/_nicegui_ws/socket.io/?EIO=4&transport=polling")[0] == 400  # WebSockets only
        [script, *_] = re.findall(r"/_nicegui/\S+?\.js", read(site))
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.sendall(f"GET {script} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 50)
        assert reader.recv(1), "he takes no more of all these answers"
        assert program.end(signal.SIGTERM) == 0
        assert not any("Traceback" in line for line in program.rest())


def test_the_older_name_is_the_same_program() -> None:
    said = [
        subprocess.run([PROGRAMS / name, "--help"], capture_output=True, text=True, timeout=SECONDS, check=True).stdout
        for name in ("scaler_ui", "scaler_gui")
    ]
    assert said[0] == said[1] and "scaler_ui tcp://127.0.0.1:2347 --port 8081" in said[0]


def test_a_port_in_use_is_one_line(site: str, monitor: Address) -> None:
    port = site.rpartition(":")[2]
    with Terminal(PROGRAMS / "scaler_ui", str(monitor), "--port", port) as program:
        program.read_until(f"scaler_ui: cannot listen to 127.0.0.1 port {port}: Address already in use")
        assert program.process.wait(SECONDS) == 1 and len(program.lines) == 1


def test_every_page_can_be_read_and_used_without_a_mouse(page: Page, site: str, client: Client) -> None:
    client.map(math.sqrt, range(20))
    client.submit(time.sleep, 1).result()  # it has taken longest, and succeeded
    page.set_viewport_size({"width": 420, "height": 900})
    for path in PAGES:
        page.goto(f"{site}/{path}?dark=0")
        page.wait_for_selector("body.body--light [data-testid='note']:not(:empty)")
        assert page.evaluate(UNREADABLE) == [], f"{path}, light"
        assert page.evaluate(NAMELESS) == [], path
        assert page.locator("main, [role=main]").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is cut off"
        wait_connected(page)
        page.get_by_label("light or dark").click()
        page.wait_for_selector("body.body--dark")
        page.wait_for_function(f"({UNREADABLE})().length === 0")  # when colours have changed
    page.goto(f"{site}/")
    page.wait_for_selector("[data-testid='note']:not(:empty)")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Tasks"
    page.keyboard.press("Enter")
    wait_connected(page)
    head = page.get_by_role("columnheader", name="duration", exact=True)
    head.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("th[aria-sort='ascending']:has-text('duration')")
    page.keyboard.press("Space")
    page.wait_for_selector("th[aria-sort='descending']:has-text('duration')")
    page.get_by_test_id("tasks").locator("tbody tr").first.get_by_role("link").first.focus()
    page.keyboard.press("Enter")
    wait_shown(page, "reasons", "it has ended: success")
    page.wait_for_function(f"({UNREADABLE})().length === 0")  # when it has come
    assert page.evaluate(NAMELESS) == []
