"""Lineages: what is kept of the calls whose results are in object storage, and what of their inputs."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scaler_client.core.lineage import (
    LINEAGE_DEPTH,
    Lineage,
    LoadedInput,
    ObjectInput,
    ResultInput,
    SmallInput,
    adopted,
    lineage_of,
    lineages_of,
)
from scaler_client.core.records import CallGroup, Deliver, Dependency, Dump, Outcome, ResentCall
from scaler_client.objects.handles import ResultOrigin, StoredObject, StoredPayload
from scaler_client.payloads import pickles
from scaler_protocol.messages import Done, Group, Status
from scaler_protocol.objects import Reference, new_object_id
from scaler_protocol.payloads import Payloads

GROUP = CallGroup(Group(b"f"), (), pickles.load, pickle.dumps)


class Shelves:
    """Where objects are."""

    def fetch(self, reference: bytes, timeout: float = 0.0) -> bytes:
        raise AssertionError("nothing is fetched")

    def free(self, reference: bytes) -> None: ...


@dataclass(eq=False)
class Earlier:
    """Another task as an input."""

    task_id: int
    ended: Outcome | None

    def outcome(self) -> Outcome | Dump | None:
        return self.ended if self.ended is not None else self.dump

    def dump(self) -> Outcome:
        return Status.VALUE, b"dumped"


@dataclass(eq=False)
class Undelivered:
    """Another task as an input, which has ended, but does not know it yet."""

    task_id: int

    def outcome(self) -> None:
        return None


def stored(origin: Lineage | None = None) -> StoredPayload:
    found = StoredObject(Shelves(), Reference(new_object_id(), 20_000).pack())
    found.origin = origin
    return StoredPayload.of(found)


def call(task: int, payload: bytes, needs: Sequence[Dependency] = ()) -> ResentCall:
    return ResentCall(task, GROUP, len(payload), payload, needs)


def deliver(
    done: Done, calls: Sequence[ResentCall | None], adopt: Callable[[bytes, ResultOrigin | None], bytes]
) -> None:
    """What core and io thread do with the results in storage."""
    adopted(replace(Deliver.of(done, calls), origins=lineages_of(done, calls)), adopt)


def test_small_inputs_are_kept_and_objects_are_not() -> None:
    argument, result, whole = stored(), stored(lineage_of(call(1, b"first"), 1, Status.VALUE)), stored()
    loaded = Earlier(3, None)
    needs: list[Dependency] = [
        argument.object,
        Earlier(1, (Status.VALUE, result)),
        Earlier(2, (Status.VALUE, b"small")),
        loaded,
    ]
    lineage = lineage_of(call(4, b"call", needs), 4, Status.RAISED)
    at_object, at_result, at_small, at_loaded = lineage.inputs
    assert isinstance(at_object, ObjectInput) and at_object.object() is argument.object
    assert isinstance(at_result, ResultInput) and at_result.lineage is result.object.origin
    assert at_small == SmallInput(2, (Status.VALUE, b"small"))
    assert isinstance(at_loaded, LoadedInput)
    dump = at_loaded.dump()
    assert dump is not None and dump() == (Status.VALUE, b"dumped")
    assert (lineage.status, lineage.call, lineage.depth, lineage.size) == (Status.RAISED, b"call", 2, 9)
    of_object = lineage_of(call(5, whole), 5, Status.VALUE)
    assert isinstance(of_object.call, ObjectInput) and of_object.size == 0
    del argument, result, whole, needs, loaded, dump
    gc.collect()
    assert at_object.object() is at_result.object() is of_object.call.object() is None and at_loaded.dump() is None
    assert at_result.lineage is not None and at_result.lineage.call == b"first"


def test_a_long_row_of_results_is_not_kept() -> None:
    lineage, depths = lineage_of(call(1, b"1"), 1, Status.VALUE), [1]
    for task in range(2, 2 * LINEAGE_DEPTH):
        result = stored(lineage)
        lineage = lineage_of(call(task, b"more", [Earlier(task - 1, (Status.VALUE, result))]), task, Status.VALUE)
        depths.append(lineage.depth)
    assert depths == [*range(1, LINEAGE_DEPTH + 1), *range(1, LINEAGE_DEPTH)]


def test_only_results_in_storage_that_are_still_wanted_have_lineages() -> None:
    reference = bytes(stored())
    done = Done([1, 2, 3], [Status.VALUE] * 3, Payloads([reference, b"small", reference]), stored=[0, 2])
    lineages: list[Lineage | None] = []

    def adopt(reference: bytes, lineage: ResultOrigin | None) -> StoredPayload:
        assert lineage is None or isinstance(lineage, Lineage)
        lineages.append(lineage)
        return stored(lineage)

    deliver(done, [call(1, b"one"), call(2, b"two"), None], adopt)
    assert [lineage and (lineage.task_id, lineage.call) for lineage in lineages] == [(1, b"one"), None]


def test_outcomes_that_come_together_may_be_inputs_of_each_other() -> None:
    """They are not delivered yet when the lineage of the last one is made, and nobody else refers to the others."""
    reference = bytes(stored())
    done = Done([1, 2, 3], [Status.VALUE] * 3, Payloads([reference, b"small", reference]), stored=[0, 2])
    made: dict[int, StoredPayload] = {}

    def adopt(reference: bytes, lineage: ResultOrigin | None) -> StoredPayload:
        assert isinstance(lineage, Lineage)
        made[lineage.task_id] = stored(lineage)
        return made[lineage.task_id]

    deliver(done, [call(1, b"one"), call(2, b"two"), call(3, b"three", [Undelivered(1), Undelivered(2)])], adopt)
    lineage = made[3].object.origin
    assert isinstance(lineage, Lineage) and lineage.depth == 2
    at_result, at_small = lineage.inputs
    assert isinstance(at_result, ResultInput) and at_result.lineage is made[1].object.origin
    assert at_small == SmallInput(2, (Status.VALUE, b"small"))
