"""Write docs/pictures/overview.png: the Overview of the pages while two clients work; needs Chromium.

`.venv/bin/python tools/picture.py`
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import sync_playwright

from scaler import Client, SchedulerClusterCombo
from scaler_protocol.addresses import Address

TARGET = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "overview.png"
PROGRAM = Path(sys.executable).with_name("scaler_ui")
PORT = 8082
WARM_UP_SECONDS = 45.0
"""The charts show this much work, at least."""


def price_option(strike: float) -> float:
    """A task of about 0.2 s."""
    time.sleep(random.expovariate(5.0))
    return strike


def fit_curve(day: int) -> int:
    """A task of about 1 s; one in 40 fails."""
    time.sleep(random.uniform(0.5, 1.5))
    if random.random() < 0.025:
        raise ValueError(f"day {day}: no quotes")
    return day


def work(address: str, name: str, function: Callable[[int], float], count: int) -> None:
    """Submit all calls of a client, and wait until the process ends."""
    with Client(address=address, name=name) as client:
        futures = [client.submit(function, number) for number in range(count)]
        for future in futures:
            future.exception()


def take(site: str) -> None:
    """Take the picture of the page at an address."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(site)
        time.sleep(WARM_UP_SECONDS)
        page.screenshot(path=str(TARGET))
        browser.close()


def main() -> None:
    """Start a cluster, its clients and its pages, and take the picture."""
    TARGET.parent.mkdir(exist_ok=True)
    with SchedulerClusterCombo(n_workers=6) as cluster:
        address = cluster.get_address()
        for name, function, count in (("pricing", price_option, 2000), ("curves", fit_curve, 400)):
            threading.Thread(target=work, args=(address, name, function, count), daemon=True).start()
        pages = subprocess.Popen([PROGRAM, str(Address.parse(address).beside(2)), "--port", str(PORT)])
        try:
            time.sleep(5)
            take(f"http://127.0.0.1:{PORT}/")
        finally:
            pages.send_signal(signal.SIGINT)
            pages.wait()
            os._exit(0)  # the clients' calls would be waited for


if __name__ == "__main__":
    main()
