"""The screen of scaler_top in a terminal: textual around the lines of scaler_ui.model.text_view."""

from __future__ import annotations

import asyncio
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.widgets import Input, Static

from scaler_ui.listening import Listening
from scaler_ui.model import text_view
from scaler_ui.model.reasons import why
from scaler_ui.model.tables import fields, task_of_run
from scaler_ui.model.text_view import COLUMNS, View
from scaler_ui.terminal.why import task_id

LOOK_SECONDS = 0.1
DRAW_SECONDS = 0.5
END_SECONDS = 3
"""How long the screen may take to end after a signal."""


class WorkerArea(Static):
    """The list of workers, in the room that the other parts leave."""

    def __init__(self, draw: Callable[[], None], **settings: Any) -> None:
        super().__init__(markup=False, **settings)
        self._draw = draw

    def on_resize(self) -> None:
        """Draw again when the size changes."""
        self._draw()


class TopApp(App[None]):
    """The screen. It shows the fields that `--once --json` prints."""

    CSS = """
    Screen { layout: vertical; overflow: hidden; }
    #note { display: none; }
    #note.told { display: block; text-style: bold reverse; }
    #findings, #summary, #keys, #total, #header { height: auto; text-wrap: nowrap; text-overflow: clip; }
    #header { text-style: bold; }
    #body { height: 1fr; text-wrap: nowrap; text-overflow: clip; }
    #details { display: none; height: auto; border-top: solid $primary; text-wrap: nowrap; }
    #details.open { display: block; }
    Input { display: none; dock: bottom; }
    Input.open { display: block; }
    """
    AUTO_FOCUS = ""
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"order('{key}')", name) for name, key in COLUMNS),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", priority=True),
        Binding("slash", "filter", "filter"),
        Binding("enter", "details", "details"),
        Binding("y", "ask", "why"),
        Binding("e", "events", "events"),
        Binding("question_mark", "keys", "keys"),
        Binding("escape", "reset", "reset"),
        Binding("up", "move(-1)", "up"),
        Binding("down", "move(1)", "down"),
        Binding("pageup", "move(-20)", "page up"),
        Binding("pagedown", "move(20)", "page down"),
    ]

    def __init__(self, listening: Listening, driver: type[Driver] | None = None) -> None:
        super().__init__(driver)
        self.view = View()
        self._listening = listening
        self._panel: Callable[[dict[str, Any]], list[str]] | None = None
        """The panel below the workers, if one is open."""

    def compose(self) -> ComposeResult:
        """The parts of the screen, from top to bottom."""
        for name in ("note", "findings", "summary", "keys", "total", "header"):
            yield Static(id=name, markup=False)
        yield WorkerArea(self.draw, id="body")
        yield Static(id="details", markup=False)
        yield Input(placeholder="show workers with this in their name, agent, state or capabilities", id="filter")
        yield Input(placeholder="the id of a task, as futures and logs show it", id="ask")

    def on_mount(self) -> None:
        """Start the timer that polls and draws."""
        self.set_interval(LOOK_SECONDS, self._listening.look)
        self.set_interval(DRAW_SECONDS, self.draw)
        if sys.stdin.isatty():
            self.set_interval(DRAW_SECONDS, _end_without_terminal)

    # --- keys -------------------------------------------------------------------------------------------------------

    def action_order(self, key: str) -> None:
        """Sort by a column; the same key again reverses."""
        self.view = self.view.sorted_by(key)
        self.draw()

    def action_move(self, lines: int) -> None:
        """Select another worker."""
        self.view = replace(self.view, pointed=max(0, self.view.pointed + lines))
        self.draw()

    def action_details(self) -> None:
        """Show or hide the details of the selected worker."""
        self._toggle(self._about_worker)

    def action_events(self) -> None:
        """Show or hide the last events."""
        self._toggle(self._events)

    def action_keys(self) -> None:
        """Show or hide all keys."""
        self._toggle(self._keys)

    def _toggle(self, panel: Callable[[dict[str, Any]], list[str]]) -> None:
        self._show(None if self._panel == panel else panel)

    def _show(self, panel: Callable[[dict[str, Any]], list[str]] | None) -> None:
        self._panel = panel
        self.query_one("#details").set_class(panel is not None, "open")
        self.draw()

    def action_filter(self) -> None:
        """Open the filter."""
        self._enter("#filter")

    def action_ask(self) -> None:
        """Open the question for a task."""
        self._enter("#ask")

    def _enter(self, name: str) -> None:
        entry = self.query_one(name, Input)
        entry.add_class("open")
        entry.focus()

    @on(Input.Changed, "#filter")
    def _filter_changed(self, event: Input.Changed) -> None:
        """Apply the filter while it is typed."""
        self.view = replace(self.view, wanted=event.value, pointed=0)
        self.draw()

    @on(Input.Submitted, "#filter")
    def _filter_kept(self) -> None:
        self._leave_entries()

    @on(Input.Submitted, "#ask")
    def _asked(self, event: Input.Submitted) -> None:
        """Show why the task waits, or how it ended; updated while it is visible."""
        try:
            task = task_id(event.value.strip())
        except ValueError as error:
            said = [str(error)]
            self._show(lambda shown: said)
        else:
            self._show(lambda shown: [f"task {task:x}", *why(self._listening.model, task)])
        self._leave_entries()

    def action_reset(self) -> None:
        """Clear the filter, and close the panel."""
        self.query_one("#filter", Input).value = ""
        self._show(None)
        self._leave_entries()

    def _leave_entries(self) -> None:
        self.query_one("#ask", Input).value = ""
        for entry in self.query(Input):
            entry.remove_class("open")
        self.screen.set_focus(None)
        self.draw()

    # --- drawing ----------------------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw the current state."""
        shown = fields(self._listening.model, self._listening.now)
        note = self._note(shown)
        self._write("note", note)
        self.query_one("#note").set_class(bool(note), "told")
        if not shown:
            return
        rows = self.view.rows(shown)
        self.view = replace(self.view, pointed=min(self.view.pointed, max(0, len(rows) - 1)))
        width, height = self.size
        is_low = height < text_view.LOW
        self._write("findings", "\n".join(text_view.finding_lines(shown, width, 2 if is_low else 4)))
        self._write("summary", "\n".join(text_view.summary(shown, width, 7 if is_low else height // 3)))
        self._write("keys", "\n".join(text_view.keys((width, height))))
        self._write("total", text_view.total(shown, len(rows), width))
        header, lines = text_view.worker_table(rows, self.view, width)
        self._write("header", header)
        self._write_body(rows, lines, text_view.side(shown))
        if self._panel is not None:
            lines = self._panel(shown)
            most = max(6, height // 3)
            self._write("details", "\n".join([*lines[:most], *(["…"] if len(lines) > most else [])]))

    def _about_worker(self, shown: dict[str, Any]) -> list[str]:
        rows = self.view.rows(shown)
        if not rows:
            return ["no worker is shown"]
        worker = rows[min(self.view.pointed, len(rows) - 1)]
        return text_view.details(worker, self._current(worker["run"]))

    def _events(self, shown: dict[str, Any]) -> list[str]:
        return text_view.event_lines(shown, max(1, self.size.height // 3))

    def _keys(self, shown: dict[str, Any]) -> list[str]:
        return text_view.all_keys(self.size.width)

    def _note(self, shown: dict[str, object]) -> str:
        if not shown:
            return self._listening.problem or "connecting"
        return f"stale: nothing was heard for {shown['quiet']:.0f} s" if shown["stale"] else ""

    def _write_body(self, rows: list[dict[str, Any]], lines: list[str], side: list[str]) -> None:
        """Draw as many workers as fit, around the selected one."""
        height = max(1, self.query_one("#body").size.height)
        first, shown = text_view.body(lines, side, (self.size.width, height), self.view.pointed)
        body = Text(no_wrap=True)
        for at, line in enumerate(shown, first):
            body.append(f"{line}\n")
            if at < len(rows) and line.startswith(lines[at]):
                style = "reverse" if at == self.view.pointed else "dim" if rows[at]["stale"] else ""
                body.stylize(style, len(body) - len(line) - 1, len(body) - len(line) - 1 + len(lines[at]))
        self.query_one("#body", Static).update(body)

    def _current(self, run: int) -> str:
        model = self._listening.model
        row = task_of_run(model, run)
        return "none" if row is None else f"{model.tasks.value('id', row):x} {model.tasks.function_name(row)}"

    def _write(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Text(text, no_wrap=True))


def _driver() -> type[Driver] | None:
    """What reads keys; None for what textual chooses."""
    if sys.platform == "win32":
        return None
    from scaler_ui.terminal.keyboard import TolerantDriver

    return TolerantDriver


def _end_without_terminal() -> None:
    """End as at a signal if the terminal is gone: only the processes that it controls are sent SIGHUP."""
    if sys.platform != "win32":
        poll = select.poll()
        poll.register(sys.stdin, 0)
        if poll.poll(0):
            signal.raise_signal(signal.SIGTERM)


def _with_alarm(handler: Any) -> Callable[[int, FrameType | None], object]:
    """A terminal that takes no more output holds up the loop: then the process ends some seconds after a signal."""

    def handle(number: int, frame: FrameType | None) -> None:
        if sys.platform != "win32":
            signal.alarm(END_SECONDS)
        handler(number, frame)

    return handle


async def show(listening: Listening) -> None:
    """Show the screen until the reader, or a signal, ends it; the terminal is then as before."""
    app = TopApp(listening, _driver())
    if sys.platform == "linux":
        from scaler_io.service.process import STOP_SIGNALS, terminate_on_signals

        terminate_on_signals(asyncio.get_running_loop(), app.exit)
        for number in STOP_SIGNALS:
            signal.signal(number, _with_alarm(signal.getsignal(number)))
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # textual waits for ever to write to a terminal that is gone
    await app.run_async()
