"""Programs that watch, in front of a scheduler that exists only as what it publishes: many workers, many tasks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scaler_protocol.addresses import Address
from support.browsers import PAGES, Traffic, opened, process_of, served, shown, wait_connected, wait_shown
from support.faults import resident
from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, free_ports

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIMULATED = Path(__file__).resolve().parents[1] / "bench" / "simulated.py"
SIZES = [(100, 10_000), pytest.param((1000, 1_000_000), marks=[pytest.mark.soak, pytest.mark.timeout(300)])]
LISTENED_SECONDS = 5.0
BYTES_PER_SECOND = 50_000
MEMORY_BYTES = 500 * 1024 * 1024


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}-workers")
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    workers, tasks = request.param
    return workers, tasks


@pytest.fixture
def monitor(size: tuple[int, int]) -> Iterator[Address]:
    """Where the simulated scheduler publishes."""
    address = Address("127.0.0.1", free_ports(1))
    words = (f"--workers={size[0]}", f"--tasks={size[1]}")
    with Terminal(sys.executable, SIMULATED, str(address), *words) as program:
        program.read_until("publishes")
        yield address


def column(page: Page, at: int) -> list[str]:
    return page.locator(f"[data-testid='tasks'] tbody td:nth-child({at})").all_inner_texts()


def test_pages_of_many(size: tuple[int, int], monitor: Address) -> None:
    workers, tasks = size
    with served(monitor, insecure=True) as site, opened(site) as page:
        traffic = Traffic(page)
        page.goto(f"{site}/")
        wait_shown(page, "workers", f"{workers:,}")
        page.wait_for_function(
            f"+document.querySelector(`[data-testid='success']`).innerText.replaceAll(',', '') >= {tasks * 0.9}"
        )
        page.goto(f"{site}/tasks")
        wait_connected(page)
        page.wait_for_function(
            "tasks => +document.querySelector(`[data-testid='tasks']`).innerText.replaceAll(',', '')"
            ".match(/of (\\d+)/)?.[1] >= tasks",
            arg=tasks,
        )
        for name, at in (("function", 2), ("state", 3)):
            page.get_by_role("columnheader", name=name, exact=True).click()
            page.wait_for_selector(f"th[aria-sort='ascending']:has-text('{name}')")
            cells = column(page, at)  # once: the table is renewed every second
            assert cells == sorted(cells) and len(cells) == 50
        page.get_by_test_id("tasks").get_by_role("button", name="last page").click()
        wait_shown(page, "tasks", f"{tasks - 49:,}-{tasks:,}" if tasks == 1_000_000 else "-")
        for path in PAGES if tasks == 1_000_000 else ("workers", "stream"):
            page.goto(f"{site}/{path}")
            wait_connected(page)
            traffic.bytes, begun = 0, time.monotonic()
            page.wait_for_timeout(LISTENED_SECONDS * 1000 if tasks == 1_000_000 else 1)
            seconds = time.monotonic() - begun
            assert traffic.bytes <= BYTES_PER_SECOND * max(1.0, seconds), path
        assert shown(page, "note") == "tcp://127.0.0.1:2345"
        assert resident(process_of(site))[1] < MEMORY_BYTES


def test_top_with_many_workers(size: tuple[int, int], monitor: Address) -> None:
    done = subprocess.run(
        [PROGRAMS / "scaler_top", str(monitor), "--insecure", "--once", "--json"],
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    fields = json.loads(done.stdout)
    assert fields["total"]["workers"] == size[0] == len(fields["workers"])


def test_a_page_comes_back_when_its_server_was_away(monitor: Address, size: tuple[int, int]) -> None:
    port = free_ports(1)
    with opened(f"http://127.0.0.1:{port}", faultless=False) as page:
        with served(monitor, port=port, insecure=True) as site:
            page.goto(f"{site}/workers")
            wait_connected(page)
        page.wait_for_function("() => !window.socket?.connected")
        with served(monitor, port=port, insecure=True):
            wait_connected(page)
            wait_shown(page, "workers", f"1-50 of {size[0]:,}")
