"""Parts of pages: headings, numbers with names, and a table that is paged on the server."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from nicegui import events, ui

from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.model.views import PageRequest, Row, TablePage

ROWS = 50
TABLE_SECONDS = 2.0
Fetch = Callable[[PageRequest], TablePage]

_CODES = frozenset({"id", "task", "session", "object", "pid"})
_WORDS = frozenset({"state", "level"})
_SENTENCES = frozenset({"text", "why", "error", "reason", "failure"})
_NAMES = frozenset({"function", "agent", "worker", "name", "host", "client", "runtime", "offers", "needs"})
"""Columns of texts that are cut where they are too long; the whole is shown on hover."""
_TIMES = frozenset({"time", "since", "ended", "begun"})
"""Columns of seconds since 1970, which the browser shows in the reader's time zone."""
_TEXTS = _CODES | _WORDS | _SENTENCES | {
    "function", "agent", "worker", "name", "host", "client", "where", "offers", "runtime", "needs", "capabilities",
    "itl", "graph", "time", "since", "ended", "begun", "manager", "kind", "maximum", "pause",
}  # fmt: skip
"""Columns of text; the others are numbers, which are right-aligned."""


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
    """The columns of a table with their titles, the unique column, and the initial order."""

    name: str
    columns: dict[str, str]
    key: str
    order: str
    filtered: bool = True
    states: tuple[str, ...] = ()
    unsorted: Collection[str] = ()


class ServerTable:
    """A table of which the browser has one page; the server sorts, filters and updates it."""

    def __init__(self, kind: TableKind, fetch: Fetch, on_row: Callable[[Row], None] | None = None) -> None:
        self._fetch = fetch
        self._text: ui.input | None = None
        self._state: ui.select | None = None
        with ui.card().classes("panel"):
            if kind.filtered:
                with ui.row().classes("tools"):
                    self._choices(kind)
            self.table = ui.table(
                columns=[_column(name, title, kind) for name, title in kind.columns.items()],
                rows=[],
                row_key=kind.key,
                pagination={
                    "rowsPerPage": ROWS, "rowsNumber": 0, "sortBy": kind.order, "descending": True, "page": 1,
                },
            )  # fmt: skip
        self.table.props(
            'dense flat binary-state-sort rows-per-page-label="Rows" :rows-per-page-options="[25, 50, 100]" '
            f'no-data-label="Nothing here" data-testid="{kind.name}"'
        )
        self.table.props[":pagination-label"] = _RANGE
        self.table.on("request", self._asked)
        if on_row is not None:
            self.table.classes("opens")
            self.table.on("rowClick", lambda event: on_row(event.args[1]))
        self.refresh()
        ui.timer(TABLE_SECONDS, self.refresh, immediate=False)

    def _choices(self, kind: TableKind) -> None:
        self._text = ui.input("Filter", on_change=self._from_the_start).props(
            f'dense clearable debounce=300 data-testid="{kind.name}-filter" aria-label="filter"'
        )
        if kind.states:
            options = {"": "any state", **{state: state for state in kind.states}}
            self._state = ui.select(options, value="", label="State", on_change=self._from_the_start)
            self._state.props(f'dense data-testid="{kind.name}-state"')

    def _asked(self, event: events.GenericEventArguments) -> None:
        """Handle the request for another page or order."""
        self.table.pagination.update(event.args["pagination"])
        self.refresh()

    def _from_the_start(self) -> None:
        self.table.pagination["page"] = 1
        self.refresh()

    def refresh(self) -> None:
        """Show the current rows; nothing is sent if they have not changed."""
        pagination = self.table.pagination
        count = int(pagination.get("rowsPerPage") or ROWS)
        page = self._fetch(
            PageRequest(
                (int(pagination.get("page") or 1) - 1) * count,
                count,
                pagination.get("sortBy") or "",
                bool(pagination.get("descending")),
                (self._text.value or "") if self._text is not None else "",
                (self._state.value or "") if self._state is not None else "",
            )
        )
        if (page.rows, page.total) == (self.table.rows, pagination.get("rowsNumber")):
            return
        pagination["rowsNumber"] = page.total
        self.table.rows[:] = page.rows
        self.table.update()


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
    if name in _TIMES:
        column[":format"] = _LOCAL_TIME
    elif name not in _TEXTS:
        column[":format"] = "value => value.toLocaleString()"
    if name in _WORDS:
        column[":classes"] = f"row => 'is-' + row.{name}"
    elif name in _CODES:
        column["classes"] = "code"
    elif name in _NAMES:
        column["classes"] = "clipped"
    elif name in _SENTENCES:
        column["classes"] = "wide"
    return column


class Figures:
    """Numbers with names."""

    def __init__(self, names: tuple[str, ...], texts: dict[str, str]) -> None:
        with ui.element("div").classes("figures"):
            self._cards = {name: self._card(name, texts.get(name, "")) for name in names}

    @staticmethod
    def _card(name: str, text: str) -> ui.label:
        with ui.card().classes("panel figure"):
            ui.label(name).classes("name")
            return ui.label(text).classes("value").props(f'data-testid="{name}"')

    def show(self, texts: dict[str, str]) -> None:
        """Show these numbers; others stay unchanged."""
        for name, text in texts.items():
            self._cards[name].text = text
