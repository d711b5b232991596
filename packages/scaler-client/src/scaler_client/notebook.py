"""What notebooks show of clients, local clusters and futures, with links to the pages of scaler_ui."""

from __future__ import annotations

import os
from collections.abc import Mapping
from html import escape
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from scaler_protocol.addresses import Address

DASHBOARD_VARIABLE: Final = "SCALER_DASHBOARD"
"""Where the pages are, for clients of clusters that others have started."""
served_pages: Final[dict[str, str]] = {}
"""Where the pages are, by the address of the scheduler, of local clusters that serve some."""


class Link(NamedTuple):
    """A text that leads to an address."""

    text: str
    address: str


def html_table(title: str, rows: Mapping[str, str | Link]) -> str:
    """A table of names and values as HTML, escaped; empty values are left out."""
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{_cell(value)}</td></tr>'
        for name, value in rows.items()
        if value
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def _cell(value: str | Link) -> str:
    if isinstance(value, str):
        return escape(value)
    return f'<a href="{escape(value.address)}" target="_blank" rel="noopener">{escape(value.text)}</a>'


def monitor_of(scheduler: str) -> str:
    """The default monitor address of a scheduler."""
    return str(Address.parse(scheduler).beside(2))


def dashboard_of(scheduler: str | None) -> str | None:
    """Where the pages of a scheduler are: of a local cluster, or what the environment says; None if neither does."""
    return served_pages.get(scheduler or "") or os.environ.get(DASHBOARD_VARIABLE) or None


def dashboard_row(scheduler: str | None) -> str | Link:
    """The pages of a scheduler as a value of a table; empty if they are not known."""
    link = dashboard_of(scheduler)
    return Link(_without_token(link), link) if link else ""


def task_row(task: int) -> str | Link:
    """A task as a value of a table: with its page, if there is one place of pages only."""
    places = {*served_pages.values(), os.environ.get(DASHBOARD_VARIABLE) or ""} - {""}
    if len(places) != 1:
        return f"{task:x}"
    place = urlsplit(places.pop())
    path = f"{place.path.rstrip('/')}/task/{task:x}"
    return Link(f"{task:x}", place._replace(path=path).geturl())


def _without_token(link: str) -> str:
    return urlsplit(link)._replace(query="").geturl()
