"""What notebooks show of clients, local clusters, futures and graphs: cards with links to the pages of scaler_ui.

Where ipywidgets is installed the cards follow what they show. What only cards need is imported with the first one.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from scaler_protocol.addresses import Address

DASHBOARD_VARIABLE: Final = "SCALER_DASHBOARD"
"""Where the pages are, for clients of clusters that others have started."""
served_pages: Final[dict[str, str]] = {}
"""Where the pages are, by the address of the scheduler, of local clusters that serve some."""
REFRESH_SECONDS: Final = 0.5
_COLOURS: Final = {
    "connected": "#2b8a3e", "running": "#2b8a3e", "finished": "#2b8a3e", "pending": "#1c7ed6", "failed": "#c92a2a",
}  # fmt: skip
"""Of states; the others, such as cancelled, are grey."""
_GREY: Final = "#868e96"
_LINE: Final = "rgba(128, 128, 128, 0.35)"
_FRAME: Final = (
    f"display:inline-block;min-width:320px;max-width:720px;border:1px solid {_LINE};border-radius:6px;"
    "font-size:13px;line-height:1.5"
)
_HEAD: Final = f"display:flex;align-items:center;gap:24px;padding:6px 12px;border-bottom:1px solid {_LINE}"
_STATE: Final = "margin-left:auto;display:flex;align-items:center;gap:6px"
_DOT: Final = "width:9px;height:9px;border-radius:50%"
_GRID: Final = "display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;padding:8px 12px"
_TRACK: Final = f"display:flex;height:8px;margin:10px 12px 2px;border-radius:4px;overflow:hidden;background:{_LINE}"


class Link(NamedTuple):
    """A text that leads to an address."""

    text: str
    address: str


class Bar(NamedTuple):
    """How far something is, in counts."""

    done: int
    failed: int
    cancelled: int
    total: int

    @property
    def open(self) -> int:
        """How many have not ended."""
        return self.total - self.done - self.failed - self.cancelled


class Card(NamedTuple):
    """A title, a state in one word, values by name, of which empty ones are left out, and perhaps a bar."""

    title: str
    state: str
    rows: Mapping[str, str | Link]
    bar: Bar | None = None
    is_final: bool = False
    """Whether nothing of it will change."""

    @property
    def html(self) -> str:
        """The card as HTML, escaped, in the colours of the page around it."""
        from html import escape

        dot = f'<span style="{_DOT};background:{_COLOURS.get(self.state, _GREY)}"></span>'
        state = f'<span style="{_STATE}">{dot}{escape(self.state)}</span>'
        head = f'<div style="{_HEAD}"><strong>{escape(self.title)}</strong>{state}</div>'
        lines = "".join(
            f'<span style="opacity:.7">{escape(name)}</span><span style="overflow-wrap:anywhere">{_cell(value)}</span>'
            for name, value in self.rows.items()
            if value
        )
        bar = _bar(self.bar) if self.bar else ""
        return f'<div style="{_FRAME}">{head}{bar}<div style="{_GRID}">{lines}</div></div>'


def _bar(bar: Bar) -> str:
    parts = ((bar.done, _COLOURS["finished"]), (bar.failed, _COLOURS["failed"]), (bar.cancelled, _GREY))
    spans = "".join(
        f'<div style="width:{100 * count / max(1, bar.total):.4g}%;background:{colour}"></div>'
        for count, colour in parts
        if count
    )
    values = f'aria-valuemin="0" aria-valuemax="{bar.total}" aria-valuenow="{bar.total - bar.open}"'
    return f'<div role="progressbar" aria-label="ended" {values} style="{_TRACK}">{spans}</div>'


def _cell(value: str | Link) -> str:
    from html import escape

    if isinstance(value, str):
        return escape(value)
    href = f'href="{escape(value.address)}" target="_blank" rel="noopener"'
    return f'<a {href} style="color:inherit;text-decoration:underline">{escape(value.text)}</a>'


# --- what follows what it shows -------------------------------------------------------------------------------------


class ShownInNotebooks:
    """An object with a card, which follows the object where ipywidgets is installed."""

    __slots__ = ()

    def _card(self) -> Card:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._card().html

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return live_card(self)


def live_card(shown: ShownInNotebooks) -> dict[str, Any]:
    """What a widget is, by type of content, that shows the card of an object until that is final; nothing without one.

    Notebooks show the HTML of the object where they cannot show widgets.
    """
    card = shown._card()
    if card.is_final or "IPython" not in sys.modules:
        return {}
    try:
        from ipywidgets import HTML  # type: ignore[import-untyped]
    except ImportError:
        return {}
    widget = HTML(card.html)
    follower = threading.Thread(target=_follow, args=(weakref.ref(shown), widget), name="scaler-notebook", daemon=True)
    follower.start()
    bundle: dict[str, Any] = widget._repr_mimebundle_()
    return bundle


def _follow(seen: Callable[[], ShownInNotebooks | None], widget: Any) -> None:
    """Update a widget until what it shows is final or gone, or the widget is closed."""
    ended = threading.Event()
    while widget.comm is not None and (shown := seen()) is not None:
        card = shown._card()
        del shown
        widget.value = card.html  # nothing is sent if it has not changed
        if card.is_final:
            return
        ended.wait(REFRESH_SECONDS)


# --- links ----------------------------------------------------------------------------------------------------------


def monitor_of(scheduler: str) -> str:
    """The default monitor address of a scheduler."""
    return str(Address.parse(scheduler).beside(2))


def dashboard_of(scheduler: str | None) -> str | None:
    """Where the pages of a scheduler are: of a local cluster, or what the environment says; None if neither does.

    Raises ValueError if the environment says what is no address of pages.
    """
    return served_pages.get(scheduler or "") or _said_by_environment() or None


def dashboard_row(scheduler: str | None) -> str | Link:
    """The pages of a scheduler as a value of a card; empty if they are not known."""
    try:
        link = dashboard_of(scheduler)
    except ValueError as error:  # a card has no other place to say so
        return str(error)
    return Link(_without_token(link), link) if link else ""


def page_row(place: str, text: str) -> str | Link:
    """A text with a page, if there is one place of pages only."""
    from urllib.parse import urlsplit

    try:
        sites = {*served_pages.values(), _said_by_environment()} - {""}
    except ValueError:  # the card of the client says so
        return text
    if len(sites) != 1:
        return text
    site = urlsplit(sites.pop())
    return Link(text, site._replace(path=f"{site.path.rstrip('/')}/{place}").geturl())


def _said_by_environment() -> str:
    """What DASHBOARD_VARIABLE says, empty if nothing; raises ValueError if that is no address of pages."""
    from urllib.parse import urlsplit

    said = os.environ.get(DASHBOARD_VARIABLE, "")
    try:
        parts = urlsplit(said)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # "[" without "]", a port above 65535
        is_address = False
    if said and not (is_address and said.isprintable() and " " not in said):
        told = said.partition("?")[0]  # behind it is the token
        raise ValueError(f"{DASHBOARD_VARIABLE} is {told!r}: write where the pages are, such as http://host:8081/")
    return said


def _without_token(link: str) -> str:
    from urllib.parse import urlsplit

    return urlsplit(link)._replace(query="").geturl()
