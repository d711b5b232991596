"""Pages about one task, worker, host, client, function, graph or group of failures, with the actions on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nicegui import ui

from scaler_ui.listening import Listening
from scaler_ui.model import failures, subjects, views, workload_views
from scaler_ui.model.addresses import PageRequest, address, name_in, read_task, read_worker
from scaler_ui.model.graph_looks import GraphLooks
from scaler_ui.model.reasons import is_to_ask, printed, why
from scaler_ui.model.subjects import Fact
from scaler_ui.model.views import TablePage
from scaler_ui.web.graph_page import fill_graph
from scaler_ui.web.kinds import COMPARISON, FAILED_TASKS, OTHER_WORKLOADS, RUNNERS, TASKS, WORKLOADS
from scaler_ui.web.operator_actions import OperatorActions
from scaler_ui.web.parts import FactList, ServerTable, heading, login_hint, reader_of_page, subheading

RUN_AGAIN = "To run such a task again: future.retry() in the program that submitted it."
PROFILED = "Where tasks of this function spend their time"
NOT_KEPT = "Nothing, or it was not kept: scaler_cluster --output-limit-per-task says how much is."
REFRESH_SECONDS = 1.0


class Unknown(ui.column):
    """What a page shows about a name that is not known."""

    def __init__(self, kind: str, name: str, lists: str) -> None:
        super().__init__()
        with self.props("data-testid=unknown"):
            heading(f"404: no {kind} {name} is known")
            ui.label("There was none, it is too old to be remembered, or it has not been heard of yet.")
            ui.link(f"Look at {lists}", f"/{lists}")


class SubjectPages:
    """Pages over one model; without `actions` they are read-only."""

    def __init__(self, listening: Listening, actions: OperatorActions | None) -> None:
        self._listening = listening
        self._model = listening.model
        self._actions = actions
        self._looks = GraphLooks(self._model)

    # --- pages ------------------------------------------------------------------------------------------------------

    def task(self, task: str) -> None:
        """Why a task waits, where it runs, or how it ended."""
        name = name_in(task)
        number = read_task(name)
        if number is None:
            Unknown("task", name, "tasks")
        else:
            facts = partial(subjects.task_facts, self._model, number)
            self._page("task", name, "tasks", facts, partial(self._fill_task, number))

    def worker(self, worker: str) -> None:
        """What a worker does, and its tasks."""
        name = name_in(worker)
        parts = read_worker(name)
        if parts is None:
            Unknown("worker", name, "workers")
        else:
            self._page("worker", name, "workers", lambda: self._worker_facts(parts), partial(self._fill_worker, parts))

    def host(self, host: str) -> None:
        """What is wrong with a host, its workers with what they run, and its tasks."""
        name = name_in(host)
        self._page(
            "host", name, "hosts", partial(subjects.host_facts, self._model, name), partial(self._fill_host, name)
        )

    def client(self, client: str) -> None:
        """The tasks of a client."""
        name = name_in(client)
        facts = partial(subjects.client_facts, self._model, name)
        self._page("client", name, "clients", facts, lambda: self._tasks(client=name))

    def function(self, function: str) -> None:
        """What the calls of a function took, and these calls."""
        name = name_in(function)
        facts = partial(subjects.function_facts, self._model, name)
        self._page("function", name, "functions", facts, partial(self._fill_function, name))

    def graph(self, graph: str) -> None:
        """How far a graph is, which is named by its number, or as that of its first task."""
        name = name_in(graph)

        def number() -> int:
            return subjects.graph_number(self._model, name)

        self._page(
            "graph", name, "graphs",
            lambda: subjects.graph_facts(self._model, self._looks, number()),
            lambda: fill_graph(self._looks, number()),
        )  # fmt: skip

    def failure(self, function: str, exception: str) -> None:
        """Failures of a function with one type of exception: the last traceback, and the tasks."""
        names = name_in(function), name_in(exception)
        facts = partial(subjects.failure_facts, self._model, *names)
        self._page("failure", " of ".join(names[::-1]), "failures", facts, partial(self._fill_failure, *names))

    def workload(self, workload: str, other: str = "") -> None:
        """What the calls of a workload took, compared with another one: if none is named, with the one before it."""
        names = name_in(workload), name_in(other)
        facts = partial(workload_views.workload_facts, self._model, *names)
        name = " and ".join(filter(None, names))
        self._page("workload", name, "history", facts, partial(self._fill_workload, *names))

    def _page(
        self,
        kind: str,
        name: str,
        lists: str,
        facts: Callable[[], list[Fact] | None],
        fill: Callable[[], None] = lambda: None,
    ) -> None:
        """Facts and what follows them; or that nothing is known, until it is."""
        found = facts()
        if found is None:
            Unknown(kind, name, lists)
            router = ui.context.client.sub_pages_router

            async def look() -> None:
                if facts() is not None:
                    await router.refresh()

            ui.timer(REFRESH_SECONDS, look, immediate=False)
            return
        heading(f"{kind.capitalize()} {name}")
        with ui.card().classes("panel about").props(f'data-testid="{kind}"'):
            shown = FactList(found)
        ui.timer(REFRESH_SECONDS, lambda: shown.show(facts() or found), immediate=False)
        fill()

    # --- what follows the facts -------------------------------------------------------------------------------------

    def _fill_task(self, task: int) -> None:
        with ui.card().classes("panel about").props('data-testid="why"'):
            told = ui.label().classes("told").props('data-testid="reasons" role="status"')
            fault, copy = _traceback()
            again = ui.label(RUN_AGAIN).classes("hint")
            actions, reader = self._actions, reader_of_page() if self._actions is not None else ""

            def tell() -> None:
                is_asked = actions is not None and is_to_ask(self._model, task)
                asked = actions.ask_why(task, reader) if actions is not None and is_asked else ()
                sentences = why(self._model, task, asked)
                text = self._model.faults.get(task, "")
                again.set_visibility(task in self._model.failures)
                told.text = "\n".join(sentence for sentence in sentences if sentence != text)
                fault.text = text
                copy.set_visibility(bool(text))
                place = self._model.tasks.find(task)
                if place is not None:
                    state = self._model.tasks.state(place)
                    order.set_visibility(state in subjects.OPEN)
                    doing.set_visibility(state == "running")

            place = self._model.tasks.find(task)
            function = "" if place is None else self._model.tasks.function_name(place)
            doing = ui.link(PROFILED, address("profile", function=function))
            doing.set_visibility(False)
            with ui.column() as order:
                self._act("cancel this task", "cancel", lambda actions, reader: actions.cancel(task, reader))
            tell()
            ui.timer(REFRESH_SECONDS, tell, immediate=False)
        subheading("What it has printed")
        with ui.card().classes("panel about"):
            text = ui.label().classes("fault code").props('data-testid="printed" tabindex=0 aria-label="output"')
            none = ui.label(NOT_KEPT).classes("hint")

            def show() -> None:
                text.text = printed(self._model, task)
                none.set_visibility(not text.text)

            show()
            ui.timer(REFRESH_SECONDS, show, immediate=False)
        self._fill_nested(task)

    def _fill_nested(self, task: int) -> None:
        """What a task has submitted, if it has."""
        with ui.column().classes("nested") as nested:
            subheading("What it has submitted")
            kind = replace(TASKS, name="nested", filtered=False, filters=(), choices={})
            table = ServerTable(kind, partial(views.tasks, self._model, parent=task), "nested.")

        def show_nested() -> None:
            nested.set_visibility(table.table.pagination["rowsNumber"] > 0)

        show_nested()
        ui.timer(REFRESH_SECONDS, show_nested, immediate=False)

    def _worker_facts(self, parts: tuple[str, int]) -> list[Fact] | None:
        return subjects.worker_facts(self._model, *parts, self._listening.now)

    def _fill_worker(self, parts: tuple[str, int]) -> None:
        agent, pid = parts
        status = self._model.status
        numbers = [] if status is None else [
            number
            for number, process in zip(status.worker_agents, status.worker_pids, strict=True)
            if (self._model.agents.get(number), process) == (agent, pid)
        ]  # fmt: skip
        if numbers:
            with ui.card().classes("panel about"):
                ui.label("A drained worker finishes its task, returns its queued tasks and is not replaced.")
                self._act("drain this worker", "drain", lambda actions, reader: actions.drain(numbers[0], pid, reader))
        self._tasks(worker=parts)

    def _fill_host(self, host: str) -> None:
        with ui.card().classes("panel findings").props('data-testid="findings" role="status"') as card:
            told = ui.label().classes("told is-warning")

            def tell() -> None:
                about = [each.text for each in self._listening.findings() if each.subject == host]
                told.text = "\n".join(about)
                card.set_visibility(bool(about))

            tell()
            ui.timer(REFRESH_SECONDS, tell, immediate=False)
        subheading("Its workers")
        ServerTable(RUNNERS, partial(subjects.runners, self._model, host), "workers.")
        self._tasks(host=host)

    def _fill_failure(self, function: str, exception: str) -> None:
        subheading("The last traceback")
        with ui.card().classes("panel about"):
            ui.label(RUN_AGAIN)
            fault, _ = _traceback()

            def tell() -> None:
                if members := failures.failures_of(self._model, function, exception):
                    fault.text = members[-1].text

            tell()
            ui.timer(REFRESH_SECONDS, tell, immediate=False)
        subheading("Tasks")
        ServerTable(FAILED_TASKS, partial(failures.failed_tasks, self._model, function, exception))

    def _fill_function(self, function: str) -> None:
        ui.link(PROFILED, address("profile", function=function))
        subheading("Its workloads")
        kind = replace(WORKLOADS, filtered=False)
        ServerTable(kind, partial(workload_views.workloads, self._model, function=function), "workloads.")
        self._tasks(function=function)

    def _fill_workload(self, name: str, other: str) -> None:
        subheading("Compared")
        ServerTable(COMPARISON, partial(workload_views.comparison, self._model, name, other))
        subheading("Others of this function")
        ServerTable(OTHER_WORKLOADS, partial(workload_views.others, self._model, name), "others.")

    def _tasks(self, worker: tuple[str, int] | None = None, **narrow: Any) -> None:
        """The tasks of what the page is about."""

        def fetch(request: PageRequest) -> TablePage:
            return views.tasks(self._model, replace(request, **narrow), worker)

        subheading("Tasks")
        kept = tuple(name for name in TASKS.filters if name not in narrow)
        ServerTable(replace(TASKS, filters=kept), fetch)

    # --- actions ----------------------------------------------------------------------------------------------------

    def _act(self, action: str, name: str, order: Callable[[OperatorActions, str], None]) -> None:
        """A button for an action, or what to do so that there is one."""
        actions = self._actions
        if actions is None:
            login_hint(action).props('data-testid="read-only"')
            return
        reader = reader_of_page()

        def act() -> None:
            order(actions, reader)
            button.disable()
            said.text = actions.trouble(reader) or "Sent to the scheduler."
            ui.timer(REFRESH_SECONDS, lambda: said.set_text(actions.trouble(reader) or said.text))

        button = ui.button(action.capitalize(), on_click=act).props(f'no-caps color=negative data-testid="{name}"')
        said = ui.label().props(f'role="status" data-testid="{name}-said"')


def _traceback() -> tuple[ui.label, ui.button]:
    """A place for a traceback, and the button that copies it."""
    fault = ui.label().classes("fault code").props('data-testid="fault" tabindex=0 aria-label="traceback"')
    copy = ui.button("Copy the traceback", icon="content_copy", color=None)
    copy.props('flat no-caps data-testid="copy"').on("click", js_handler="(event) => copyText(event.currentTarget)")
    return fault, copy
