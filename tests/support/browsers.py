"""A real browser that looks at scaler_ui."""

from __future__ import annotations

import os
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scaler_protocol.addresses import Address
from support.gates import SECONDS
from support.processes import PROGRAMS, Terminal, command_line, descendants, free_ports
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PAGES = (
    "", "tasks", "failures", "stream", "functions", "profile", "graphs", "workers", "hosts", "capacity", "clients",
    "objects", "events", "history",
)  # fmt: skip


@contextmanager
def served(
    monitor: Address, token: str = "", port: int = 0, *, insecure: bool = False, history: Path | None = None
) -> Iterator[str]:
    """scaler_ui at this port, or one of its own, with this token and history if there are any; where its pages are."""
    words = [*(["--token", token] if token else []), *["--insecure"] * insecure]
    words += [] if history is None else ["--history", str(history)]
    port = port or free_ports(1)
    command: list[str | Path] = [PROGRAMS / "scaler_ui", str(monitor), "--port", str(port), *words]
    # With this variable NiceGUI takes itself for a part of the test.
    with Terminal("env", "-u", "PYTEST_CURRENT_TEST", *command) as program:
        assert f"http://127.0.0.1:{port}/" in program.read_until("open")
        metrics = f"http://127.0.0.1:{port}/metrics?token={token}"
        wait_until(lambda: "scaler_scheduler_start_time_seconds" in read(metrics), "the pages know the scheduler")
        yield f"http://127.0.0.1:{port}"
        assert program.end() == 0
        rest = program.rest()
        assert rest == [], "\n".join(rest)


@contextmanager
def opened(site: str, width: int = 1280, *, faultless: bool = True) -> Iterator[Page]:
    """A page in a browser that sends requests only to our server, and logs no error."""
    if BROWSER is None:
        pytest.skip("there is no Chromium: install the Debian package chromium")
    from playwright.sync_api import sync_playwright

    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(1000 * SECONDS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        page.on("request", lambda asked: None if asked.url.startswith((site, "data:")) else faults.append(asked.url))
        yield page
        browser.close()
    assert faults == [] or not faultless


class Traffic:
    """Bytes that a page is sent."""

    def __init__(self, page: Page) -> None:
        self.bytes = 0
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        session.on("Network.webSocketFrameReceived", lambda event: self._add(len(event["response"]["payloadData"])))
        session.on("Network.dataReceived", lambda event: self._add(event["dataLength"]))

    def _add(self, count: int) -> None:
        self.bytes += count


def process_of(site: str) -> int:
    """The process that serves these pages; a child of this one."""
    port = site.rpartition(":")[2]
    (found,) = [pid for pid in descendants(os.getpid()) if f"--port {port}" in command_line(pid)]
    return found


def read(address: str) -> str:
    """The text of a page; "" without a server, or with an error status."""
    try:
        keeping = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with keeping.open(address, timeout=SECONDS) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as refused:
        refused.close()  # Python 3.14 warns of one that nobody closes
        return ""
    except OSError:
        return ""
    return text


def refusal(request: str | urllib.request.Request, trust: ssl.SSLContext | None = None) -> tuple[int, str]:
    """The error status that a server answers, and the text of its page."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=SECONDS, context=trust)
    with refused.value as answer:
        return answer.code, answer.read().decode()


def shown(page: Page, name: str) -> str:
    """The text of a part of the page."""
    return page.get_by_test_id(name).inner_text()


def wait_connected(page: Page) -> None:
    """Wait until the page takes orders."""
    page.wait_for_function("() => window.socket?.connected && window.did_handshake")


def wait_shown(page: Page, name: str, text: str) -> None:
    """Wait until a part of the page shows this."""
    page.wait_for_function(
        "([name, text]) => document.querySelector(`[data-testid='${name}']`)?.innerText.includes(text)",
        arg=[name, text],
    )


UNREADABLE = """() => {
  const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const context = canvas.getContext('2d', {willReadFrequently: true});
  const parse = (color) => {
    context.clearRect(0, 0, 1, 1); context.fillStyle = color; context.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
    return {r, g, b, a: a / 255};
  };
  const over = (top, below) => Object.fromEntries(
    ['r', 'g', 'b'].map((part) => [part, top[part] * top.a + below[part] * (1 - top.a)]).concat([['a', 1]]));
  const light = ({r, g, b}) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const behind = (element) => {
    if (!element) return parse(document.body.classList.contains('body--dark') ? '#121212' : '#fff');
    const own = parse(getComputedStyle(element).backgroundColor);
    return own.a === 1 ? own : over(own, behind(element.parentElement));
  };
  const opacity = (element) => element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].filter((node) => node.nodeType === 3);
    const text = own.map((node) => node.data).join('').trim();
    const style = getComputedStyle(element);
    const unseen = style.visibility === 'hidden' || !element.getClientRects().length;
    const hidden = unseen || element.closest('[aria-hidden]');
    if (!text || hidden || element.matches('script, style, i')) continue;
    const below = behind(element);
    const ink = parse(element.closest('svg') ? style.fill : style.color);
    ink.a *= opacity(element);
    const [a, b] = [light(over(ink, below)), light(below)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) found.push(`${text}: ${ratio.toFixed(1)}`);
  }
  return found;
}"""
"""Texts with less contrast than 4.5 to 1 (WCAG 2, level AA)."""

NAMELESS = """() => [...document.querySelectorAll('input, button, a, [role=button], [role=combobox]')]
  .filter((element) => element.getClientRects().length && !element.closest('[aria-hidden=true]'))
  .filter((element) => !(element.getAttribute('aria-label') || element.innerText?.trim() || element.title
    || element.closest('label')?.innerText.trim()))
  .map((element) => element.outerHTML)"""
"""Controls without an accessible name."""
