"""Charts: lines over time, and the timeline of workers.

Lines are SVG, so that style sheets apply to their texts. The timeline is a canvas: a browser takes twice the time for
its hundreds of bars as elements of a document.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, Literal

from nicegui import ui

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.limits import shortened
from scaler_protocol.ranges import Text
from scaler_ui.model.addresses import address
from scaler_ui.model.colours import FunctionColours
from scaler_ui.model.task_stream import TaskStream
from scaler_ui.model.views import Points

_LABEL = {"hideOverlap": True}
_INK = {":color": "chartInk"}
"""The colour of labels on a canvas: a function of the page, since it changes with the theme."""
_TIMES = {
    "year": "{yyyy}", "month": "{MM}-{dd}", "day": "{MM}-{dd}", "hour": "{HH}:{mm}", "minute": "{HH}:{mm}",
    "second": "{HH}:{mm}:{ss}", "millisecond": "{HH}:{mm}:{ss}",
}  # fmt: skip
"""Formats of times on axes: a mark at the beginning of a day is its date."""
_FAINT = {"lineStyle": {"color": "#8884"}}
_TIP = {"backgroundColor": "#101a2b", "borderWidth": 0, "textStyle": {"color": "#e5eaf0", "fontSize": 12}}
_COLOURS = ["#3b82f6", "#d97706", "#10b981"]
_DOTS = {"symbol": "circle", "symbolSize": 4, "silent": True, "label": {"show": False}}
_TITLE = {"fontSize": 13, "fontWeight": 500}
_LINE_PIXELS = 116
_AXIS_PIXELS = 20
"""Height of the times below the last chart."""
PALETTE = (
    "#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#6b5fc7", "#2f8f6b", "#d4a6c8",
    "#8cd17d", "#1f6f8b",
)  # fmt: skip
"""Colours of functions: none is like the red of failures or the grey of cancelled tasks."""
OTHERS = "#b9c0c9"
"""The colour of further functions."""
LEGEND = 50
"""Functions in a legend: those with most time."""
NAME = Text(120)
"""The limit of a function's name in the hint of a bar."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one of several charts shows: lines of one unit; `write` is JavaScript that formats a value."""

    title: str
    names: tuple[str, ...]
    write: str


def _json(value: Any) -> str:
    """Data of a chart as JavaScript: NiceGUI would wrap each of thousands of lists that it is given as lists."""
    return json.dumps(value, separators=(",", ":"))


class Chart(ui.echart):
    """A chart. A browser draws it once when it is new: NiceGUI would have it drawn again after that."""

    def __init__(self, options: dict[str, Any], renderer: Literal["svg", "canvas"]) -> None:
        super().__init__(options, renderer=renderer)
        self._update_method = None

    def redraw(self) -> None:
        """Draw it with the options as they are now."""
        self._update_method = "update_chart"
        self.update()


class LinesOverTime:
    """Charts one below the other, with one axis of time and one cursor."""

    def __init__(self, lines: Sequence[Line], points: Points) -> None:
        self._names = [name for line in lines for name in line.names]
        options: dict[str, Any] = {
            "tooltip": {"trigger": "axis", **_TIP},
            "axisPointer": {"link": [{"xAxisIndex": "all"}]},
            "animation": False,
            **{key: [] for key in ("title", "legend", "grid", "xAxis", "yAxis", "series")},
        }
        for place, line in enumerate(lines):
            self._add(options, place, line, points, is_last=place == len(lines) - 1)
        titles = ", ".join(line.title for line in lines)
        with ui.card().classes("panel chart"):
            self._chart = Chart(options, "svg").props(f'role=img aria-label="{titles}"')
            self._chart.style(f"height: {_LINE_PIXELS * len(lines) + _AXIS_PIXELS}px")

    @staticmethod
    def _add(options: dict[str, Any], place: int, line: Line, points: Points, *, is_last: bool) -> None:
        """Add a chart below the others."""
        top = _LINE_PIXELS * place
        options["title"].append({"text": line.title, "left": 0, "top": top, "textStyle": _TITLE})
        if len(line.names) > 1:
            options["legend"].append(
                {"data": line.names, "right": 0, "top": top, "icon": "roundRect", "itemWidth": 12, "itemHeight": 10}
            )
        options["grid"].append({"left": 64, "right": 12, "top": top + 28, "height": _LINE_PIXELS - 44})
        options["xAxis"].append(
            {
                "type": "time", "gridIndex": place, "min": "dataMin", "max": "dataMax", "splitNumber": 4,
                "axisLabel": {**_LABEL, "show": is_last, "formatter": _TIMES},
            }
        )  # fmt: skip
        options["yAxis"].append(
            {
                "type": "value", "gridIndex": place, "min": 0, "splitNumber": 2, "splitLine": _FAINT,
                "axisLabel": {**_LABEL, ":formatter": line.write},
            }
        )  # fmt: skip
        options["series"] += [
            {
                "type": "line", "name": name, ":data": _json(points[name]), "xAxisIndex": place, "yAxisIndex": place,
                "showSymbol": False, "lineStyle": {"width": 1.5}, "areaStyle": {"opacity": 0.12}, "color": colour,
                "tooltip": {":valueFormatter": line.write}, "markPoint": {**_DOTS, "data": dots(points[name])},
            }
            for name, colour in zip(line.names, _COLOURS, strict=False)
        ]  # fmt: skip

    def show(self, points: Points) -> None:
        """Draw these points if they have changed."""
        drawn = [_json(points[name]) for name in self._names]
        if drawn == [series[":data"] for series in self._chart.options["series"]]:
            return
        for name, series, data in zip(self._names, self._chart.options["series"], drawn, strict=True):
            series[":data"], series["markPoint"]["data"] = data, dots(points[name])
        self._chart.redraw()


