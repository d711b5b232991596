"""Lineages: how results in object storage can be made again if they are lost. Pure, no IO.

A lineage keeps the call of a task and describes its inputs. An object is referred to weakly, because a lineage must not
keep it in storage; a small result is kept as bytes; a result that only this call used is described by a lineage of its
own, in chains of up to LINEAGE_DEPTH; a node of a graph by the calls of the graph. A lineage lives as long as this
client refers to its object.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from scaler_client.core.graph_state import GraphPiece, NodeNeed
from scaler_client.core.records import (
    CallGroup,
    Deliver,
    Dependency,
    Dump,
    LocalFailure,
    Outcome,
    OutstandingCall,
    is_call_known,
)
from scaler_client.objects.handles import Remade, ResultOrigin, StoredObject, StoredPayload
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Done, Status
from scaler_protocol.objects import REFERENCE_BYTES

LINEAGE_DEPTH: Final = 100
"""Length of the longest chain of results that are made again for one that is lost."""


@dataclass(frozen=True, slots=True)
class ObjectInput:
    """An object among the arguments, or the call itself."""

    object: weakref.ref[StoredObject]


@dataclass(frozen=True, slots=True)
class SmallInput:
    """The outcome of another task that travels in messages."""

    task_id: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LoadedInput:
    """The outcome of another task whose bytes are not kept: its future has the value."""

    task_id: int
    dump: Callable[[], Dump | None]


@dataclass(frozen=True, slots=True)
class ResultInput:
    """The outcome of another task that is in object storage, and the lineage of that."""

    task_id: int
    status: int
    object: weakref.ref[StoredObject]
    lineage: Lineage | None


@dataclass(frozen=True, slots=True)
class IntermediateInput:
    """The result of an intermediate node, and the calls of its graph."""

    need: NodeNeed
    pieces: Sequence[GraphPiece]

    def piece_of(self, node: int) -> GraphPiece:
        """The piece of the graph that has a node."""
        return self.pieces[bisect_right(self.pieces, node, key=lambda piece: piece.first) - 1]


@dataclass(frozen=True, slots=True)
class UndeliveredInput:
    """The outcome of another task, which has arrived in the same batch and is not delivered yet."""

    need: Dependency


Input = ObjectInput | SmallInput | LoadedInput | ResultInput | IntermediateInput | UndeliveredInput


@dataclass(slots=True, eq=False)
class Lineage:
    """The task that made one result, with its inputs."""

    task_id: int
    status: int
    group: CallGroup
    call: bytes | ObjectInput
    inputs: Sequence[Input]
    depth: int
    """Length of the longest chain of lineages that it contains."""
    lost: bool = False
    """Whether storage does not have the result."""
    read: bool = False
    """Whether the result was fetched: then only calls that have it as an argument still need it."""
    made: Remade | None = None
    """The task that makes it again."""

    @property
    def size(self) -> int:
        """The bytes of its call and inputs, without those of other lineages."""
        inline = sum(len(each.outcome[1]) for each in self.inputs if isinstance(each, SmallInput))
        return inline + (len(self.call) if isinstance(self.call, bytes) else 0)


def lineages_of(done: Done, calls: Sequence[OutstandingCall | None]) -> dict[int, Lineage]:
    """The lineages of the results in object storage, by position; call it before graphs that end are forgotten."""
    return {
        position: lineage_of(call, done.tasks[position], done.statuses[position])
        for position in done.stored
        if (call := calls[position]) is not None and not isinstance(call, GraphPiece) and is_call_known(call)
    }


def lineage_of(call: OutstandingCall, task: int, status: int) -> Lineage:
    """The lineage of the result of one of the tasks of a call."""
    payload = call._call_of(task)
    inputs = [_input_of(need) for need in call._needs_of(task)]
    kept = ObjectInput(weakref.ref(payload.object)) if type(payload) is StoredPayload else payload
    return Lineage(task, status, call._group, kept, inputs, _depth(inputs))


def _depth(inputs: Iterable[Input]) -> int:
    nearest = (each.lineage for each in inputs if isinstance(each, ResultInput))
    return 1 + max((lineage.depth for lineage in nearest if lineage is not None), default=0)


def adopted(outcomes: Deliver, adopt: Callable[[bytes, ResultOrigin | None], bytes]) -> Deliver:
    """The batch with `adopt` applied to every reference, including those of tasks no longer outstanding.

    Earlier batches have been delivered, because their outcomes may be inputs of these calls. If `adopt` raises, that
    task fails with the exception as its cause.
    """
    statuses, results = list(outcomes.statuses), list(outcomes.results)
    batch = {task: (status, result) for task, status, result in zip(outcomes.tasks, statuses, results, strict=True)}
    for position in outcomes.stored:
        if len(results[position]) == REFERENCE_BYTES:
            origin = outcomes.origins.get(position)
            if isinstance(origin, Lineage):
                _find_undelivered(origin, batch)
            try:
                results[position] = adopt(results[position], origin)
            except Exception as error:
                statuses[position], results[position] = Status.FAILED, LocalFailure.undelivered(error)
            batch[outcomes.tasks[position]] = statuses[position], results[position]
    return replace(outcomes, statuses=statuses, results=results, stored=())


def _find_undelivered(lineage: Lineage, batch: Mapping[int, Outcome]) -> None:
    """Replace inputs that had not been delivered when the lineage was made; `batch`: outcomes that still are not."""
    if any(isinstance(each, UndeliveredInput) for each in lineage.inputs):
        lineage.inputs = [
            _of_outcome(each.need.task_id, each.need.outcome() or batch.get(each.need.task_id))
            if isinstance(each, UndeliveredInput)
            else each
            for each in lineage.inputs
        ]
        lineage.depth = _depth(lineage.inputs)


def _unknown() -> None:
    """No outcome."""


def _input_of(need: Dependency) -> Input:
    if isinstance(need, StoredObject):
        return ObjectInput(weakref.ref(need))
    if isinstance(need, NodeNeed):
        return IntermediateInput(need, need.graph.pieces)
    outcome = need.outcome()
    return UndeliveredInput(need) if outcome is None else _of_outcome(need.task_id, outcome)


def _of_outcome(task: int, outcome: Outcome | Dump | None) -> Input:
    if not isinstance(outcome, tuple):
        return LoadedInput(task, weakref.WeakMethod(outcome) if outcome is not None else _unknown)
    status, payload = outcome
    if type(payload) is not StoredPayload:
        return SmallInput(task, outcome)
    lineage = payload.object.origin
    near = lineage if isinstance(lineage, Lineage) and lineage.depth < LINEAGE_DEPTH else None
    return ResultInput(task, status, weakref.ref(payload.object), near)
