"""Dialogs about one task or one worker, with the actions on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nicegui import ui

from scaler_protocol.errors import AddressError
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.reasons import why
from scaler_ui.model.tables import worker_sentence
from scaler_ui.model.views import Row
from scaler_ui.web.access import READER
from scaler_ui.web.operator_actions import OperatorActions
from scaler_ui.web.parts import subheading

READ_ONLY = "To act, start scaler_ui with a login: --token, SCALER_UI_TOKEN or --user-header."
REFRESH_SECONDS = 1.0


class Dialogs:
    """Dialogs over one model; without `actions` they are read-only."""

    def __init__(self, model: MonitorModel, actions: OperatorActions | None) -> None:
        self._model = model
        self._actions = actions

    def task(self, row: Row) -> None:
        """Open the dialog of a task."""
        task = int(row["id"], 16)
        with self._dialog(f"task {row['id']} {row['function']}", "why") as dialog:
            told = ui.label().classes("told").props('data-testid="reasons"')
            fault = ui.label().classes("fault code").props('data-testid="fault"')

            def tell() -> None:
                sentences = why(self._model, task)
                text = self._model.faults.get(task, "")
                told.text = "\n".join(sentence for sentence in sentences if sentence != text)
                fault.text = text

            tell()
            ui.timer(REFRESH_SECONDS, tell)
            if row["state"] in ("waiting", "held", "queued", "running"):
                self._act("Cancel this task", "cancel", lambda actions, reader: actions.cancel(task, reader), dialog)
            else:
                ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps")
        self._open(dialog)

    def worker(self, row: Row) -> None:
        """Open the dialog of a worker."""
        number, pid = row["number"], row["pid"]
        with self._dialog(f"{row['worker']} of {row['agent']}", "worker") as dialog:
            does = ui.label().classes("told")

            def tell() -> None:
                does.text = worker_sentence(self._model, number, pid)

            tell()
            ui.timer(REFRESH_SECONDS, tell)
            ui.label(f"It offers {row['capabilities'] or 'no capabilities'}.")
            ui.label("A drained worker finishes its task, returns its queued tasks and is not replaced.")
            self._act("Drain this worker", "drain", lambda actions, reader: actions.drain(number, pid, reader), dialog)
        self._open(dialog)

    @contextmanager
    def _dialog(self, title: str, name: str) -> Iterator[ui.dialog]:
        """A dialog with this title; what is made inside the context is its content."""
        with ui.dialog() as dialog, ui.card().classes("dialog").props(f'data-testid="{name}"'):
            dialog.props["aria-label"] = title  # a prop in a text may have no quotes in it
            subheading(title)
            yield dialog

    def _open(self, dialog: ui.dialog) -> None:
        dialog.on("hide", dialog.delete)
        dialog.open()

    def _act(self, title: str, name: str, order: Callable[[OperatorActions, str], None], dialog: ui.dialog) -> None:
        actions = self._actions
        if actions is None:
            ui.label(READ_ONLY).classes("hint").props('data-testid="read-only"')
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps")
            return
        reader = _reader()
        said = ui.label().props(f'role="status" data-testid="{name}-said"')

        def act() -> None:
            try:
                order(actions, reader)
            except AddressError as error:
                said.text = str(error)
            else:
                button.disable()
                said.text = actions.trouble(reader) or "Sent to the scheduler."
                ui.timer(REFRESH_SECONDS, lambda: said.set_text(actions.trouble(reader) or said.text))

        with ui.row():
            button = ui.button(title, on_click=act).props(f'no-caps color=negative data-testid="{name}"')
            ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps")


def _reader() -> str:
    """The name of who looks at this page, as the access guard knows it."""
    request = ui.context.client.request
    assert request is not None
    reader: str = request.scope[READER]
    return reader
