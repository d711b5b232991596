"""The pages of scaler_ui: each shows its part of the model, and only what the reader looks at is sent."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from scaler_ui import cluster_views, views
from scaler_ui.dialogs import Dialogs
from scaler_ui.listening import Listening, advice
from scaler_ui.operating import Operating
from scaler_ui.parts import KEYBOARD, STYLE, Figures, LinesOverTime, ServerTable, Timeline

REFRESH_SECONDS = 1.0
STREAM_SECONDS = 2.0
WINDOWS = {60: "1 minute", 300: "5 minutes", 1800: "30 minutes"}

TASK_COLUMNS = {
    "id": "task", "function": "function", "state": "state", "session": "client", "agent": "agent", "pid": "process",
    "attempt": "attempt", "since": "since", "ended": "ended", "duration": "duration", "cpu": "cpu", "memory": "memory",
    "error": "error",
}  # fmt: skip
WORKER_COLUMNS = {
    "worker": "worker", "agent": "agent", "state": "state", "agt_cpu": "agt_cpu", "agt_rss": "agt_rss", "cpu": "cpu",
    "rss": "rss", "free": "free", "sent": "sent", "queued": "queued", "lag": "lag", "itl": "ITL",
    "silence": "last heard", "capabilities": "offers",
}  # fmt: skip
CLIENT_COLUMNS = {"name": "client", "session": "session", "host": "host", "tasks": "tasks"}
FUNCTION_COLUMNS = {
    "function": "function", "calls": "ended", "success": "success", "raised": "raised", "failed": "failed",
    "cancelled": "cancelled", "mean": "mean", "longest": "longest", "cpu": "cpu, in all", "memory": "peak memory",
}  # fmt: skip
GRAPH_COLUMNS = {
    "graph": "graph", "client": "client", "state": "state", "nodes": "nodes", "done": "done", "failed": "failed",
    "cancelled": "cancelled", "running": "with agents", "left": "left", "progress": "progress", "begun": "begun",
    "took": "time",
}  # fmt: skip
OBJECT_COLUMNS = {"object": "hash of its id", "client": "client", "size": "size", "where": "where"}
CAPACITY_COLUMNS = {
    "offers": "offers", "runtime": "Python", "agents": "agents", "workers": "workers", "busy": "busy", "tasks": "tasks",
    "places": "places in queues", "cpu": "cpu", "memory": "memory",
}  # fmt: skip
DEMAND_COLUMNS = {
    "needs": "tasks that need", "priority": "priority", "waiting": "waiting", "workers": "workers that can",
    "why": "why they wait",
}  # fmt: skip
EVENT_COLUMNS = {"time": "time", "level": "level", "task": "task", "text": "what happened"}


class Pages:
    """All pages around one model."""

    def __init__(self, listening: Listening, operating: Operating | None) -> None:
        self._listening = listening
        self._model = listening.model
        self._dialogs = Dialogs(self._model, operating)
        self._places: dict[str, tuple[str, Callable[[], None]]] = {
            "/": ("Overview", self._overview),
            "/tasks": ("Tasks", self._tasks),
            "/stream": ("Task stream", self._stream),
            "/functions": ("Functions", self._functions),
            "/graphs": ("Graphs", self._graphs),
            "/workers": ("Workers", self._workers),
            "/capacity": ("Capacity", self._capacity),
            "/clients": ("Clients", self._clients),
            "/objects": ("Objects", self._objects),
            "/events": ("Events", self._events),
        }

    def add(self) -> None:
        """Make them known to the server."""
        ui.add_css(STYLE, shared=True)
        ui.add_head_html(KEYBOARD, shared=True)
        for path, (title, fill) in self._places.items():
            self._add(path, title, fill)

    def _add(self, path: str, title: str, fill: Callable[[], None]) -> None:
        @ui.page(path, title=f"{title} - Scaler")
        def page(dark: str = "") -> None:
            self._frame(path, dark)
            with ui.column().classes("w-full p-2 gap-2").props("role=main"):
                fill()

    def _frame(self, path: str, dark: str) -> None:
        """What is around every page: where to go, and whether what is shown is fresh."""
        mode = ui.dark_mode(value={"": None, "0": False}.get(dark, True))
        with (
            ui.header().classes("bg-blue-900 text-white px-3 py-1"),
            ui.row().classes("w-full items-center gap-x-3 gap-y-1"),
        ):
            with ui.element("nav").classes("flex flex-wrap gap-x-3 gap-y-1 items-center"):
                for place, (title, _) in self._places.items():
                    link = ui.link(title, place).classes("text-white no-underline hover:underline")
                    if place == path:
                        link.classes("font-bold underline").props('aria-current="page"')
            ui.space()
            note = ui.label().props('data-testid="note" role="status"')
            ui.button(icon="contrast", on_click=lambda: mode.set_value(not mode.value)).props(
                'flat dense color=white aria-label="light or dark"'
            )

        def tell() -> None:
            note.text = self._note()

        tell()
        ui.timer(REFRESH_SECONDS, tell)

    def _note(self) -> str:
        status, now = self._model.status, self._listening.now
        if status is None:
            return advice(self._listening.address) if self._listening.silent else "connecting"
        if self._model.is_stale(now):
            return f"stale: nothing was heard for {now - self._model.heard:.0f} s"
        return status.address

    def _overview(self) -> None:
        figures = Figures(views.FIGURES)
        with ui.grid().classes("w-full grid-cols-1 lg:grid-cols-2"):
            charts = (
                LinesOverTime("Tasks per second", "1/s", ("tasks/s",)),
                LinesOverTime("Tasks now", "", ("waiting", "running")),
                LinesOverTime("CPU of all workers", "%", ("cpu",)),
                LinesOverTime("Memory of all workers", "MiB", ("memory",)),
            )

        def refresh() -> None:
            figures.show(views.figures(self._model))
            points = views.lines(self._model)
            for chart in charts:
                chart.show(points)

        refresh()
        ui.timer(REFRESH_SECONDS, refresh)

    def _tasks(self) -> None:
        _hint(
            "Open a task to see why it waits, or how it ended. The filter looks at functions, agents, clients and ids."
        )
        table = ServerTable(
            "tasks",
            TASK_COLUMNS,
            lambda request: views.tasks(self._model, request),
            key="id",
            order="since",
            states=views.TASK_STATES,
            unsorted=("error",),
            on_row=self._dialogs.task,
        )
        ui.timer(STREAM_SECONDS, table.refresh)

    def _stream(self) -> None:
        window = ui.select(WINDOWS, value=60, label="window").props('dense aria-label="window"').classes("min-w-32")
        timeline = Timeline()

        def refresh() -> None:
            timeline.show(*views.bars(self._model, window.value))

        window.on_value_change(refresh)
        refresh()
        ui.timer(STREAM_SECONDS, refresh)

    def _workers(self) -> None:
        _hint("Open a worker to see what it runs, or to drain it.")
        table = ServerTable(
            "workers",
            WORKER_COLUMNS,
            lambda request: views.workers(self._model, request, self._listening.now),
            key="key",
            order="cpu",
            on_row=self._dialogs.worker,
        )
        ui.timer(STREAM_SECONDS, table.refresh)

    def _clients(self) -> None:
        table = ServerTable(
            "clients", CLIENT_COLUMNS, lambda request: views.clients(self._model, request), key="session", order="tasks"
        )
        ui.timer(REFRESH_SECONDS, table.refresh)

    def _functions(self) -> None:
        _hint("Calls that were seen to end, by function: what they took, in wall and CPU time, and their peak memory.")
        table = ServerTable(
            "functions",
            FUNCTION_COLUMNS,
            lambda request: views.functions(self._model, request),
            key="function",
            order="calls",
        )
        ui.timer(REFRESH_SECONDS, table.refresh)

    def _graphs(self) -> None:
        _hint("Graphs that are under way, and the last hundred that are over.")
        table = ServerTable(
            "graphs",
            GRAPH_COLUMNS,
            lambda request: cluster_views.graphs(self._model, request),
            key="graph",
            order="graph",
        )
        ui.timer(REFRESH_SECONDS, table.refresh)

    def _capacity(self) -> None:
        _title("What workers offer")
        offers = ServerTable(
            "capacity",
            CAPACITY_COLUMNS,
            lambda request: cluster_views.capacity(self._model, request),
            key="class",
            order="workers",
            filtered=False,
        )
        _title("What waiting tasks need")
        demand = ServerTable(
            "demand",
            DEMAND_COLUMNS,
            lambda request: cluster_views.demand(self._model, request),
            key="demand",
            order="waiting",
            filtered=False,
        )
        _title("Scaling")
        _hint("Nothing scales this cluster by itself: there are as many workers as were started, less those drained.")
        ui.timer(REFRESH_SECONDS, offers.refresh)
        ui.timer(REFRESH_SECONDS, demand.refresh)

    def _objects(self) -> None:
        figures = Figures(cluster_views.OBJECT_FIGURES)
        _title("The biggest of the newest 20,000 objects")
        table = ServerTable(
            "biggest",
            OBJECT_COLUMNS,
            lambda request: cluster_views.biggest_objects(self._model, request),
            key="object",
            order="size",
            filtered=False,
        )

        def refresh() -> None:
            figures.show(cluster_views.object_figures(self._model))
            table.refresh()

        refresh()
        ui.timer(REFRESH_SECONDS, refresh)

    def _events(self) -> None:
        table = ServerTable(
            "events", EVENT_COLUMNS, lambda request: views.events(self._model, request), key="number", order="time"
        )
        ui.timer(REFRESH_SECONDS, table.refresh)


def _hint(text: str) -> None:
    ui.label(text).classes("text-sm opacity-90")


def _title(text: str) -> None:
    ui.label(text).classes("text-base font-bold").props("role=heading aria-level=2")
