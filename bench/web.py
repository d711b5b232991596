"""What scaler_ui costs and how quick it is, in headless Chromium, with 1,000 workers and a million finished tasks.

    python bench/web.py [--workers 1000] [--tasks 1000000] [--history]

Prints the time to the first page, to what is found and to all of it; of every page the time from the click on its link
until its values are shown, the time until they are when it is reloaded, and bytes per second to the browser; of sorting
and turning pages of tasks the time from the click until the browser shows it; CPU and memory of the process. Of times
it prints the median of several, and the longest.
Budgets: 1 s to the first page, 200 ms for a page, a sort or a turn, 50 KB/s, 300 MB. They hold on an idle machine.
"""

import argparse
import math
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import probe
from playwright.sync_api import Locator, Page

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from scaler_protocol.addresses import Address
from support.browsers import Traffic, opened, process_of, read, served
from support.faults import resident
from support.processes import Terminal, free_ports
from support.waiting import wait_until

SETTLE_SECONDS = 6.0
ROUNDS = 5
_ROWS = "document.querySelector(`[data-testid='{}'] tbody td`)?.getClientRects().length"
_FIGURES = "document.querySelector(`[data-testid='{}']`)?.innerText"
_LINES = "document.querySelectorAll(`.chart path[stroke='#3b82f6']`).length >= 4"
_BARS = """getElement(document.querySelector(`.nicegui-echart:has(canvas)`))?.chart?.getZr()
  .storage.getDisplayList().length > 400"""
_VALUES = {
    "": f"{_FIGURES.format('success')} && {_LINES}",
    "tasks": _ROWS.format("tasks"),
    "stream": f"{_FIGURES.format('stream-count')} && {_BARS}",
    "functions": _ROWS.format("functions"),
    "graphs": _ROWS.format("graphs"),
    "workers": _ROWS.format("workers"),
    "capacity": _ROWS.format("capacity"),
    "clients": _ROWS.format("clients"),
    "objects": f"{_FIGURES.format('objects')} && {_ROWS.format('biggest')}",
    "events": _ROWS.format("events"),
}
_FOUND = "() => [...document.querySelectorAll('.findings')].some(each => each.getClientRects().length)"
SHOWN = {path: f"() => {condition}" for path, condition in _VALUES.items()}
"""When the values of a page can be seen, and not only its frame."""
_SORTED = """([name, before]) => {
  const head = [...document.querySelectorAll("[data-testid='tasks'] th")].find(th => th.innerText.includes(name));
  return head.ariaSort && head.ariaSort !== before;
}"""
_TURNED = "before => document.querySelector(\"[data-testid='tasks'] .q-table__bottom\").innerText !== before"


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = probe.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


_CLOCK = """([shown, before]) => { window.took = new Promise((done) => {
  const condition = eval(shown);
  addEventListener('click', (event) => {
    const look = () => condition(before)
      ? requestAnimationFrame(() => done(performance.now() - event.timeStamp)) : requestAnimationFrame(look);
    look();
  }, {capture: true, once: true});
}); }"""


def after_click(page: Page, button: Locator, shown: str, before: object = None) -> float:
    """Milliseconds from a click, as the browser dates it, until the frame is drawn in which this holds."""
    page.evaluate(_CLOCK, [shown, before])
    button.click()
    return float(page.evaluate("window.took"))


def after_load(page: Page, address: str, shown: str) -> float:
    """Milliseconds from asking for an address until the frame is drawn in which this holds."""
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_function(shown, polling=5)
    page.evaluate("() => new Promise(requestAnimationFrame)")
    return 1000 * (time.perf_counter() - begun)


def summary(times: list[float]) -> str:
    """Median and longest."""
    return f"{statistics.median(times):4.0f} ms, at most {max(times):4.0f} ms"


def follow(page: Page, path: str) -> float:
    """Milliseconds from the click on the link of a page until its values are shown."""
    return after_click(page, page.locator(f"nav a[href='/{path}']"), SHOWN[path])


