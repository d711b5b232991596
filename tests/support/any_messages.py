"""Well-formed messages that say anything, for tests of cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeGuard, get_args

from hypothesis import strategies as st

from scaler_protocol import messages
from scaler_protocol.handshake import LinkMessage
from scaler_protocol.ids import first_run, first_task, function_id, named_function_id
from scaler_protocol.limits import RELATIONS
from scaler_protocol.messages import Group
from scaler_protocol.operations import Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import NO_PROFILE
from scaler_protocol.ranges import Distinct, Grouped, Positions, Profiles, Relation

FUNCTION = function_id(b"body")
SAFE = "safe"
"""What the tasks of the honest client need, and only the honest agent offers."""
REFERENCE = b"y" * 24
CODES = [
    *[(FUNCTION, "n", b"body")] * 3,
    (function_id(REFERENCE), "n", REFERENCE),
    (function_id(REFERENCE, stored=True), "n", REFERENCE),
    (named_function_id("n"), "n", b""),
    (FUNCTION, "n", b"another"),
]
"""Functions as they are sent, the last one with an id that is not its own."""
SESSIONS = (120, 120, 120, 121, 2**31 + 200, 0, ord("h"))
MESSAGES = [kind for kind in get_args(messages.Message) if kind not in get_args(LinkMessage)]
OFTEN = [
    messages.Submit, messages.Done, messages.Inputs, messages.Reconcile, messages.Cancel, messages.Release,
] * 10 + [
    messages.Returned, messages.Blocked, messages.NeedFunctions, messages.Functions, messages.AgentStatus, Resized,
] * 4  # fmt: skip

run_ids = st.builds(
    lambda incarnation, at: first_run(incarnation) + at, st.sampled_from([7, 7, 7, 3, 0]), st.integers(0, 12)
)
positions = st.sampled_from([0, 0, 0, 1, 1, 2, 5])
payloads = st.sampled_from([b"", b"r", b"x" * 16, REFERENCE, REFERENCE, b"z" * 25])
function_ids = st.sampled_from([FUNCTION, FUNCTION, b"g" * 16])
groups = st.builds(
    Group,
    function_ids,
    st.sampled_from([(), (SAFE,)]),
    st.just(()),
    priority=st.integers(-1, 1),
    retries=st.integers(0, 2),
    encoding=st.integers(0, 2),
    serializer=st.one_of(st.just(b""), function_ids),
).map(lambda group: group if not group.capability_names else _with_value(group))
TASK_COLUMNS = ("tasks", "needs", "running", "wanted", "finished")
ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(["runs", "first_run"], run_ids),
    **dict.fromkeys(["task_groups", "stored", "dependents", "intermediate", "bodies_stored"], positions),
    **dict.fromkeys(["calls", "results", "texts", "inputs"], payloads),
    "bodies": st.sampled_from([b"body", b""]),
    **dict.fromkeys(["functions", "objects"], function_ids),
    "statuses": st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 4]),
    "streams": st.sampled_from([1, 2]),
    "blocked": st.booleans(),
    "groups": groups,
    "names": st.just("n"),
    "deaths": st.just("d"),
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "parent": st.one_of(*[st.just(0)] * 4, run_ids),
    "graph": st.sampled_from([0, 0, first_task(120), first_task(120) + 1, first_task(2**31 + 200)]),
    "graph_size": st.sampled_from([0, 1, 2, 2**64 - 1]),
    "session": st.sampled_from(SESSIONS),
    "workers": st.integers(0, 9),
}
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(0, 3),
    "bool": st.booleans(),
    "str": st.just("t"),
    "float": st.just(1.0),
    "bytes": payloads,
}
BY_COLUMN: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(["Texts", "Sequence[str]"], st.just("t")),
    **dict.fromkeys(["Ids", "Sequence[bytes]"], st.just(b"b")),
    **dict.fromkeys(["Flags", "Sequence[bool]"], st.booleans()),
    "Payloads": payloads,
}


# A strategy that is made with each draw is also checked with each draw, which takes most of the time.
KINDS = st.sampled_from(MESSAGES + OFTEN)
CODE = st.sampled_from(CODES)
SESSION = st.sampled_from(SESSIONS)
SMALL = st.integers(0, 3)
ONE_OF_TEN = st.integers(0, 9)


@cache
def _column(element: st.SearchStrategy[Any], length: int, is_distinct: bool) -> st.SearchStrategy[list[Any]]:
    return st.lists(element, min_size=length, max_size=length, unique=is_distinct)


@cache
def _elements(first: int) -> dict[str, st.SearchStrategy[Any]]:
    """The elements of columns, where the tasks of a message begin with this one."""
    return ELEMENTS | dict.fromkeys(TASK_COLUMNS, st.integers(first, first + 6))


def _with_value(group: Group) -> Group:
    return Group(group.function, (SAFE,), (-1,), group.priority, group.retries, 0.0, group.encoding, group.serializer)


@st.composite
def any_message(draw: st.DrawFn) -> Any:
    """A message whose columns have the lengths that the codec asks for; mostly what else it asks for holds, too."""
    kind = draw(KINDS)
    relations = RELATIONS.get(kind.__name__, ()) if draw(ONE_OF_TEN) else ()
    elements = _elements(first_task(draw(SESSION)))
    lengths = _lengths(draw, kind, relations)
    values: dict[str, Any] = {}
    for field in fields(kind):
        annotation = str(field.type)
        if not field.init:
            continue
        if annotation in BY_TYPE:
            values[field.name] = draw(SCALARS.get(field.name, BY_TYPE[annotation]))
            continue
        element = elements.get(field.name, BY_COLUMN.get(annotation, SMALL))
        if field.default is MISSING or draw(SMALL) or lengths[field.name]:
            length, is_distinct = lengths[field.name], Distinct(field.name) in relations
            column = draw(_column(element, length, is_distinct))
            values[field.name] = Payloads(column) if annotation == "Payloads" else column
    if "bodies" in values and relations:
        codes = [draw(CODE) for _ in values["bodies"]]
        values["functions"], values["names"] = [code[0] for code in codes], [code[1] for code in codes]
        values["bodies"] = Payloads([code[2] for code in codes])
    for relation in relations:
        if isinstance(relation, Positions):
            values[relation.column] = _positions(draw, relation, values)
        elif isinstance(relation, Profiles):
            values[relation.column] = NO_PROFILE * lengths[relation.of]
    return kind(**values)


def _lengths(draw: st.DrawFn, kind: Any, relations: Sequence[Relation]) -> dict[str, int]:
    lengths = {field.name: draw(SMALL) for field in fields(kind)}
    if Grouped() in relations:
        lengths["groups"] = max(1, lengths["groups"])
    for columns in getattr(kind, "COLUMNS", ()):
        if relations and any(lengths.get(each.of) == 0 for each in relations if _is_about(each, columns)):
            lengths[columns[0]] = 0
        for name in columns[1:]:
            is_left_out = name in getattr(kind, "OPTIONAL", ()) and not draw(SMALL)
            lengths[name] = 0 if is_left_out else lengths[columns[0]]
    return lengths


def _is_about(relation: Relation, columns: Sequence[str]) -> TypeGuard[Positions]:
    return isinstance(relation, Positions) and relation.column in columns


def _positions(draw: st.DrawFn, relation: Positions, values: dict[str, Any]) -> list[int]:
    """As many positions as were drawn, where there are any: of what may be a reference, where that is said."""
    drawn, of = values.get(relation.column, ()), values.get(relation.of, ())
    is_reference = relation.column.endswith("stored")
    able = [at for at, value in enumerate(of) if not is_reference or len(value) == len(REFERENCE)]
    return [draw(st.sampled_from(able)) for _ in drawn] if able else []
