"""The page that takes a profile and shows it as a flame graph."""

from __future__ import annotations

import shlex
import time
from urllib.parse import parse_qs, urlsplit

from nicegui import ui

from scaler_protocol.units import percent
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.stack_profile import StackProfile
from scaler_ui.model.views import TablePage
from scaler_ui.web.kinds import HOTTEST
from scaler_ui.web.operator_actions import OperatorActions, TakenProfile
from scaler_ui.web.parts import ServerTable, heading, login_hint, reader_of_page, subheading

REFRESH_SECONDS = 1.0
LENGTHS = {5: "5 s", 10: "10 s", 30: "30 s", 60: "1 minute", 300: "5 minutes"}


class ProfilePage:
    """Over one model; without `actions` no profile can be taken."""

    def __init__(self, model: MonitorModel, actions: OperatorActions | None) -> None:
        self._model = model
        self._actions = actions

    def fill(self) -> None:
        """What to profile, and the last profile that the reader has asked for."""
        heading(
            "Profile",
            "Where running tasks spend their time: workers look up to 50 times a second what their task executes. "
            "A frame is as wide as its share of the time; what it calls is below it. A click zooms.",
        )
        query = parse_qs(urlsplit(ui.context.client.sub_pages_router.current_path).query)
        asked = query.get("function", [""])[0]
        if self._actions is None:
            with ui.card().classes("panel about").props('data-testid="read-only"'):
                login_hint("take a profile")
                ui.label("In a terminal no login is needed, but an operator's key where the cluster has keys:")
                ui.label(self._command(asked)).classes("code told").props('data-testid="command"')
        else:
            self._fill(self._actions, reader_of_page(), asked)

    def _command(self, function: str) -> str:
        """What takes this profile in a terminal."""
        address = self._model.status.address if self._model.status is not None else "tcp://SCHEDULER:PORT"
        words = ["scaler_profile", address, *(["--function", function] if function else []), "--seconds", "30"]
        return f"{shlex.join(words)} -o profile.html"

    def _fill(self, actions: OperatorActions, reader: str, asked: str) -> None:
        names = sorted(self._model.functions)
        with ui.card().classes("panel about"), ui.row().classes("tools"):
            function = ui.input("Function", value=asked, placeholder="all", autocomplete=names)
            function.props('dense data-testid="function" aria-label="function"')
            seconds = ui.select(LENGTHS, value=30, label="For").props('dense options-dense aria-label="for"')
            button = ui.button("Take a profile").props('no-caps data-testid="take"')
        told = ui.label().classes("told").props('data-testid="profile-state" role="status"')
        problems = ui.label().classes("told is-warning").props('data-testid="profile-problems"')
        picture = ui.html("", sanitize=False).classes("flame-graph").props('data-testid="flames"')  # escaped by us
        subheading("Functions that take most time")
        ServerTable(HOTTEST, lambda request: _hottest(actions.profile(reader), request))
        drawn: StackProfile | None = None

        def show() -> None:
            nonlocal drawn
            taken = actions.profile(reader)
            if taken is None:
                return
            trouble = actions.trouble(reader)
            told.text = trouble or taken.state(time.monotonic())
            problems.text = "\n".join(taken.profile.problems)
            if taken.profile.is_complete and drawn is not taken.profile:
                drawn = taken.profile
                picture.content = drawn.as_svg() if drawn.samples else ""

        def take() -> None:
            actions.take_profile(function.value or "", float(seconds.value), reader)
            show()

        button.on_click(take)
        show()
        ui.timer(REFRESH_SECONDS, show, immediate=False)


def _hottest(taken: TakenProfile | None, request: PageRequest) -> TablePage:
    if taken is None or not taken.profile.is_complete:
        return TablePage([], 0)
    samples = taken.profile.samples
    rows = [
        {"self": percent(100 * own / samples, 1), "total": percent(100 * total / samples, 1), "where": name}
        for name, own, total in taken.profile.hottest()
    ]
    return TablePage(rows, len(rows))