def sort(page: Page, name: str) -> float:
    """Milliseconds until the table of tasks is sorted by this column, or the other way round."""
    head = page.locator("[data-testid='tasks'] th").filter(has_text=name).first
    return after_click(page, head, _SORTED, [name, head.get_attribute("aria-sort")])


def turn(page: Page, icon: str) -> float:
    """Milliseconds until another page of the table is shown."""
    before = page.locator("[data-testid='tasks'] .q-table__bottom").inner_text()
    button = page.locator(f"[data-testid='tasks'] button:has-text('{icon}')")
    return after_click(page, button, _TURNED, before)


def status_age(site: str) -> float:
    """Seconds since the scheduler took the status that is shown."""
    found = re.search(r"^scaler_status_timestamp_seconds (\S+)", read(f"{site}/metrics"), re.MULTILINE)
    return time.time() - float(found[1]) if found else math.inf


def measure_pages(page: Page, site: str) -> None:
    """Time the first display of each page."""
    begun = time.perf_counter()
    page.goto(site, wait_until="commit")
    for what, shown in (("what is found", _FOUND), ("all of it", SHOWN[""])):
        page.wait_for_function(shown, polling=5)
        page.evaluate("() => new Promise(requestAnimationFrame)")
        print(f"first page, {what}: {1000 * (time.perf_counter() - begun):.0f} ms")
    followed: dict[str, list[float]] = {path: [] for path in SHOWN}
    for _ in range(ROUNDS):
        for path in [*list(SHOWN)[1:], ""]:
            followed[path].append(follow(page, path))
    for path, times in followed.items():
        loads = [after_load(page, f"{site}/{path}", SHOWN[path]) for _ in range(ROUNDS)]
        print(f"/{path:10} by its link {summary(times)}; reloaded {summary(loads)}")


def measure_traffic(page: Page, site: str, pid: int) -> None:
    """The cost of pages while a browser shows them."""
    traffic = Traffic(page)
    for path in SHOWN:
        page.goto(f"{site}/{path}")
        page.wait_for_timeout(1000)
        traffic.bytes, begun, spent = 0, time.perf_counter(), cpu_seconds(pid)
        page.wait_for_timeout(1000 * SETTLE_SECONDS)
        seconds = time.perf_counter() - begun
        rate, share = traffic.bytes / seconds / 1000, 100 * (cpu_seconds(pid) - spent) / seconds
        print(f"/{path:10} {rate:6.1f} KB/s, {share:3.0f}% CPU")


def measure_table(page: Page, site: str) -> None:
    """Time sorting and paging of the table of tasks."""
    page.goto(f"{site}/tasks")
    page.wait_for_function(SHOWN["tasks"])
    print(page.locator("[data-testid='tasks'] .q-table__bottom").inner_text().replace("\n", " "))
    for name in ("duration", "function", "state", "memory", "agent", "ended", "submitted"):
        print(f"sort by {name:9} {summary([sort(page, name) for _ in range(4)])}")
    for icon in ("chevron_right", "last_page", "chevron_left", "first_page"):
        print(f"{icon:17} {turn(page, icon):4.0f} ms")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--history", action="store_true", help="keep a history in a file meanwhile")
    arguments = parser.parse_args()
    monitor = Address("127.0.0.1", free_ports(1))
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("workers", "tasks", "rate")]
    with (
        tempfile.TemporaryDirectory() as folder,
        Terminal(sys.executable, Path(__file__).with_name("simulated.py"), str(monitor), *sizes) as simulated,
    ):
        simulated.read_until("publishes")
        history = Path(folder) / "history.db" if arguments.history else None
        with served(monitor, insecure=True, history=history) as site, opened(site) as page:
            simulated.read_until("have ended")
            pid = process_of(site)
            late = wait_until(lambda: status_age(site) < 2.0, "the pages show the present")
            taken = f"{cpu_seconds(pid):.1f} s of CPU, {late:.1f} s after the last"
            print(f"{arguments.tasks:,} tasks taken in with {taken}")
            measure_pages(page, site)
            measure_traffic(page, site, pid)
            measure_table(page, site)
            print(f"scaler_ui: {resident(pid)[0] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
