"""Pages, menus and notices keep to WCAG 2.1 A and AA as far as axe-core sees, in light and dark, at three widths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import pytest

from scaler import Client
from scaler_protocol.addresses import Address
from support.browsers import BROWSER, PAGES, opened, served, wait_connected
from support.clusters import LocalCluster
from support.gates import Gate, wait_at
from support.tasks import explode

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: install the Debian package chromium")
SIZES = ((1440, 900), (768, 1024), (390, 844))
STANDARD = '{runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}'
COLOURS = '{runOnly: {type: "rule", values: ["color-contrast"]}}'
"""Of all rules, what dark colours can change."""
RUN = """axe.run({}).then(found => found.violations.map(each =>
    `${{each.id}}: ${{each.nodes.map(node => `${{node.target}} ${{node.failureSummary}}`).join("; ")}}`))"""
SUBJECTS = (
    "task/{raised}", "task/{running}", "task/{waiting}", "worker/{worker}", "host/{host}", "client/tester",
    "function/support.tasks:explode", "failure/support.tasks:explode/ValueError", "graph/{graph}", "workload/1/2",
    "task/nothing", "tasks?state=raised&function=support.tasks:explode&sort=nothing",
)  # fmt: skip


class Place(NamedTuple):
    """A page in a browser, where it comes from, and names for addresses."""

    page: Page
    site: str
    names: dict[str, str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Pages for a reader who may act, about tasks in all states."""
    folder = tmp_path_factory.mktemp("accessible")
    with ExitStack() as stack:
        cluster = LocalCluster(folder / "log", n_workers=2, output_limit_per_task="1KiB")
        stack.callback(cluster.end)
        monitor = Address.parse(cluster.address).beside(2)
        site = stack.enter_context(served(monitor, "secret", history=folder / "history.db"))
        page = stack.enter_context(opened(site, faultless=False))  # a browser logs the status 404
        client = stack.enter_context(Client(address=cluster.address, name="tester"))
        gate = stack.enter_context(Gate())
        yield Place(page, site, prepare(page, site, client, gate))


def prepare(page: Page, site: str, client: Client, gate: Gate) -> dict[str, str]:
    """Have tasks in all states; returns names for the addresses of pages."""
    raised = client.submit(explode, "no")
    assert isinstance(raised.exception(), ValueError)
    client.get({"a": (max, 1.0, 2.0), "b": (min, "a", 9.0)}, ["b"])
    client.send_object(bytes(300_000))
    tasks = [client.submit(wait_at, gate.port, number) for number in range(3)]
    for _ in range(2):
        gate.arrive()
    client.submit_verbose(abs, (4,), {}, capabilities={"gpu": 1})
    page.goto(f"{site}/graphs?token=secret")
    graph = page.get_by_test_id("graphs").locator("tbody").get_by_role("link").first.inner_text()
    page.goto(f"{site}/workers")
    links = page.get_by_test_id("workers").locator("tbody tr").first.get_by_role("link")
    worker, _, host = (str(links.nth(at).get_attribute("href")).rpartition("/")[2] for at in range(3))
    ids = dict(
        zip(
            ("raised", "running", "waiting"),
            (f"{each.task_id:x}" for each in (raised, tasks[0], tasks[2])),
            strict=True,
        )
    )
    return {**ids, "graph": graph, "worker": worker, "host": host}


def check(page: Page) -> None:
    """Let axe-core look at what is shown now, at each size, in light and dark."""
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found: list[str] = []
    for dark, rules in ((False, STANDARD), (True, COLOURS)):
        page.evaluate(f"Quasar.Dark.set({str(dark).lower()})")
        page.add_style_tag(content="* { transition: none !important }")
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            found += [f"{'dark' if dark else 'light'}, {width}: {each}" for each in page.evaluate(RUN.format(rules))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", [*PAGES, *SUBJECTS])
def test_a_page(place: Place, path: str) -> None:
    page = place.page
    page.goto(f"{place.site}/{path.format(**place.names)}")
    page.wait_for_selector("[data-testid='note']:not(:empty)")
    wait_connected(page)
    check(page)


@pytest.mark.parametrize(
    ("path", "control"),
    [("tasks", "[data-testid='tasks-state']"), ("tasks", ".q-table__bottom .q-select"), ("stream", ".tools .q-select")],
)
def test_a_menu(place: Place, path: str, control: str) -> None:
    place.page.goto(f"{place.site}/{path}")
    wait_connected(place.page)
    place.page.locator(control).click()
    place.page.wait_for_selector(".q-menu .q-item")
    check(place.page)
    place.page.keyboard.press("Escape")


def test_a_notice(place: Place) -> None:
    place.page.goto(f"{place.site}/task/{place.names['raised']}")
    wait_connected(place.page)
    place.page.get_by_test_id("copy").click()
    place.page.wait_for_selector(".q-notification")
    check(place.page)


def test_a_page_that_has_lost_its_server(place: Place) -> None:
    place.page.goto(f"{place.site}/")
    wait_connected(place.page)
    place.page.evaluate("socket.disconnect()")
    place.page.wait_for_selector("#popup[aria-hidden=false]")
    check(place.page)
