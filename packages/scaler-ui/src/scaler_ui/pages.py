"""The pages of scaler_ui: each shows its part of the model, and only what the reader looks at is sent."""

from __future__ import annotations

from collections.abc import Callable

from nicegui import ui

from scaler_ui import views
from scaler_ui.listening import Listening, advice
from scaler_ui.parts import LinesOverTime, ServerTable, Timeline
from scaler_ui.reasons import why
from scaler_ui.views import Row

REFRESH_SECONDS = 1.0
STREAM_SECONDS = 2.0
WINDOWS = {60: "1 minute", 300: "5 minutes", 1800: "30 minutes"}

TASK_COLUMNS = {
    "id": "task", "function": "function", "state": "state", "session": "client", "agent": "agent", "pid": "process",
    "attempt": "attempt", "since": "since", "ended": "ended", "duration": "duration", "cpu": "cpu", "memory": "memory",
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
EVENT_COLUMNS = {"time": "time", "level": "level", "task": "task", "text": "what happened"}


class Pages:
    """All pages around one model."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self._model = listening.model
        self._places: dict[str, tuple[str, Callable[[], None]]] = {
            "/": ("Overview", self._overview),
            "/tasks": ("Tasks", self._tasks),
            "/stream": ("Task stream", self._stream),
            "/workers": ("Workers", self._workers),
            "/clients": ("Clients", self._clients),
            "/functions": ("Functions", self._functions),
            "/events": ("Events", self._events),
        }

    def add(self) -> None:
        """Make them known to the server."""
        for path, (title, fill) in self._places.items():
            self._add(path, title, fill)

    def _add(self, path: str, title: str, fill: Callable[[], None]) -> None:
        @ui.page(path, title=f"{title} - Scaler")
        def page(dark: str = "") -> None:
            self._frame(path, dark)
            with ui.column().classes("w-full p-2 gap-2"):
                fill()

    def _frame(self, path: str, dark: str) -> None:
        """What is around every page: where to go, and whether what is shown is fresh."""
        mode = ui.dark_mode(value={"": None, "0": False}.get(dark, True))
        with ui.header().classes("items-center gap-3 py-1 bg-blue-900 text-white"):
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
        with ui.row().classes("w-full gap-2"):
            cards = {name: _card(name) for name in views.FIGURES}
        with ui.grid().classes("w-full grid-cols-1 lg:grid-cols-2"):
            charts = (
                LinesOverTime("Tasks per second", "1/s", ("tasks/s",)),
                LinesOverTime("Tasks now", "", ("waiting", "running")),
                LinesOverTime("CPU of all workers", "%", ("cpu",)),
                LinesOverTime("Memory of all workers", "MiB", ("memory",)),
            )

        def refresh() -> None:
            for name, text in views.figures(self._model).items():
                cards[name].text = text
            points = views.lines(self._model)
            for chart in charts:
                chart.show(points)

        refresh()
        ui.timer(REFRESH_SECONDS, refresh)

    def _tasks(self) -> None:
        def explain(row: Row) -> None:
            with ui.dialog() as dialog, ui.card().props('data-testid="why"'):
                ui.label(f"task {row['id']} {row['function']}").classes("font-bold")
                for sentence in why(self._model, int(row["id"], 16)):
                    ui.label(sentence)
            dialog.open()

        ui.label("Click on a task to see why it waits, or how it ended.").classes("text-sm opacity-80")
        table = ServerTable(
            "tasks",
            TASK_COLUMNS,
            lambda request: views.tasks(self._model, request),
            key="id",
            order="since",
            states=views.TASK_STATES,
            on_row=explain,
        )
        ui.timer(STREAM_SECONDS, table.refresh)

    def _stream(self) -> None:
        window = ui.select(WINDOWS, value=60, label="window").props("dense").classes("min-w-32")
        timeline = Timeline()

        def refresh() -> None:
            timeline.show(*views.bars(self._model, window.value))

        refresh()
        ui.timer(STREAM_SECONDS, refresh)

    def _workers(self) -> None:
        table = ServerTable(
            "workers",
            WORKER_COLUMNS,
            lambda request: views.workers(self._model, request, self._listening.now),
            key="worker",
            order="cpu",
        )
        ui.timer(STREAM_SECONDS, table.refresh)

    def _clients(self) -> None:
        table = ServerTable(
            "clients", CLIENT_COLUMNS, lambda request: views.clients(self._model, request), key="session", order="tasks"
        )
        ui.timer(REFRESH_SECONDS, table.refresh)

    def _functions(self) -> None:
        table = ServerTable(
            "functions",
            FUNCTION_COLUMNS,
            lambda request: views.functions(self._model, request),
            key="function",
            order="calls",
        )
        ui.timer(REFRESH_SECONDS, table.refresh)

    def _events(self) -> None:
        table = ServerTable(
            "events", EVENT_COLUMNS, lambda request: views.events(self._model, request), key="number", order="time"
        )
        ui.timer(REFRESH_SECONDS, table.refresh)


def _card(name: str) -> ui.label:
    with ui.card().classes("p-2 gap-0 min-w-28"):
        ui.label(name).classes("text-xs opacity-80")
        return ui.label("").classes("text-lg").props(f'data-testid="{name}"')
