"""The pages of scaler_ui: each shows a part of the model, and only visible content is sent.

They are one document: a change of the page replaces only the content, and loads no script or style again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from nicegui import core, ui
from nicegui.sub_pages_router import SubPagesRouter
from starlette.requests import Request
from starlette.responses import Response

from scaler_ui.history.keeper import HistoryKeeper
from scaler_ui.listening import Listening
from scaler_ui.model import cluster_views, task_stream, views, workload_views
from scaler_ui.model.addresses import names_in
from scaler_ui.model.failures import failure_groups
from scaler_ui.model.subjects import hosts
from scaler_ui.web.charts import LinesOverTime, Timeline
from scaler_ui.web.kinds import (
    BIGGEST,
    CAPACITY,
    CLIENTS,
    DEMAND,
    EVENTS,
    FAILURES,
    FUNCTIONS,
    GRAPHS,
    HOSTS,
    MANAGERS,
    TASKS,
    WORKERS,
    WORKLOADS,
)
from scaler_ui.web.operator_actions import OperatorActions
from scaler_ui.web.overview_page import LINES, REFRESH_SECONDS, OverviewPage
from scaler_ui.web.parts import Figures, ServerTable, heading, subheading
from scaler_ui.web.profile_page import ProfilePage
from scaler_ui.web.requests import refuse_binary_events, unknown_page
from scaler_ui.web.subject_pages import SubjectPages, Unknown

STREAM_SECONDS = 2.0
MINUTE_SECONDS = 60.0
WINDOWS = {60: "1 minute", 300: "5 minutes", 1800: "30 minutes"}
DAYS = {0.25: "6 hours", 1: "1 day", 7: "7 days", 30: "30 days"}
LIST_OF = {
    "task": "/tasks", "worker": "/workers", "host": "/hosts", "client": "/clients", "function": "/functions",
    "graph": "/graphs", "failure": "/failures", "workload": "/history",
}  # fmt: skip
"""The page of the menu to which pages about one thing belong."""


class Pages:
    """All pages of one model."""

    def __init__(
        self, listening: Listening, actions: OperatorActions | None, keeper: HistoryKeeper | None = None
    ) -> None:
        self._listening = listening
        self._model = listening.model
        self._keeper = keeper
        self._overview = OverviewPage(listening)
        about = SubjectPages(listening, actions)
        self._places: dict[str, tuple[str, Callable[[], None]]] = {
            "/": ("Overview", self._overview.fill),
            "/tasks": ("Tasks", self._tasks),
            "/failures": ("Failures", self._failures),
            "/stream": ("Task stream", self._stream),
            "/functions": ("Functions", self._functions),
            "/profile": ("Profile", ProfilePage(self._model, actions).fill),
            "/graphs": ("Graphs", self._graphs),
            "/workers": ("Workers", self._workers),
            "/hosts": ("Hosts", self._hosts),
            "/capacity": ("Capacity", self._capacity),
            "/clients": ("Clients", self._clients),
            "/objects": ("Objects", self._objects),
            "/events": ("Events", self._events),
            "/history": ("History", self._history),
        }
        """The pages of the menu, with their titles."""
        self._subjects: dict[str, Callable[..., None]] = {
            "/task/{task}": about.task,
            "/worker/{worker}": about.worker,
            "/host/{host}": about.host,
            "/client/{client}": about.client,
            "/function/{function}": about.function,
            "/graph/{graph}": about.graph,
            "/failure/{function}/{exception}": about.failure,
            "/workload/{workload}": about.workload,
            "/workload/{workload}/{other}": about.workload,
        }
        """The pages about one thing each; names in their addresses are encoded."""

    def add(self) -> None:
        """Register the pages at the server."""
        refuse_binary_events(core.sio)
        beside = Path(__file__)
        ui.add_css(beside.with_name("pages.css"), shared=True)
        for script in ("pages.js", "flames.js"):
            text = beside.with_name(script).read_text("utf-8")
            ui.add_head_html(f'<script type="module">{text}</script>', shared=True)
        for path in self._places:
            self._add(path)
        for place in dict.fromkeys(names_in(path)[0] for path in self._subjects):
            # Names may have slashes, which are not encoded any more when a page is looked up.
            self._add(f"/{place}/{{names:path}}")

    def _add(self, path: str) -> None:
        @ui.page(path)
        def page() -> Response | None:
            client = ui.context.client
            assert client.request is not None
            router = client.sub_pages_router
            router.current_path = _address_of(client.request)
            if not self._has(router.current_path):
                return unknown_page()
            if path == "/":
                ui.add_body_html(self._overview.preview())
            content = self._frame(router)
            if any(isinstance(each, Unknown) for each in content.descendants()):
                return client.build_response(client.request, 404)
            return None

    def _has(self, address: str) -> bool:
        """Whether an address is that of a page, whatever its names are."""
        path = urlsplit(address).path
        names = [name for name in names_in(path) if name]
        shapes = [names_in(pattern) for pattern in self._subjects]
        return path in self._places or any(names[:1] == shape[:1] and len(names) == len(shape) for shape in shapes)

    def _title(self, path: str) -> str:
        if path in self._places:
            return f"{self._places[path][0]} - Scaler"
        return f"{' '.join(names_in(path)).capitalize()} - Scaler"

    def _frame(self, router: SubPagesRouter) -> ui.sub_pages:
        """The frame of every page: navigation, and whether the content is current; then the content."""
        with ui.header():
            ui.label("Scaler").classes("brand")
            with ui.element("nav").props('aria-label="pages"'):
                links = {place: ui.link(title, place) for place, (title, _) in self._places.items()}
            with ui.row().classes("standing"):
                note = ui.label().classes("note").props('data-testid="note" role="status"')
                ui.button(icon="contrast").on("click", js_handler="() => switchTheme()").props(
                    'flat dense round size=sm color=white aria-label="light or dark"'
                )

        def mark(address: str) -> None:
            here = urlsplit(address).path
            at = LIST_OF.get(names_in(here)[0], here)
            for place, link in links.items():
                link.props("aria-current=page" if place == at else None, remove="aria-current")
            ui.page_title(self._title(here))

        def arrive(address: str) -> None:
            mark(address)
            content.refresh()  # by itself it would keep a page of which another query is asked for

        def tell() -> None:
            note.text, is_old = self._note()
            note.classes("old" if is_old else None, remove=None if is_old else "old")

        mark(router.current_path)
        tell()
        ui.timer(REFRESH_SECONDS, tell, immediate=False)
        ui.timer(REFRESH_SECONDS, lambda: ui.run_javascript("hear()"), immediate=False)
        places = {place: fill for place, (_, fill) in self._places.items()}
        content = ui.sub_pages({**places, **self._subjects}).classes("page")
        router.on_path_changed(arrive)
        return content

    def _note(self) -> tuple[str, bool]:
        """The text about the connection, and whether the content is old."""
        status, now = self._model.status, self._listening.now
        if status is None:
            return self._listening.problem or "connecting", True
        if self._model.is_stale(now):
            reason = f": {self._model.silence_reason}" if self._model.silence_reason else ""
            return f"stale: nothing was heard for {now - self._model.heard:.0f} s{reason}", True
        return status.address, False

    def _tasks(self) -> None:
        heading(
            "Tasks",
            "Open a task to see why it waits, or how it ended. The filter looks at functions, agents, clients and ids.",
        )
        ServerTable(TASKS, partial(views.tasks, self._model))

    def _failures(self) -> None:
        heading(
            "Failures",
            "The last failures by function and type of exception. The filter looks at functions and tracebacks. "
            "Open one for its last traceback and its tasks.",
        )
        ServerTable(FAILURES, partial(failure_groups, self._model))

    def _stream(self) -> None:
        heading(
            "Task stream",
            "A line for each worker, a colour for each function. Pale bars still run, red frames failed or were "
            "lost, grey was cancelled; at dark ends objects are fetched and the result is stored. Low bars are many "
            "short tasks. What a task has submitted is below its line. Click a bar to open its task; drag the bar at "
            "the bottom to zoom; pause to look at what would move on.",
        )
        with ui.card().classes("panel chart"):
            with ui.row().classes("tools"):
                window = ui.select(WINDOWS, value=60, label="Window").props('dense options-dense aria-label="window"')
                pause = ui.switch("Pause").props('dense data-testid="pause"')
                below = ui.switch("Nested below parents", value=True).props('dense data-testid="nested"')
                stream = task_stream.stream(self._model, window.value)
                count = ui.label(stream.summary).props('data-testid="stream-count" role="status"')
            timeline = Timeline(stream)

        def refresh() -> None:
            stream = task_stream.stream(self._model, window.value, nested=below.value)
            timeline.show(stream)
            count.text = stream.summary

        window.on_value_change(refresh)
        below.on_value_change(refresh)
        ui.timer(STREAM_SECONDS, lambda: None if pause.value else refresh(), immediate=False)

    def _workers(self) -> None:
        heading(
            "Workers",
            "Open a worker to see what it runs, or to drain it. CPU is in percent of a core. "
            "ITL says with 1 or 0 whether a worker is up, has a task, and waits in it for others.",
        )
        ServerTable(WORKERS, lambda request: views.workers(self._model, request, self._listening.now))

    def _hosts(self) -> None:
        heading(
            "Hosts",
            "Hosts, and those that were lost lately. Deaths of workers and failures of tasks are those of the last ten "
            "minutes. The overview names hosts that are worse than the others. Lag is the round trip to an agent.",
        )
        ServerTable(HOSTS, partial(hosts, self._model))

    def _clients(self) -> None:
        heading("Clients", "Who submits tasks, and how many of them are not released yet.")
        ServerTable(CLIENTS, partial(views.clients, self._model))

    def _functions(self) -> None:
        heading(
            "Functions",
            "Calls that were seen to end, by function: what they took, in wall and CPU time, and their peak memory.",
        )
        ServerTable(FUNCTIONS, partial(views.functions, self._model))

    def _graphs(self) -> None:
        heading(
            "Graphs",
            "Graphs that are under way, and the last hundred that have ended. A graph begins when it is submitted.",
        )
        ServerTable(GRAPHS, partial(cluster_views.graphs, self._model))

    def _capacity(self) -> None:
        heading(
            "Capacity",
            "Worker managers start and stop workers as the scheduler decides. Without one there are as many workers as "
            "were started, less those drained.",
        )
        subheading("Worker managers")
        ServerTable(MANAGERS, partial(cluster_views.managers, self._model), "managers.")
        subheading("What workers offer")
        ServerTable(CAPACITY, partial(cluster_views.capacity, self._model), "offers.")
        subheading("What waiting tasks need")
        ServerTable(DEMAND, partial(cluster_views.demand, self._model), "needs.")

    def _objects(self) -> None:
        heading(
            "Objects",
            "What the object storage server has in memory and on disk, and what only the hosts have that made it. "
            "Mapped bytes are in use by processes; recyclable ones are freed, and kept for the next object.",
        )
        figures = Figures(cluster_views.OBJECT_FIGURES, cluster_views.object_figures(self._model))
        ui.timer(REFRESH_SECONDS, lambda: figures.show(cluster_views.object_figures(self._model)), immediate=False)
        subheading("The biggest of the newest 20,000 objects")
        ServerTable(BIGGEST, partial(cluster_views.biggest_objects, self._model))

    def _events(self) -> None:
        heading("Events", "Who came and went, which workers died and how, which runs were lost and why.")
        ServerTable(EVENTS, partial(views.events, self._model))

    def _history(self) -> None:
        heading(
            "History",
            "A workload is what a client called of one function without a break of an hour. Change is that of the "
            "mean run since the workload of the function before: sort by it to see what has become slower. Open one to "
            "compare the rest.",
        )
        kept = ui.label().classes("told").props('data-testid="kept" role="status"')

        def tell() -> None:
            kept.text, is_bad = workload_views.kept_sentences(self._keeper.state if self._keeper else None)
            kept.classes("is-warning" if is_bad else None, remove=None if is_bad else "is-warning")

        tell()
        ui.timer(REFRESH_SECONDS, tell, immediate=False)
        subheading("Workloads")
        ServerTable(WORKLOADS, partial(workload_views.workloads, self._model))
        subheading("Figures of each minute")
        with ui.row().classes("tools"):
            window = ui.select(DAYS, value=1, label="Window").props('dense options-dense aria-label="window"')
        points = workload_views.minute_lines(self._model, window.value)
        charts = LinesOverTime(LINES, points)

        def refresh() -> None:
            points = workload_views.minute_lines(self._model, window.value)
            charts.show(points)

        window.on_value_change(refresh)
        ui.timer(MINUTE_SECONDS, refresh, immediate=False)


def _address_of(request: Request) -> str:
    """The path and query of a request as the browser has sent it: in the path as Starlette has it names are decoded."""
    path: str = request.scope["raw_path"].decode("ascii")
    return f"{path}?{request.url.query}" if request.url.query else path
