"""The picture of a graph: nodes in columns by layer; of a big graph, groups of nodes by layers and function. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.plurals import counted
from scaler_protocol.units import duration, percent
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.graph_looks import GraphLook, GraphLooks
from scaler_ui.model.views import Row, TablePage, page_of

NODES = 3000
EDGES = 10_000
"""Most nodes and edges that are drawn one by one."""
GROUPS = 400
"""Most groups that are drawn of a bigger graph."""
SWEEPS = 4
"""How often the nodes of layers are ordered by those that they are connected with."""
_LETTERS = {
    "waiting": "w", "held": "w", "queued": "q", "running": "r", "success": "s", "raised": "f", "failed": "x",
    "lost": "x", "cancelled": "c", "unknown": "u",
}  # fmt: skip
_OVER = frozenset("sfxcu")


@dataclass(frozen=True, slots=True)
class GraphPicture:
    """What does not change while the nodes run: items with their positions, from 0 to 1, and functions."""

    xs: list[float]
    ys: list[float]
    functions: list[int]
    """Of each item: the position of its function in `names`."""
    names: list[str]
    """The most frequent first."""
    edges: list[int]
    """Positions of two items for each edge: one that is needed, and one that needs it."""
    tasks: list[str]
    """The ids of nodes; empty if items are groups."""
    counts: list[int]
    """The nodes of groups; empty if items are nodes."""
    columns: int
    rows: int
    """Items of the fullest column."""


@dataclass(frozen=True, slots=True)
class GraphStates:
    """What changes: a letter for the state of each item, percent of groups that are over, and the critical path."""

    letters: str
    shares: list[int]
    path: list[int]


def draw(look: GraphLook) -> tuple[GraphPicture, GraphStates]:
    """The picture of a graph."""
    if len(look.span.places) <= NODES and len(look.edges[0]) <= EDGES:
        return _nodes(look)
    return _groups(look)


def _nodes(look: GraphLook) -> tuple[GraphPicture, GraphStates]:
    span = look.span
    item_of = {place: item for item, place in enumerate(span.places)}
    edges = [
        (item_of[needed], item_of[node])
        for node, needed in zip(*look.edges, strict=True)
        if node in item_of and needed in item_of
    ]
    names = [name for name, _ in Counter(span.functions).most_common()]
    numbers = {name: number for number, name in enumerate(names)}
    columns = [look.layers[place] for place in span.places]
    tasks = [f"{look.first_task + place:x}" for place in span.places]
    functions = [numbers[name] for name in span.functions]
    picture = _picture(columns, functions, names, edges, tasks, [])
    letters = "".join(_LETTERS[state] for state in span.states)
    return picture, GraphStates(letters, [], [item_of[place] for place in look.path if place in item_of])


def _groups(look: GraphLook) -> tuple[GraphPicture, GraphStates]:
    """Nodes of one function in a band of layers are a group; bands are as narrow as GROUPS permits."""
    span, band = look.span, 1
    while len(keys := {(look.layers[p] // band, name) for p, name in zip(span.places, span.functions, strict=True)}) > (
        GROUPS
    ):
        band *= 2
    names = [name for name, _ in Counter(span.functions).most_common()]
    numbers = {name: number for number, name in enumerate(names)}
    groups = sorted(keys, key=lambda key: (key[0], numbers[key[1]]))
    item_of = {key: item for item, key in enumerate(groups)}
    of_node = [-1] * look.nodes
    letters: list[Counter[str]] = [Counter() for _ in groups]
    for place, name, state in zip(span.places, span.functions, span.states, strict=True):
        of_node[place] = item = item_of[look.layers[place] // band, name]
        letters[item][_LETTERS[state]] += 1
    edges = {(of_node[needed], of_node[node]) for node, needed in zip(*look.edges, strict=True)}
    picture = _picture(
        [layer for layer, _ in groups],
        [numbers[name] for _, name in groups],
        names,
        [(a, b) for a, b in sorted(edges) if a != b and min(a, b) >= 0],
        [],
        [sum(each.values()) for each in letters],
    )
    shares = [round(100 * sum(each[letter] for letter in _OVER) / sum(each.values())) for each in letters]
    path = list(dict.fromkeys(of_node[place] for place in look.path))
    return picture, GraphStates("".join(map(_letter_of_group, letters)), shares, path)


def _letter_of_group(letters: Counter[str]) -> str:
    """The state of a group that its frame shows: failed if a node has, or running if one does."""
    if letters["f"] or letters["x"]:
        return "f" if letters["f"] else "x"
    if letters["r"]:
        return "r"
    over = {letter for letter in letters if letter in _OVER}
    return "w" if len(over) < len(letters) else "s" if "s" in over else min(over)


def _picture(
    layers: Sequence[int],
    functions: list[int],
    names: list[str],
    edges: list[tuple[int, int]],
    tasks: list[str],
    counts: list[int],
) -> GraphPicture:
    columns: dict[int, list[int]] = {}
    for item, layer in enumerate(layers):
        columns.setdefault(layer, []).append(item)
    ordered = [columns[layer] for layer in sorted(columns)]
    xs = [0.0] * len(layers)
    for place, members in enumerate(ordered):
        for item in members:
            xs[item] = (place + 0.5) / len(ordered)
    return GraphPicture(
        xs=[round(x, 5) for x in xs],
        ys=[round(y, 5) for y in _heights(ordered, edges, len(layers))],
        functions=functions,
        names=names,
        edges=[end for edge in edges for end in edge],
        tasks=tasks,
        counts=counts,
        columns=len(ordered),
        rows=max(map(len, ordered), default=0),
    )


def _heights(columns: list[list[int]], edges: list[tuple[int, int]], items: int) -> list[float]:
    """A height for each item, in its column near those that it is connected with (barycentres, in sweeps)."""
    inputs: list[list[int]] = [[] for _ in range(items)]
    users: list[list[int]] = [[] for _ in range(items)]
    for needed, item in edges:
        inputs[item].append(needed)
        users[needed].append(item)
    ys = [0.0] * items

    def spread(members: list[int]) -> None:
        for place, item in enumerate(members):
            ys[item] = (place + 0.5) / len(members)

    for members in columns:
        spread(members)
    for sweep in range(SWEEPS):
        beside, order = (inputs, columns[1:]) if sweep % 2 == 0 else (users, columns[-2::-1])
        for members in order:
            means = {
                item: sum(ys[each] for each in beside[item]) / len(beside[item]) if beside[item] else ys[item]
                for item in members
            }
            members.sort(key=means.__getitem__)
            spread(members)
    return ys


def sentence(look: GraphLook, picture: GraphPicture) -> str:
    """What is drawn."""
    layers = counted(max(look.layers, default=0) + 1, "layer")
    known = len(look.span.places)
    unknown = look.nodes - known
    of = f"{known:,} of {counted(look.nodes, 'node')}" if unknown else counted(known, "node")
    drawn = f", drawn as {counted(len(picture.counts), 'group')} of one function" if picture.counts else ""
    more = "; the others were not submitted yet, or ended before these pages listened" if unknown else ""
    return f"{of} in {layers}{drawn}{more}"


def path_rows(looks: GraphLooks, number: int, request: PageRequest) -> TablePage:
    """The nodes of the critical path that took longest."""
    look = looks.look(number)
    if look is None:
        return TablePage([], 0)
    places = {place: at for at, place in enumerate(look.span.places)}
    rows: list[Row] = []
    known = [place for place in look.path if place in places]  # others ended before this monitor listened
    for step, place in enumerate(known, 1):
        at = places[place]
        rows.append(
            {
                "step": step,
                "task": f"{look.first_task + place:x}",
                "function": look.span.functions[at],
                "state": look.span.states[at],
                "duration": look.span.seconds[at],
                "share": look.span.seconds[at] / look.took if look.took else 0.0,
            }
        )
    page = page_of(rows, request, ())
    for row in page.rows:
        row.update(duration=duration(row["duration"]), share=percent(100 * row["share"], 1))
    return page


def function_rows(looks: GraphLooks, number: int, request: PageRequest) -> TablePage:
    """The nodes of a graph by function."""
    look = looks.look(number)
    if look is None:
        return TablePage([], 0)
    found: dict[str, Row] = {}
    for name, state, seconds in zip(look.span.functions, look.span.states, look.span.seconds, strict=True):
        row = found.setdefault(
            name, {"function": name, "nodes": 0, "over": 0, "running": 0, "failed": 0, "seconds": 0.0, "longest": 0.0}
        )
        letter = _LETTERS[state]
        row["nodes"] += 1
        row["over"] += letter in _OVER
        row["running"] += letter == "r"
        row["failed"] += letter in "fx"
        row["seconds"] += seconds
        row["longest"] = max(row["longest"], seconds)
    page = page_of(list(found.values()), request, ())
    for row in page.rows:
        row.update(seconds=duration(row["seconds"]), longest=duration(row["longest"]))
    return page
