"""Parts of pages: headings, numbers with names, and a table that is paged on the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, field, replace
from typing import Any
from urllib.parse import urlsplit

from nicegui import events, ui

from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.model.addresses import FILTERS, PageRequest, TableAddress
from scaler_ui.model.subjects import Fact
from scaler_ui.model.views import TablePage
from scaler_ui.web.access import READER

ROWS = 50
TABLE_SECONDS = 2.0
Fetch = Callable[[PageRequest], TablePage]

_CODES = frozenset({"id", "task", "object", "pid"})
_WORDS = frozenset({"state", "level"})
_SENTENCES = frozenset({"text", "why", "error", "message", "reason", "failure"})
_NAMES = frozenset(
    {
        "function",
        "agent",
        "worker",
        "name",
        "host",
        "client",
        "session",
        "exception",
        "runtime",
        "offers",
        "needs",
        "where",
        "capabilities",
        "manager",
    }
)
"""Columns of texts that are cut where they are too long; the whole is shown on hover."""
_ENDINGS = frozenset({"agent", "worker"})
"""Columns of names of which the part behind the last colon is not cut."""
_TIMES = frozenset({"time", "since", "ended", "begun", "first", "last"})
"""Columns of seconds since 1970, which the browser shows in the reader's time zone."""
_TEXTS = _CODES | _WORDS | _SENTENCES | _NAMES | _TIMES | {
    "itl", "graph", "kind", "maximum", "pause",
}  # fmt: skip
"""Columns of text; the others are numbers, which are right-aligned."""


def reader_of_page() -> str:
    """The name of who looks at this page, as the access guard knows it."""
    request = ui.context.client.request
    assert request is not None
    reader: str = request.scope[READER]
    return reader


def login_hint(action: str) -> ui.label:
    """What a read-only page says instead of offering an action."""
    said = f"To {action} here, start scaler_ui with a login: --token, SCALER_UI_TOKEN or --user-header."
    return ui.label(said).classes("hint")


def heading(text: str, hint: str = "") -> None:
    """The heading of a page."""
    ui.label(text).classes("heading").props("role=heading aria-level=1")
    if hint:
        ui.label(hint).classes("hint")


def subheading(text: str) -> None:
    """The heading of a part of a page."""
    ui.label(text).classes("subheading").props("role=heading aria-level=2")


@dataclass(frozen=True, slots=True)
class TableKind:
    """The columns of a table with their titles, the unique column, and the initial order.

    `links` are, by column, the place of pages and the fields of a row that are the names in their addresses.
    """

    name: str
    columns: dict[str, str]
    key: str
    order: str
    filtered: bool = True
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Filters among a few values."""
    filters: tuple[str, ...] = ()
    """All filters; those without choices come from addresses only."""
    unsorted: Collection[str] = ()
    bars: Collection[str] = ()
    """Columns of percentages, which are drawn, too."""
    brief: bool = False
    """Whether the number of rows is left out unless there are more than a page shows."""
    links: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class LinkTable(ui.table, component="link_table.js"):
    """A table whose cells may be links."""


class ServerTable:
    """A table of which the browser has one page; the server sorts, filters and updates it.

    What of it is shown is in the query of the page's address, of several tables with a `prefix` each.
    """

    def __init__(self, kind: TableKind, fetch: Fetch, prefix: str = "") -> None:
        self._fetch, self._brief = fetch, kind.brief
        self._router = ui.context.client.sub_pages_router
        orders = [name for name in kind.columns if name not in kind.unsorted]
        default = PageRequest(count=ROWS, order=kind.order)
        self._address = TableAddress(default, orders, kind.choices, kind.filters, prefix)
        self._request, faults = self._address.read(urlsplit(self._router.current_path).query)
        with ui.card().classes("panel"):
            if kind.filtered:
                with ui.row().classes("tools"):
                    self._choices(kind)
            for fault in faults:
                ui.label(fault).classes("fault-note is-warning").props("role=status")
            self.table = LinkTable(
                columns=[_column(name, title, kind) for name, title in kind.columns.items()],
                rows=[],
                row_key=kind.key,
                pagination={"rowsNumber": 0, **_pagination(self._request)},
            )
        self.table.props(
            'dense flat binary-state-sort rows-per-page-label="Rows" :rows-per-page-options="[25, 50, 100]" '
            f'no-data-label="Nothing here" data-testid="{kind.name}"'
        )
        self.table.props[":pagination-label"] = _RANGE
        self.table.on("request", self._asked)
        if kind.links:
            self.table.classes("opens")
        self.refresh()
        ui.timer(TABLE_SECONDS, self.refresh, immediate=False)

    def _choices(self, kind: TableKind) -> None:
        ui.input(
            "Filter", value=self._request.text, on_change=lambda event: self._narrow(text=event.value or "")
        ).props(f'dense clearable debounce=300 maxlength=1000 data-testid="{kind.name}-filter" aria-label="filter"')
        for name, values in kind.choices.items():
            self._choice(kind, name, values)
        for name in FILTERS:
            if name not in kind.choices and (value := getattr(self._request, name)):
                self._removable(name, value)

    def _choice(self, kind: TableKind, name: str, values: tuple[str, ...]) -> None:
        """A filter that the reader chooses."""
        ui.select(
            {"": f"any {name}", **{value: value for value in values}},
            value=getattr(self._request, name),
            label=name.capitalize(),
            on_change=lambda event: self._narrow(**{name: event.value or ""}),
        ).props(f'dense data-testid="{kind.name}-{name}"')

    def _removable(self, name: str, value: str) -> None:
        """A filter that the address has set, and that the reader can remove."""

        def remove() -> None:
            button.delete()
            self._narrow(**{name: ""})

        button = ui.button(f"{name} {value}", icon="close", color=None, on_click=remove)
        button.classes("filter").props(f"flat dense no-caps size=sm data-testid=filter-{name}")
        button.props["aria-label"] = f"remove the filter: {name} {value}"

    def _asked(self, event: events.GenericEventArguments) -> None:
        """Handle the request for another page or order."""
        request = self._address.turned(self._request, event.args["pagination"])
        self.table.pagination.update(_pagination(request))
        self._show(request)

    def _narrow(self, **filters: Any) -> None:
        """Apply filters, from the first row on."""
        self.table.pagination["page"] = 1
        self._show(replace(self._request, first=0, **filters))

    def _show(self, request: PageRequest) -> None:
        """Show what is asked for, and have the address say so."""
        self._request = request
        path, _, query = self._router.current_path.partition("?")
        query = self._address.write(query, request)
        self._router.current_path = place = f"{path}?{query}" if query else path
        ui.run_javascript(f"replaceAddress({json.dumps(path)}, {json.dumps(place)})")
        self.refresh()

    def refresh(self) -> None:
        """Show the current rows; nothing is sent if they have not changed."""
        pagination = self.table.pagination
        page = self._fetch(self._request)
        if (page.rows, page.total) == (self.table.rows, pagination.get("rowsNumber")):
            return
        pagination["rowsNumber"] = page.total
        if self._brief:
            self.table.props["hide-bottom"] = 0 < page.total <= self._request.count
        self.table.rows[:] = page.rows
        self.table.update()


def _pagination(request: PageRequest) -> dict[str, Any]:
    """A request as the browser's table knows it."""
    return {
        "rowsPerPage": request.count, "page": request.first // request.count + 1, "sortBy": request.order,
        "descending": request.descending,
    }  # fmt: skip


