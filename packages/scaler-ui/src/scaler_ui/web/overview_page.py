"""The first page: how far the work is, what is wrong, what failed, and the last minutes as lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from html import escape

from nicegui import ui

from scaler_ui.listening import Listening
from scaler_ui.model import overview, views
from scaler_ui.model.addresses import address
from scaler_ui.model.findings import Finding
from scaler_ui.model.views import OFF_HOSTS
from scaler_ui.web.charts import Line, LinesOverTime
from scaler_ui.web.kinds import LAST_FAILURES, PROGRESS
from scaler_ui.web.parts import Figures, ServerTable, heading, subheading

REFRESH_SECONDS = 1.0
_COUNT = "value => value.toLocaleString()"
_PERCENT = "value => `${value.toLocaleString()}%`"
_MILLISECONDS = "value => value < 1000 ? `${value} ms` : `${(value / 1000).toLocaleString()} s`"
_MEBIBYTES = "value => value < 1024 ? `${value} MiB` : `${(value / 1024).toFixed(1)} GiB`"
LINES = (
    Line("Tasks that ended per second", ("tasks/s",), _COUNT),
    Line("Latency: mean from submission to end", ("latency",), _MILLISECONDS),
    Line("Tasks now", (OFF_HOSTS, "queued", "running"), _COUNT),
    Line("CPU of all workers, in percent of one core", ("cpu",), _PERCENT),
    Line("Memory of all workers", ("memory",), _MEBIBYTES),
)


def preview(found: Iterable[Finding], figures: Mapping[str, str]) -> str:
    """The sentences and the large figures as HTML."""
    sentences = [f'<div class="is-{each.severity.name.lower()}">{escape(each.text)}</div>' for each in found]
    cards = [
        f'<div class="panel figure"><div class="name">{name}</div>'
        f'<div class="value">{escape(figures[name])}</div></div>'
        for name in views.LARGE_FIGURES
        if name in figures
    ]
    return (
        '<div class="preview"><div class="brand">Scaler</div><div class="page"><div class="heading">Overview</div>'
        f'<div class="panel findings">{"".join(sentences)}</div>'
        f'<div class="figures large">{"".join(cards)}</div></div></div>'
    )


class FindingList(ui.element, component="findings.js"):
    """How far the work is, and what is wrong."""

    def __init__(self, found: list[Finding]) -> None:
        super().__init__()
        self.show(found)

    def show(self, found: list[Finding]) -> None:
        """Show these findings; nothing is sent if they have not changed."""
        shown = [
            {
                "severity": finding.severity.name.lower(),
                **dict(zip(("before", "subject", "behind"), finding.parts, strict=True)),
                "address": address(finding.place, finding.subject),
            }
            for finding in found
        ]
        if self.props.get("findings") != shown:
            self.props["findings"] = shown


class OverviewPage:
    """The content of the page."""

    def __init__(self, listening: Listening) -> None:
        self._listening, self._model = listening, listening.model

    def preview(self) -> str:
        """What readers see until the page has loaded, as HTML."""
        return preview(self._listening.findings(), views.figures(self._model))

    def fill(self) -> None:
        """Fill the page."""
        heading("Overview")
        found = FindingList(self._listening.findings())
        shown, points = views.figures(self._model), views.lines(self._model)
        large = Figures(views.LARGE_FIGURES, shown, large=True)
        with ui.element("div").classes("halves"):
            with ui.element("div"):
                subheading("Open work")
                ServerTable(PROGRESS, partial(overview.progress, self._model), "work-")
                subheading("Last failures")
                ServerTable(LAST_FAILURES, partial(overview.last_failures, self._model), "failures-")
            with ui.element("div"):
                charts = LinesOverTime(LINES, points)
        small = Figures(views.SMALL_FIGURES, shown)

        def refresh() -> None:
            found.show(self._listening.findings())
            shown = views.figures(self._model)
            large.show(shown)
            small.show(shown)
            charts.show(views.lines(self._model))

        ui.timer(REFRESH_SECONDS, refresh, immediate=False)
