"""What scaler_ui costs and how quick it is, in headless Chromium, with 1,000 workers and a million finished tasks.

    python bench/web.py [--workers 1000] [--tasks 1000000]

Prints the time to the first page; of every page the time until it is shown, and bytes per second to the browser; of
sorting and turning pages of tasks the time from the click until the browser shows it; CPU and memory of the process.
Budgets: 2 s to the first page, 200 ms for a sort or a turn, 50 KB/s, 500 MB.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import probe
from playwright.sync_api import Locator, Page, sync_playwright

BIN = Path(sys.executable).parent
SETTLE_SECONDS = 6.0
PAGES = ("", "tasks", "stream", "functions", "graphs", "workers", "capacity", "clients", "objects", "events")
_SORTED = """([name, before]) => {
  const head = [...document.querySelectorAll("[data-testid='tasks'] th")].find(th => th.innerText.includes(name));
  return head.ariaSort && head.ariaSort !== before;
}"""
_TURNED = "before => document.querySelector(\"[data-testid='tasks'] .q-table__bottom\").innerText !== before"


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = probe.read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_megabytes(pid: int) -> float:
    """Resident memory of a process."""
    return int(probe.read_text(f"/proc/{pid}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def milliseconds(click: Locator, page: Page, changed: str, before: object) -> float:
    """From a click until the browser shows what has come of it."""
    begun = time.perf_counter()
    click.click()
    page.wait_for_function(changed, arg=before, polling=5)
    return 1000 * (time.perf_counter() - begun)


def sort(page: Page, name: str) -> float:
    """Milliseconds until the table of tasks is sorted by this column, or the other way round."""
    head = page.locator("[data-testid='tasks'] th").filter(has_text=name).first
    return milliseconds(head, page, _SORTED, [name, head.get_attribute("aria-sort")])


def turn(page: Page, icon: str) -> float:
    """Milliseconds until another page of the table is shown."""
    before = page.locator("[data-testid='tasks'] .q-table__bottom").inner_text()
    return milliseconds(page.locator(f"[data-testid='tasks'] button:has-text('{icon}')"), page, _TURNED, before)


class Counter:
    """Bytes that a page is sent."""

    def __init__(self, page: Page) -> None:
        self.bytes = 0
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.webSocketFrameReceived", lambda event: self._add(len(event["response"]["payloadData"])))
        session.on("Network.dataReceived", lambda event: self._add(event["dataLength"]))

    def _add(self, count: int) -> None:
        self.bytes += count


def measure(page: Page, site: str, pid: int) -> None:
    """All figures."""
    counter = Counter(page)
    begun = time.perf_counter()
    page.goto(site)
    page.wait_for_selector("[data-testid='success']:not(:empty)")
    print(f"first page: {1000 * (time.perf_counter() - begun):.0f} ms")
    for path in PAGES:
        begun = time.perf_counter()
        page.goto(f"{site}/{path}")
        page.wait_for_selector("[data-testid='note']:not(:empty)")
        shown = time.perf_counter() - begun
        page.wait_for_timeout(1000)
        counter.bytes, begun, spent = 0, time.perf_counter(), cpu_seconds(pid)
        page.wait_for_timeout(1000 * SETTLE_SECONDS)
        seconds = time.perf_counter() - begun
        print(
            f"/{path:10} shown after {1000 * shown:5.0f} ms, {counter.bytes / seconds / 1000:6.1f} KB/s, "
            f"{100 * (cpu_seconds(pid) - spent) / seconds:3.0f}% CPU"
        )
    page.goto(f"{site}/tasks")
    page.wait_for_selector("[data-testid='tasks'] tbody tr")
    print(page.locator("[data-testid='tasks'] .q-table__bottom").inner_text().replace("\n", " "))
    for name in ("duration", "function", "state", "memory", "agent", "ended", "since"):
        times = [sort(page, name) for _ in range(4)]
        print(f"sort by {name:9} {statistics.median(times):5.0f} ms, at most {max(times):.0f} ms")
    for icon in ("chevron_right", "last_page", "chevron_left", "first_page"):
        print(f"{icon:17} {turn(page, icon):5.0f} ms")
    print(f"scaler_ui: {rss_megabytes(pid):.0f} MB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2000)
    arguments = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("there is no Chromium: install the Debian package chromium")
    monitor, port = f"tcp://127.0.0.1:{free_port()}", free_port()
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("workers", "tasks", "rate")]
    simulated = [sys.executable, str(Path(__file__).with_name("simulated.py")), monitor, *sizes]
    with (
        subprocess.Popen(simulated, stdout=subprocess.PIPE, text=True) as scheduler,
        subprocess.Popen([str(BIN / "scaler_ui"), monitor, "--port", str(port)], stdout=subprocess.PIPE) as ui,
        sync_playwright() as playwright,
    ):
        try:
            assert scheduler.stdout is not None
            while "have ended" not in scheduler.stdout.readline():
                pass
            time.sleep(2)
            print(f"{arguments.tasks:,} tasks taken in with {cpu_seconds(ui.pid):.1f} s of CPU")
            chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            measure(chromium.new_page(viewport={"width": 1280, "height": 900}), f"http://127.0.0.1:{port}", ui.pid)
            chromium.close()
        finally:
            ui.terminate()
            scheduler.terminate()


if __name__ == "__main__":
    main()