def dots(line: Sequence[Sequence[float | None]]) -> list[dict[str, Any]]:
    """Marks for the points that have no neighbour: no line leads to them."""
    around = [None, *(value for _, value in line), None]
    return [
        {"coord": point}
        for before, point, after in zip(around, line, around[2:], strict=False)
        if before is None and point[1] is not None and after is None
    ]


class Legend(ui.element, component="legend.js"):
    """The colours of functions, with links to these; `changed` is called when the reader hides or shows one.

    It is one element: each of the library's own takes the server a millisecond.
    """

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.hidden = set[str]()
        """Functions that the reader has hidden."""
        self._changed = changed
        self.props["switches"] = changed is not None
        self.on("switch", lambda event: self._switch(**event.args))

    def show(self, colours: dict[str, str]) -> None:
        """Write these colours; nothing is sent if they have not changed."""
        entries = [
            {"name": name, "colour": colour, "address": address("function", name), "shown": name not in self.hidden}
            for name, colour in colours.items()
        ]
        if self.props.get("entries") != entries:
            self.props["entries"] = entries

    def _switch(self, name: str, shown: bool) -> None:
        if name not in [entry["name"] for entry in self.props.get("entries", ())]:
            return  # a browser may send anything
        (self.hidden.discard if shown else self.hidden.add)(name)
        if self._changed is not None:
            self._changed()


_BAR = """(params, api) => {
  const row = api.value(0), begin = api.coord([api.value(1), row]), end = api.coord([api.value(2), row]);
  const height = api.size([0, 1])[1] * 0.7, state = api.value(4), colour = api.value(9);
  const left = Math.max(begin[0], params.coordSys.x);
  const right = Math.min(Math.max(end[0], begin[0] + 2), params.coordSys.x + params.coordSys.width);
  if (right <= left) return null;
  const bad = ['raised', 'failed', 'run again'].includes(state), gone = state === 'cancelled';
  const part = (from, to, style) => ({type: 'rect', style: style,
    shape: {x: from, y: begin[1] - height / 2, width: to - from, height: height}});
  const within = (at) => Math.min(Math.max(at, left), right);
  const called = within(api.coord([api.value(7), row])[0]), returned = within(api.coord([api.value(8), row])[0]);
  const transfers = [[left, called], [returned, right]].filter(([from, to]) => to - from >= 1);
  return {type: 'group', children: [
    part(left, right, {fill: gone ? '#999' : colour, opacity: state === 'running' ? 0.55 : 1}),
    ...transfers.map(([from, to]) => part(from, to, {fill: '#000', opacity: 0.45})),
    ...(bad ? [part(left, right, {fill: 'none', stroke: '#d00', lineWidth: 2})] : []),
  ]};
}"""
_BLOCK = """(params, api) => {
  const row = api.value(0), begin = api.coord([api.value(1), row]), end = api.coord([api.value(2), row]);
  const height = api.size([0, 1])[1] * 0.35, left = Math.max(begin[0], params.coordSys.x);
  const right = Math.min(end[0], params.coordSys.x + params.coordSys.width);
  return right <= left ? null : {type: 'rect', style: {fill: api.value(6), opacity: 0.3 + 0.6 * api.value(4)},
    shape: {x: left, y: begin[1] - height / 2, width: right - left, height: height}};
}"""
_BARS = """((begin, names, functions, colours, bars) => bars.map(
  ([line, from, to, called, returned, name, state, task, worker]) => [line, begin + from, begin + to, functions[name],
    state, task, names[worker], begin + called, begin + returned, colours[name]]))"""
"""From the window's begin, names of workers, functions, their colours, and rows that refer to these, to the values that
`_BAR`, `_HINT` and `_OPEN` are given: a browser is sent two thirds of what it would be without."""
_BLOCKS = """((begin, names, functions, colours, blocks) => blocks.map(
  ([line, from, to, name, share, worker]) => [line, begin + from, begin + to, functions[name], share, names[worker],
    colours[name]]))"""
