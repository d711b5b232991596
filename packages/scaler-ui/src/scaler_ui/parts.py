"""Parts of pages: a table that is paged on the server, lines over time, the timeline of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import events, ui

from scaler_ui.views import PageRequest, Row, TablePage

ROWS = 50
_LABEL = {"hideOverlap": True}
_LINES = {"lineStyle": {"color": "#8886"}}
STYLE = """
.opens tbody tr { cursor: pointer; }
.opens tbody td:first-child { text-decoration: underline; }
.scaler-chart text { fill: #444 !important; }
.body--dark .scaler-chart text { fill: #ccc !important; }
"""
"""Charts are drawn as SVG, so that their texts can be read on light and on dark."""
Fetch = Callable[[PageRequest], TablePage]


KEYBOARD = """<script>
new MutationObserver(() => {
  for (const head of document.querySelectorAll('th.sortable')) {
    head.tabIndex = 0;
    const order = head.classList.contains('sort-desc') ? 'descending' : 'ascending';
    head.ariaSort = head.classList.contains('sorted') ? order : 'none';
  }
  for (const row of document.querySelectorAll('.opens tbody tr')) row.tabIndex = 0;
}).observe(document.documentElement, {childList: true, subtree: true, attributeFilter: ['class']});
addEventListener('keydown', (event) => {
  if (['Enter', ' '].includes(event.key) && event.target.matches('th.sortable, .opens tbody tr')) {
    event.preventDefault();
    event.target.click();
  }
});
</script>"""
"""Tables that the keyboard can sort and open. Slots would do, but are made anew, without the focus, by every update."""


class ServerTable:
    """A table of which the browser has one page; order, text and state are applied here."""

    def __init__(
        self,
        name: str,
        columns: dict[str, str],
        fetch: Fetch,
        *,
        key: str,
        order: str,
        descending: bool = True,
        filtered: bool = True,
        states: tuple[str, ...] = (),
        unsorted: tuple[str, ...] = (),
        on_row: Callable[[Row], None] | None = None,
    ) -> None:
        self._fetch = fetch
        with ui.row().classes("w-full items-end"):
            self._text: ui.input | None = None
            if filtered:
                self._text = ui.input("filter", on_change=self._from_the_start).props(
                    f'dense clearable debounce=300 data-testid="{name}-filter" aria-label="filter"'
                )
            self._state: ui.select | None = None
            if states:
                options = {"": "any state", **{state: state for state in states}}
                self._state = ui.select(options, value="", label="state", on_change=self._from_the_start)
                self._state.classes("min-w-32").props(f'dense data-testid="{name}-state"')
        self.table = ui.table(
            columns=[
                {"name": column, "label": label, "field": column, "sortable": column not in unsorted, "align": "left"}
                for column, label in columns.items()
            ],
            rows=[],
            row_key=key,
            pagination={"rowsPerPage": ROWS, "rowsNumber": 0, "sortBy": order, "descending": descending, "page": 1},
        )
        self.table.classes("w-full").props(
            f'dense flat binary-state-sort :rows-per-page-options="[25, 50, 100]" data-testid="{name}"'
        )
        self.table.on("request", self._asked)
        if on_row is not None:
            self.table.classes("opens")
            self.table.on("rowClick", lambda event: on_row(event.args[1]))
        self.refresh()

    def _asked(self, event: events.GenericEventArguments) -> None:
        """The reader wants another page or order."""
        self.table.pagination.update(event.args["pagination"])
        self.refresh()

    def _from_the_start(self) -> None:
        self.table.pagination["page"] = 1
        self.refresh()

    def refresh(self) -> None:
        """Show what is there now; nothing is sent where that is the same."""
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


class Figures:
    """Numbers with names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        with ui.row().classes("w-full gap-2"):
            self._cards = {name: self._card(name) for name in names}

    @staticmethod
    def _card(name: str) -> ui.label:
        with ui.card().classes("p-2 gap-0 min-w-28"):
            ui.label(name).classes("text-xs opacity-90")
            return ui.label("").classes("text-lg").props(f'data-testid="{name}"')

    def show(self, texts: dict[str, str]) -> None:
        """Show these; what is not among them stays as it is."""
        for name, text in texts.items():
            self._cards[name].text = text


class LinesOverTime:
    """A chart of lines that share one unit."""

    def __init__(self, title: str, unit: str, names: tuple[str, ...]) -> None:
        self._names = names
        self._newest = 0.0
        self._chart = ui.echart(
            {
                "title": {"text": title, "left": 0, "textStyle": {"fontSize": 14}},
                "tooltip": {"trigger": "axis"},
                "legend": {"right": 10, "top": 0},
                "grid": {"left": 60, "right": 20, "top": 40, "bottom": 30},
                "xAxis": {"type": "time", "axisLabel": _LABEL},
                "yAxis": {
                    "type": "value",
                    "axisLabel": _LABEL,
                    "name": unit,
                    "nameLocation": "middle",
                    "nameGap": 45,
                    "min": 0,
                    "splitLine": _LINES,
                },
                "animation": False,
                "series": [{"type": "line", "name": name, "showSymbol": False, "data": []} for name in names],
            },
            renderer="svg",
        ).classes("w-full h-64 scaler-chart")

    def show(self, points: dict[str, list[list[float]]]) -> None:
        """Draw these points, should there be newer ones."""
        newest = points[self._names[0]][-1][0] if points[self._names[0]] else 0.0
        if newest == self._newest:
            return
        self._newest = newest
        for series, name in zip(self._chart.options["series"], self._names, strict=True):
            series["data"] = points[name]
        self._chart.update()


_BAR = """(params, api) => {
  const row = api.value(0), begin = api.coord([api.value(1), row]), end = api.coord([api.value(2), row]);
  const height = api.size([0, 1])[1] * 0.7, state = api.value(4), name = api.value(3);
  let hue = 0;
  for (const letter of String(name)) hue = (hue * 31 + letter.charCodeAt(0)) % 360;
  const left = Math.max(begin[0], params.coordSys.x);
  const right = Math.min(Math.max(end[0], begin[0] + 2), params.coordSys.x + params.coordSys.width);
  const shape = right > left && {x: left, y: begin[1] - height / 2, width: right - left, height: height};
  const bad = state === 'raised' || state === 'failed', gone = state === 'cancelled';
  return shape ? {type: 'rect', shape: shape, style: {fill: gone ? '#999' : `hsl(${hue}, 60%, 50%)`,
    stroke: bad ? '#d00' : 'none', lineWidth: bad ? 2 : 0}} : null;
}"""
_HINT = """(params) => { const v = params.value;
  const escape = (text) => String(text).replace(/[&<>]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;'}[c]));
  return `${escape(v[3])}<br>${escape(v[4])}, ${(v[2] - v[1]).toFixed(0)} ms<br>task ${escape(v[5])}`; }"""


class Timeline:
    """Tasks as bars, a line for each worker: coloured by function, failed ones in red frames, cancelled ones grey."""

    def __init__(self) -> None:
        self._shown: tuple[list[str], list[list[Any]]] = ([], [])
        self.count = ui.label("").props('data-testid="stream-count"')
        self._chart = ui.echart(
            {
                "tooltip": {":formatter": _HINT},
                "grid": {"left": 10, "right": 20, "top": 20, "bottom": 70, "containLabel": True},
                "xAxis": {"type": "time", "axisLabel": _LABEL},
                "yAxis": {"type": "category", "data": [], "axisLabel": _LABEL},
                "dataZoom": [
                    {"type": "slider", "filterMode": "weakFilter"},
                    {"type": "inside", "filterMode": "weakFilter"},
                ],
                "animation": False,
                "series": [{"type": "custom", ":renderItem": _BAR, "encode": {"x": [1, 2], "y": 0}, "data": []}],
            },
            renderer="svg",
        ).classes("w-full h-[70vh] scaler-chart")

    def show(self, workers: list[str], bars: list[list[Any]]) -> None:
        """Draw these, should they be others."""
        if (workers, bars) == self._shown:
            return
        self._shown = (workers, bars)
        self.count.text = f"{len(bars):,} tasks on {len(workers):,} workers"
        self._chart.options["yAxis"]["data"] = workers
        self._chart.options["series"][0]["data"] = bars
        self._chart.update()
