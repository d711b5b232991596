"""Whatever well-formed messages strangers send, tables and totals stay right and the tasks of others end properly,
and whoever listens is told."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeGuard, get_args

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol import messages
from scaler_protocol.codec import encode
from scaler_protocol.errors import ProtocolError, ScalerError
from scaler_protocol.handshake import Hello, LinkMessage, Role, Welcome
from scaler_protocol.ids import first_run, first_task, function_id, named_function_id
from scaler_protocol.limits import RELATIONS
from scaler_protocol.messages import Group, Status
from scaler_protocol.operations import Resized
from scaler_protocol.payloads import Payloads
from scaler_protocol.ranges import Distinct, Grouped, Positions, Records, Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from conftest import SchedulerDriver

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
STRANGERS = (b"s" * 16, b"t" * 16, b"u" * 16)
SESSIONS = (120, 120, 120, 121, 200, 0, ord("h"))
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
    "graph": st.sampled_from([0, 0, first_task(120), first_task(120) + 1, first_task(200)]),
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


def _with_value(group: Group) -> Group:
    return Group(group.function, (SAFE,), (-1,), group.priority, group.retries, 0.0, group.encoding, group.serializer)


@st.composite
def any_message(draw: st.DrawFn) -> Any:
    """A message whose columns have the lengths that the codec asks for; mostly what else it asks for holds, too."""
    kind = draw(st.sampled_from(MESSAGES + OFTEN))
    relations = RELATIONS.get(kind.__name__, ()) if draw(st.integers(0, 9)) else ()
    first = first_task(draw(st.sampled_from(SESSIONS)))
    elements = ELEMENTS | dict.fromkeys(TASK_COLUMNS, st.integers(first, first + 6))
    lengths = _lengths(draw, kind, relations)
    values: dict[str, Any] = {}
    for field in fields(kind):
        annotation = str(field.type)
        if not field.init:
            continue
        if annotation in BY_TYPE:
            values[field.name] = draw(SCALARS.get(field.name, BY_TYPE[annotation]))
            continue
        element = elements.get(field.name, BY_COLUMN.get(annotation, st.integers(0, 3)))
        if field.default is MISSING or draw(st.integers(0, 3)) or lengths[field.name]:
            length, is_distinct = lengths[field.name], Distinct(field.name) in relations
            column = draw(st.lists(element, min_size=length, max_size=length, unique=is_distinct))
            values[field.name] = Payloads(column) if annotation == "Payloads" else column
    if "bodies" in values and relations:
        codes = [draw(st.sampled_from(CODES)) for _ in values["bodies"]]
        values["functions"], values["names"] = [code[0] for code in codes], [code[1] for code in codes]
        values["bodies"] = Payloads([code[2] for code in codes])
    for relation in relations:
        if isinstance(relation, Positions):
            values[relation.column] = _positions(draw, relation, values)
        elif isinstance(relation, Records):
            values[relation.column] = bytes(relation.size * lengths[relation.of])
    return kind(**values)


def _lengths(draw: st.DrawFn, kind: Any, relations: Sequence[Relation]) -> dict[str, int]:
    lengths = {field.name: draw(st.integers(0, 3)) for field in fields(kind)}
    if Grouped() in relations:
        lengths["groups"] = max(1, lengths["groups"])
    for columns in getattr(kind, "COLUMNS", ()):
        if relations and any(lengths.get(each.of) == 0 for each in relations if _is_about(each, columns)):
            lengths[columns[0]] = 0
        for name in columns[1:]:
            is_left_out = name in getattr(kind, "OPTIONAL", ()) and not draw(st.integers(0, 3))
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


@st.composite
def any_hello(draw: st.DrawFn) -> Hello:
    """A greeting of a stranger."""
    return Hello(
        draw(st.sampled_from([Role.CLIENT, Role.AGENT, Role.OPERATOR])),
        draw(st.sampled_from(STRANGERS)),
        draw(st.integers(1, 2)),
        session=draw(st.sampled_from(SESSIONS)),
        workers=draw(st.integers(0, 3)),
        queue_size=draw(st.integers(0, 5)),
        python=draw(st.sampled_from(["", "3.11.2"])),
        cloudpickle="3.0",
        peer_incarnation=draw(st.sampled_from([0, 0, 7])),
    )


class Honest:
    """A client and an agent that do as they should."""

    def __init__(self, driver: SchedulerDriver) -> None:
        self.driver = driver
        self.client, self.agent = driver.client(b"h"), driver.agent(b"honest", 2, [SAFE])
        self.wanted: list[int] = []
        self.told: dict[int, tuple[int, bytes]] = {}
        self.runs: dict[int, int] = {}

    def submit(self) -> None:
        self.wanted += self.driver.submit(self.client, 2, capability_names=(SAFE,), capability_values=(-1,))

    def work(self) -> bool:
        """Answer everything and end what runs; whether there was anything to do."""
        driver, agent = self.driver, self.agent
        for withdraw in driver.take(agent, messages.Withdraw):
            gone = {task: run for task, run in self.runs.items() if run in withdraw.runs}
            for task in gone:
                del self.runs[task]
            driver.done(agent, gone, Status.CANCELLED)
        for recall in driver.take(agent, messages.Recall):
            back = list(self.runs.items())[-recall.count :]
            for task, _ in back:
                del self.runs[task]
            driver.feed(agent, messages.Returned([run for _, run in back]))
        for needed in driver.take(self.client, messages.NeedFunctions):
            ids = [function for function in needed.functions if function == FUNCTION]
            bodies = Payloads([b"body"] * len(ids))
            driver.feed(self.client, messages.Functions(ids, ["n"] * len(ids), bodies))
        given = driver.runs(agent)
        self.runs |= given
        done, self.runs = self.runs, {}
        for task, run in done.items():
            driver.done(agent, {task: run}, result=b"honest")
        self.told |= driver.outcomes(self.client)
        return bool(done)


class Strangers:
    """A client and an agent, and what comes after them; they say anything."""

    def __init__(self, driver: SchedulerDriver, data: st.DataObject) -> None:
        self.driver, self.data = driver, data
        self.present = {driver.client(STRANGERS[0], session=120), driver.agent(STRANGERS[1], 2)}
        self.acts: list[Callable[[], object]] = [*[self.speak] * 10, self.join, self.join, self.leave]

    def speak(self) -> None:
        """Somebody says something."""
        if not self.present:
            return
        peer, message = self.data.draw(st.sampled_from(sorted(self.present))), self.data.draw(any_message())
        if isinstance(message, messages.Cancel) and peer in self.driver.core._operators:
            return  # an operator may cancel anything
        note(f"{peer[:1]!r}: {message}")
        try:
            encode(message)
        except ScalerError:
            return  # the codec lets nobody say this, nor hear it
        try:
            self.driver.feed(peer, message)
        except ProtocolError as error:
            note(str(error))
            self.driver.settle()

    def join(self) -> None:
        """Somebody says Hello, for the first time or again."""
        hello = self.data.draw(any_hello())
        if isinstance(self.driver.core.admit(hello), Welcome):
            resumed = hello.identity in self.present and self.data.draw(st.booleans())
            note(f"{hello} {resumed=}")
            self.driver.feed(hello.identity, PeerJoined(hello, resumed))
            self.present.add(hello.identity)

    def leave(self) -> None:
        """Somebody is lost."""
        if self.present:
            peer = self.data.draw(st.sampled_from(sorted(self.present)))
            self.present.discard(peer)
            self.driver.feed(peer, PeerLost("left", farewell=self.data.draw(st.booleans())))


def play(make_driver: type[SchedulerDriver], data: st.DataObject) -> None:
    """Strangers say anything, and what the honest ones want is done nevertheless."""
    driver = make_driver(monitored=data.draw(st.booleans()))
    honest, strangers = Honest(driver), Strangers(driver, data)
    for _ in range(data.draw(st.integers(1, 25))):
        act = data.draw(st.sampled_from([honest.submit, honest.work, *strangers.acts]))
        act()
        if data.draw(st.booleans()):
            driver.later(data.draw(st.sampled_from([0.01, 1.0, 6.0])))
    honest.submit()
    for _ in range(100):
        busy = honest.work()
        driver.later(0.02)
        if not busy and len(honest.told) == len(honest.wanted):
            break
    assert honest.told == dict.fromkeys(honest.wanted, (Status.VALUE, b"honest"))


@pytest.mark.parametrize("examples", [50, pytest.param(3_000, marks=pytest.mark.soak)])
def test_any_message_from_anybody(make_driver: type[SchedulerDriver], examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        play(make_driver, data)

    check()