_HINT = """(params) => { const v = params.value;
  const escape = (text) => String(text).replace(/[&<>]/g, (c) => `&#${c.charCodeAt(0)};`);
  const since = new Date(v[1]).toLocaleString('sv-SE');
  if (params.seriesIndex === 0) return `<b>short tasks, most of them ${escape(v[3])}</b><br>`
    + `${Math.round(100 * v[4])}% of the time<br>since ${since}<br>on ${escape(v[5])}`;
  const took = (ms) => ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
  const moved = [['objects are fetched for', v[7] - v[1]], ['the result is stored for', v[2] - v[8]]];
  return `<b>${escape(v[3])}</b><br>${escape(v[4])}, ${took(v[2] - v[1])}<br>`
    + moved.filter(([, ms]) => ms > 0).map(([what, ms]) => `${what} ${took(ms)}<br>`).join('')
    + `since ${since}<br>task ${escape(v[5])}<br>on ${escape(v[6])}`; }"""

_WORKER = """(name) => name.length > 20 ? `${name.slice(0, 7)}…${name.slice(-12)}` : name"""
"""Workers of a host differ in the end of their names, hosts mostly in its begin."""
_OPEN = """({componentType, seriesIndex, value}) => componentType === 'series' && (seriesIndex === 1
  ? openPage(`/task/${value[5]}`)
  : value[3].endsWith('…') || openPage(`/function/${encodeURIComponent(value[3])}`))"""
"""A shortened name has no page."""


class Timeline:
    """Tasks as bars in lines: coloured by function, failed and lost runs with a red frame, cancelled ones grey; low
    blocks are tasks without a bar.
    """

    def __init__(self, stream: TaskStream) -> None:
        self._shown = stream
        self._colours = FunctionColours(PALETTE, OTHERS)
        self._legend = Legend(self._draw)
        options: dict[str, Any] = {
            "tooltip": {":formatter": _HINT, **_TIP},
            "grid": {"left": 4, "right": 12, "top": 12, "bottom": 56, "containLabel": True},
            "xAxis": {"type": "time", "axisLabel": {**_LABEL, **_INK, "formatter": _TIMES}},
            "yAxis": {
                "type": "category", "inverse": True, "axisTick": {"show": False},
                "axisLabel": {**_LABEL, **_INK, ":formatter": _WORKER},
            },
            "dataZoom": [
                {"type": "slider", "filterMode": "weakFilter", "height": 22, "bottom": 8, "showDetail": False},
                {"type": "inside", "filterMode": "weakFilter"},
            ],
            "animation": False,
            "series": [
                {"type": "custom", ":renderItem": draw, "encode": {"x": [1, 2], "y": 0}} for draw in (_BLOCK, _BAR)
            ],
        }  # fmt: skip
        self._fill(options, stream)
        self._chart = Chart(options, "canvas").style(_height(stream))
        self._chart.props('role=img aria-label="Tasks of each worker over time"')
        self._chart.on("componentClick", js_handler=_OPEN)

    def show(self, stream: TaskStream) -> None:
        """Draw these bars if they have changed."""
        if stream == self._shown:
            return
        self._shown = stream
        self._chart.style(_height(stream))
        self._draw()

    def _draw(self) -> None:
        self._fill(self._chart.options, self._shown)
        self._chart.redraw()

    def _fill(self, options: dict[str, Any], stream: TaskStream) -> None:
        options["xAxis"].update(_range(stream.window))
        options["yAxis"]["data"] = stream.lines
        colours = self._colours.of(stream.functions)
        named = dict(islice(colours.items(), LEGEND))
        data = drawn(stream, colours, self._legend.hidden & named.keys())
        for series, expression in zip(options["series"], data, strict=True):
            series[":data"] = expression
        self._legend.show(named)


def _range(window: tuple[float, float]) -> dict[str, Any]:
    """The ends of the axis of time, which is not shown before a scheduler has said the time."""
    begin, end = (round(1000 * at) for at in window)
    return {"min": begin, "max": end, "show": begin < end}


def drawn(stream: TaskStream, colours: dict[str, str], hidden: AbstractSet[str]) -> tuple[str, str]:
    """Blocks and bars as JavaScript, without hidden functions; clients choose names: long ones are shortened."""
    begin = round(1000 * stream.window[0])
    workers = _places([*(bar[6] for bar in stream.bars), *(block[5] for block in stream.blocks)])
    functions = _places(colours)
    blocks = [
        [line, since - begin, until - begin, functions[name], share, workers[worker]]
        for line, since, until, name, share, worker in stream.blocks
        if name not in hidden
    ]
    bars = [
        [line, *(at - begin for at in (since, until, call, done)), functions[name], state, task, workers[worker]]
        for line, since, until, name, state, task, worker, call, done in stream.bars
        if name not in hidden
    ]
    names = [shortened(name, NAME) for name in functions]
    shared = ",".join(map(_json, (begin, [*workers], names, [*colours.values()])))
    return f"{_BLOCKS}({shared},{_json(blocks)})", f"{_BARS}({shared},{_json(bars)})"


def _places(names: Iterable[str]) -> dict[str, int]:
    """The place of each name in a list of all."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _height(stream: TaskStream) -> str:
    """The height for all lines, up to the height of the window."""
    return f"height: clamp(200px, {90 + 34 * len(stream.lines)}px, max(320px, 100vh - 240px))"
