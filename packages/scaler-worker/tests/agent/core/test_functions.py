"""The tables of functions and groups: flat, however many there are."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from scaler_protocol.errors import ProtocolError
from scaler_protocol.ids import function_id, named_function_id
from scaler_protocol.limits import KEPT_FUNCTIONS
from scaler_protocol.messages import Functions, Group, Run
from scaler_protocol.payloads import Payloads
from scaler_worker.agent.core import functions
from scaler_worker.agent.core.functions import FunctionTable
from scaler_worker.agent.core.generations import Generations
from scaler_worker.agent.core.records import FLAGS, Entry, FunctionKind, WorkerRecord
from scaler_worker.ipc.frames import FUNCTIONS_LIMIT, RESULT_SHIFT, STORED


def body(number: int) -> bytes:
    return b"body %d" % number


def identity(number: int) -> bytes:
    return function_id(body(number))


def bring(*numbers: int) -> Functions:
    return Functions(list(map(identity, numbers)), ["f"] * len(numbers), Payloads(list(map(body, numbers))))


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_tables_are_flat_over_any_number_of_distinct_functions() -> None:
    table, worker = FunctionTable(0.0), WorkerRecord(0, "w")
    often = Group(b"often")
    [group] = table.groups([often])
    for number in range(4 * functions.FUNCTIONS_LIMIT):
        function = identity(number)
        table.learn(bring(number))
        [new, again] = table.groups([Group(function), often])
        assert again is group, "what is used often is not forgotten"
        assert table.definition(new.kind).body == body(number)
        worker.learn(new.kind)
    assert len(worker.defined) == FUNCTIONS_LIMIT
    assert len(table) == functions.FUNCTIONS_LIMIT == 2 * KEPT_FUNCTIONS
    assert alive(FunctionKind) <= 2 * functions.GROUPS_LIMIT + FUNCTIONS_LIMIT + 2
    first, last = (table.groups([Group(identity(at))])[0].kind for at in (0, 4 * functions.FUNCTIONS_LIMIT - 1))
    assert table.missing(first) == [identity(0)] and not table.missing(last)


def test_what_is_granted_for_results_is_in_the_flags_of_runs() -> None:
    table = FunctionTable(0.0)
    calls = Payloads([b"call"] * 3)
    run = Run(7, [Group(b"f")], [1, 2, 3], calls, stored=(1,), result_sizes=(0, 2, 4))
    assert [entry[FLAGS] for entry in table.entries(run)] == [0, STORED | 2 << RESULT_SHIFT, 4 << RESULT_SHIFT]
    assert [entry[FLAGS] for entry in table.entries(replace(run, stored=(), result_sizes=()))] == [0, 0, 0]


def test_what_one_message_brings_is_never_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FUNCTIONS_LIMIT", 10)
    monkeypatch.setattr(functions, "BODIES_LIMIT", 10)
    table, brought = FunctionTable(0.0), range(25)
    groups = table.groups([Group(identity(number)) for number in brought])
    table.learn(bring(*brought))
    assert [table.definition(group.kind).body for group in groups] == [body(number) for number in brought]
    table.learn(bring(99))
    assert len(table) < 10, "they stay only as long as nothing else comes"


def test_a_serializer_that_is_used_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FUNCTIONS_LIMIT", 10)
    table, serializer = FunctionTable(0.0), identity(1000)
    table.learn(bring(1000))
    for number in range(100):
        table.learn(bring(number))
        [group] = table.groups([Group(identity(number), serializer=serializer)])
        assert table.definition(group.kind).serializer_body == body(1000)


class CountingTable(FunctionTable):
    """Counts how often it is looked whether a function can be defined."""

    looked = 0

    def missing(self, kind: FunctionKind) -> list[bytes]:
        self.looked += 1
        return super().missing(kind)


def test_runs_that_wait_for_functions_are_found_without_looking_at_all_of_them() -> None:
    table, count, serializer = CountingTable(0.0), 500, identity(1000)
    groups = table.groups([Group(identity(number), serializer=serializer) for number in range(count)])
    entries: list[Entry] = [(run, run, group, b"call", 1, 0) for run, group in enumerate(groups)]
    table.park(entries)
    assert set(table.missing_functions()) == {serializer, *map(identity, range(count))}
    assert table.remove({7}) == [entries[7]] and identity(7) not in table.missing_functions()
    found: list[Entry] = []
    for number in (1000, *range(count)):
        table.learn(bring(number))
        found += table.unpark([identity(number)])
    assert found == [entry for entry in entries if entry[0] != 7]
    assert not table.parked_entries() and not list(table.missing_functions())
    assert table.looked <= 2 * count


@pytest.mark.parametrize(
    ("function", "name", "body", "stored"),
    [
        (function_id(b"mine"), "f", b"another", False),
        (named_function_id("math:sqrt"), "os:getpid", b"", False),
        (named_function_id("math:sqrt"), "math:sqrt", b"os:getpid", False),
        (function_id(bytes(24)), "f", bytes(24), True),
        (function_id(bytes(24), stored=True), "f", bytes(24), False),
    ],
)
def test_a_function_that_is_not_the_one_of_its_id_is_not_learned(
    function: bytes, name: str, body: bytes, stored: bool
) -> None:
    table = FunctionTable(0.0)
    (group,) = table.groups([Group(function)])
    message = Functions([identity(1), function], ["f", name], Payloads([b"body 1", body]), [1] if stored else ())
    with pytest.raises(ProtocolError, match=r"Functions\.functions: .* is not the BLAKE2b-128 of the"):
        table.learn(message)
    assert not len(table) and table.missing(group.kind) == [function]


def test_generations_keep_what_was_used_lately() -> None:
    table: Generations[int, int] = Generations(3)
    for number in range(100):
        table.put(number, number)
        assert table.get(0) == 0 and table.get(number) == number
        assert len(table) <= 6
    assert table.get(50) is None
