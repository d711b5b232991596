"""What a graph looks like now: layers, states and run times of its nodes, and its critical path. Pure.

The critical path is the chain of nodes, each of which needs the one before it, whose runs took longest together. No
number of workers makes the graph end sooner than that; what is beyond it was spent on waiting for workers and inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaler_protocol.lazy_dataclass import dataclass
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.task_table import TaskSpan

NODES = 100_000
"""Nodes of a graph that is looked at; of a bigger one only the numbers are shown."""
NODES_PER_SECOND = 20_000
"""Of a graph of so many nodes a look each second is cheap; bigger ones are looked at less often."""
SETTLED_SECONDS = 2.0
"""How long after the end of a graph its last nodes may be told of."""
KEPT = 8
"""Graphs whose last look is kept."""


@dataclass(frozen=True, slots=True)
class GraphLook:
    """A graph at one moment. Nodes are counted from 0; `span` has those that were heard of."""

    first_task: int
    nodes: int
    span: TaskSpan
    edges: tuple[list[int], list[int]]
    """Nodes, and what each needs."""
    layers: list[int]
    """Of each node: how many nodes are on the longest way to it."""
    path: list[int]
    """The critical path so far."""
    path_seconds: float
    seconds: float
    """What all runs took."""
    took: float
    """From the submission of the graph to its end, or until now."""

    @property
    def share(self) -> float:
        """How much of the time the critical path took."""
        return min(1.0, self.path_seconds / self.took) if self.took > 0 else 0.0


class GraphLooks:
    """Looks at the graphs of a model, not more often than its status changes."""

    def __init__(self, model: MonitorModel) -> None:
        self._model = model
        self._kept: dict[int, tuple[object, GraphLook | None]] = {}

    def look(self, number: int) -> GraphLook | None:
        """The graph of this number now; None if its edges or tasks are not known, or if it is too big."""
        status, known = self._model.status, self._model.graphs.find(number)
        if status is None or known is None or number not in status.graphs:
            return None
        place = list(status.graphs).index(number)
        nodes, begun = status.graph_nodes[place], status.graph_start_times[place]
        ended = status.graph_end_times[place]
        is_settled = 0 < ended < status.at - SETTLED_SECONDS
        moment = ended if is_settled else status.at // (1 + nodes // NODES_PER_SECOND)
        version = status.incarnation, known.count, moment
        version_before, look = self._kept.get(number, (None, None))
        if version != version_before:
            look = None
            if nodes <= NODES and not known.is_too_big:
                span = self._model.tasks.span(known.first_task, nodes)
                look = look_at(known.first_task, nodes, span, known.pairs(nodes), (ended or status.at) - begun)
            self._kept.pop(number, None)
            self._kept[number] = version, look
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
        return look


def look_at(first_task: int, nodes: int, span: TaskSpan, edges: tuple[list[int], list[int]], took: float) -> GraphLook:
    """The layers and the critical path of a graph whose edges are sorted by node."""
    seconds = [0.0] * nodes
    for place, each in zip(span.places, span.seconds, strict=True):
        seconds[place] = each
    layers, reached, before = [0] * nodes, seconds.copy(), [-1] * nodes
    for node, needed in zip(*edges, strict=True):
        if layers[needed] >= layers[node]:
            layers[node] = layers[needed] + 1
        at = reached[needed] + seconds[node]
        if reached[needed] and at > reached[node]:
            reached[node], before[node] = at, needed
    path = _path_to(max(range(nodes), key=reached.__getitem__), before) if any(reached) else []
    longest = reached[path[-1]] if path else 0.0
    return GraphLook(first_task, nodes, span, edges, layers, path, longest, sum(seconds), max(0.0, took))


def _path_to(node: int, before: Sequence[int]) -> list[int]:
    path = [node]
    while (node := before[node]) >= 0:
        path.append(node)
    return path[::-1]
