"""What the page of a graph shows below its facts: the graph as a picture, its critical path, its functions."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from nicegui import ui

from scaler_ui.model.colours import FunctionColours
from scaler_ui.model.graph_looks import GraphLook, GraphLooks
from scaler_ui.model.graph_picture import GraphPicture, GraphStates, draw, function_rows, path_rows, sentence
from scaler_ui.web.charts import OTHERS, PALETTE, Legend
from scaler_ui.web.kinds import CRITICAL_PATH, GRAPH_FUNCTIONS
from scaler_ui.web.parts import ServerTable, subheading

REFRESH_SECONDS = 1.0
LINE_PIXELS = 28
"""Height of a node where there is room."""
HINT = (
    "A node is to the right of all that it needs. Pale ones run, filled ones have ended, red frames failed, grey was "
    "cancelled. The thick line is the critical path: the runs that took longest together, each of which needs the one "
    "before. Click a node to open its task, or a group to open its function; the wheel zooms."
)
NOT_KNOWN = "The picture is not known: the graph ended before these pages listened, or it is too big."


class GraphCanvas(ui.element, component="graph_canvas.js"):
    """A picture of a graph."""

    def __init__(self, picture: GraphPicture, states: GraphStates, colours: dict[str, str], label: str) -> None:
        super().__init__()
        self._picture, self._states = picture, states
        self.classes("graph-canvas").props("role=img data-testid=graph-canvas")
        self._set(colours, label)

    def _set(self, colours: dict[str, str], label: str) -> None:
        picture, states = self._picture, self._states
        self.style(f"height: clamp(160px, {LINE_PIXELS * picture.rows + 32}px, max(320px, 100vh - 320px))")
        self.props["picture"], self.props["states"] = asdict(picture), asdict(states)
        self.props["colours"], self.props["aria-label"] = colours, label

    def show(self, picture: GraphPicture, states: GraphStates, colours: dict[str, str], label: str) -> None:
        """Draw this graph; nothing is sent if it has not changed, and only the states if nothing else has."""
        before, self._picture = self._picture, picture
        if picture != before:
            self._states = states
            self._set(colours, label)
            self.update()
        elif states != self._states:
            self._states = states
            self.run_method("show", asdict(states))


def fill_graph(looks: GraphLooks, number: int) -> None:
    """Fill the page."""
    subheading("Its nodes")
    with ui.card().classes("panel chart"):
        ui.label(HINT).classes("hint")
        told = ui.label(NOT_KNOWN).props('data-testid="graph-drawn" role="status"')
        legend = Legend()
        place = ui.element("div").classes("graph-place")
    colours = FunctionColours(PALETTE, OTHERS)
    canvas: GraphCanvas | None = None
    drawn: GraphLook | None = None

    def show() -> None:
        nonlocal canvas, drawn
        look = looks.look(number)
        if look is None or look is drawn:
            return
        drawn = look
        picture, states = draw(look)
        told.text = sentence(look, picture)
        shown = dict(colours.of(picture.names))
        legend.show(shown)
        if canvas is None:
            with place:
                canvas = GraphCanvas(picture, states, shown, told.text)
        else:
            canvas.show(picture, states, shown, told.text)

    show()
    ui.timer(REFRESH_SECONDS, show, immediate=False)
    subheading("The critical path")
    ServerTable(CRITICAL_PATH, partial(path_rows, looks, number), "path.")
    subheading("Its functions")
    ServerTable(GRAPH_FUNCTIONS, partial(function_rows, looks, number), "functions.")
