"""Remaker: the tasks that make lost results again, with the inputs that their calls know."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.lineage import Lineage, lineage_of
from scaler_client.core.records import CallGroup, Dependency, ResentCall
from scaler_client.futures.futures import ScalerFuture
from scaler_client.objects.handles import StoredObject, StoredPayload
from scaler_client.payloads import pickles
from scaler_client.runtime.remaking import RemadeInput, Remaker
from scaler_protocol.messages import Encoding, Group, Status
from scaler_protocol.objects import Reference, new_object_id

GROUP = CallGroup(Group(b"f"), (), pickles.load, pickle.dumps)
PARTS = CallGroup(Group(b"f", encoding=Encoding.PARTS), (), pickles.load, pickle.dumps)


class Submitting:
    """A FutureOwner that notes what is submitted, in order."""

    waiting: AbstractContextManager[object] = nullcontext()

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.needs: list[Sequence[Dependency]] = []

    def cancel(self, tasks: Sequence[int]) -> None: ...

    def call_soon(self, work: Any) -> None: ...

    def submit_again(self, *call: Any) -> None: ...

    def submit(self, group: CallGroup, call: bytes, needs: Sequence[Dependency]) -> ScalerFuture[Any]:
        assert group in (GROUP, PARTS)
        self.calls.append(call)
        self.needs.append(needs)
        return ScalerFuture(self, 1000 + len(self.calls), group, call, needs)

    def fetch(self, reference: bytes, timeout: float = 0.0) -> bytes:
        raise AssertionError("nothing is fetched")

    def free(self, reference: bytes) -> None: ...


@pytest.fixture
def owner() -> Submitting:
    return Submitting()


@pytest.fixture
def remaker(owner: Submitting) -> Remaker:
    return Remaker(owner.submit)


def result_of(owner: Submitting, task: int, *inputs: Dependency) -> StoredPayload:
    """A result in storage, with its lineage."""
    stored = StoredObject(owner, Reference(new_object_id(), 20_000).pack())
    payload = b"call %d" % task
    stored.origin = lineage_of(ResentCall(task, GROUP, len(payload), payload, inputs), task, Status.VALUE)
    return StoredPayload.of(stored)


def lineage(payload: StoredPayload) -> Lineage:
    assert isinstance(payload.object.origin, Lineage)
    return payload.object.origin


def as_input(task: int, payload: bytes) -> RemadeInput:
    return RemadeInput(task, lambda: (Status.VALUE, payload))


def test_inputs_that_nothing_else_refers_to_are_made_first_and_once(owner: Submitting, remaker: Remaker) -> None:
    first = result_of(owner, 1)
    second = result_of(owner, 2, as_input(1, first), as_input(9, b"small"))
    third = result_of(owner, 3, as_input(2, second))
    del first, second
    made = remaker.make(lineage(third))
    assert made is not None and remaker.make(lineage(third)) is made is lineage(third).made
    assert owner.calls == [b"call 1", b"call 2", b"call 3"]
    assert [[need.task_id for need in needs] for needs in owner.needs] == [[], [1, 9], [2]]
    assert [need.outcome() for need in owner.needs[1]] == [None, (Status.VALUE, b"small")]


def test_inputs_that_are_there_are_used_and_lost_ones_are_not(owner: Submitting, remaker: Remaker) -> None:
    there, lost = result_of(owner, 1), result_of(owner, 2)
    wanted = result_of(owner, 3, as_input(1, there), as_input(2, lost))
    lineage(lost).lost = True
    assert remaker.make(lineage(wanted)) is not None
    assert owner.calls == [b"call 2", b"call 3"]
    at_there, at_lost = owner.needs[1]
    assert at_there.outcome() == (Status.VALUE, there) and at_lost.outcome() is None
    remaker.make(lineage(there))  # it was lost meanwhile
    assert at_there.outcome() is None


def test_what_is_not_known_any_more_is_not_made(owner: Submitting, remaker: Remaker) -> None:
    argument = StoredObject(owner, Reference(new_object_id(), 20_000).pack())
    wanted, nested = result_of(owner, 1, argument), result_of(owner, 2)
    outer = result_of(owner, 3, as_input(2, nested))
    lineage(nested).call = lineage(result_of(owner, 4, argument)).inputs[0]  # type: ignore[assignment]
    del argument, nested
    assert remaker.make(lineage(wanted)) is remaker.make(lineage(outer)) is None
    assert not owner.calls


@pytest.mark.parametrize(("group", "named"), [(GROUP, [[], [1001], [1002]]), (PARTS, [[], [1], [2]])])
def test_nodes_are_made_once_and_named_as_their_consumers_name_them(
    owner: Submitting, remaker: Remaker, group: CallGroup, named: list[list[int]]
) -> None:
    graph = GraphTasks(range(1, 5), lambda task, failed: "")
    calls = [b"call %d" % task for task in graph.tasks]
    piece = GraphPiece(graph, 1, {group: 0}, [0] * 4, calls, [1, 2, 3], [1, 2, 2], [1, 2, 0, 0], [0, 1], {}, {})
    graph.pieces.append(piece)
    results = []
    for task in (3, 4):
        stored = StoredObject(owner, Reference(new_object_id(), 20_000).pack())
        stored.origin = lineage_of(piece.resent_call(task), task, Status.VALUE)
        results.append(StoredPayload.of(stored))
    graph.pieces = []  # it has ended
    assert remaker.make(lineage(results[0])) is not None
    assert owner.calls == calls[:3] and [[need.task_id for need in needs] for needs in owner.needs] == named
    assert remaker.make(lineage(results[1])) is not None
    assert owner.calls[3:] == calls[3:] and owner.needs[3] == owner.needs[2]