_RANGE = "(first, last, all) => `${first.toLocaleString()}-${last.toLocaleString()} of ${all.toLocaleString()}`"

_LOCAL_TIME = "value => value ? new Date(1000 * value).toLocaleString('sv-SE') : ''"
"""JavaScript that writes seconds since 1970 as a date and a time of day: Sweden's are those of ISO 8601."""


def _column(name: str, title: str, kind: TableKind) -> dict[str, Any]:
    column: dict[str, Any] = {
        "name": name,
        "label": title,
        "field": name,
        "sortable": name not in kind.unsorted,
        "align": "left" if name in _TEXTS else "right",
    }
    if name in kind.bars:
        column["bar"] = True
    if name in kind.links:
        column["link"] = kind.links[name]
    if name in _ENDINGS:
        column["ending"] = True
    if name in _TIMES:
        column[":format"] = _LOCAL_TIME
    elif name not in _TEXTS:
        column[":format"] = "value => value.toLocaleString()"
    if name in _WORDS:
        column[":classes"] = f"row => 'is-' + row.{name}"
    elif name in _CODES:
        column["classes"] = "code"
    elif name in _NAMES:
        column["classes"] = f"clipped {name}"
    elif name in _SENTENCES:
        column["classes"] = "wide"
    return column


class Figures(ui.element, component="figures.js"):
    """Numbers with names."""

    def __init__(self, names: tuple[str, ...], texts: dict[str, str], *, large: bool = False) -> None:
        super().__init__()
        if large:
            self.classes("large")
        self.props["figures"] = dict.fromkeys(names, "")
        self.show(texts)

    def show(self, texts: dict[str, str]) -> None:
        """Show these numbers; others stay unchanged."""
        shown = self.props["figures"]
        changed = {name: text for name, text in texts.items() if shown.get(name, text) != text}
        if changed:
            shown.update(changed)


class FactList(ui.element, component="facts.js"):
    """Facts about one thing; links among them keep the focus when values change."""

    def __init__(self, facts: list[Fact]) -> None:
        super().__init__()
        self.show(facts)

    def show(self, facts: list[Fact]) -> None:
        """Show these facts; nothing is sent if they have not changed."""
        shown = [asdict(fact) for fact in facts]
        if self.props.get("facts") != shown:
            self.props["facts"] = shown
            self.update()
