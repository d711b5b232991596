"""The tables of functions and groups: flat, however many there are."""

from __future__ import annotations

import gc

from scaler_protocol.messages import Functions, Group
from scaler_protocol.payloads import Payloads
from scaler_worker import functions
from scaler_worker.channel import FUNCTIONS_LIMIT
from scaler_worker.functions import FunctionTable
from scaler_worker.generations import Generations
from scaler_worker.records import FunctionKind, WorkerRecord


def identity(number: int) -> bytes:
    return number.to_bytes(16, "little")


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_tables_are_flat_over_any_number_of_distinct_functions() -> None:
    table, worker = FunctionTable(0.0), WorkerRecord(0, "w")
    often = Group(b"often")
    [lane] = table.lanes([often])
    for number in range(4 * functions.FUNCTIONS_LIMIT):
        function = identity(number)
        table.learn(Functions((function,), ("f",), Payloads((b"body",))))
        [new, again] = table.lanes([Group(function), often])
        assert again is lane, "what is used often is not forgotten"
        assert table.definition(new.kind).body == b"body"
        worker.learn(new.kind)
    assert len(worker.knows) == FUNCTIONS_LIMIT
    assert alive(FunctionKind) <= 2 * functions.GROUPS_LIMIT + FUNCTIONS_LIMIT + 2
    first, last = (table.lanes([Group(identity(at))])[0].kind for at in (0, 4 * functions.FUNCTIONS_LIMIT - 1))
    assert table.missing(first) == [identity(0)] and not table.missing(last)


def test_generations_keep_what_was_used_lately() -> None:
    table: Generations[int, int] = Generations(3)
    for number in range(100):
        table.put(number, number)
        assert table.get(0) == 0 and table.get(number) == number
        assert len(table) <= 6
    assert table.get(50) is None
