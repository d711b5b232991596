"""Remaking: lost results are made again by new tasks with the calls of the original tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scaler_client.core.graph_state import NodeNeed, reachable
from scaler_client.core.lineage import (
    Input,
    IntermediateInput,
    Lineage,
    LoadedInput,
    ObjectInput,
    ResultInput,
    SmallInput,
    UndeliveredInput,
)
from scaler_client.core.records import CallGroup, Dependency, Dump, Outcome
from scaler_client.futures.futures import current
from scaler_client.objects.handles import Remade, StoredPayload
from scaler_io.reentrant_lock import ReentrantLock
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Encoding


@dataclass(frozen=True, slots=True)
class RemadeInput:
    """An input under the id that the call contains: that of its original task, unless it is a node of a graph."""

    task_id: int
    look: Callable[[], Outcome | Dump | None]

    def outcome(self) -> Outcome | Dump | None:
        """Status and payload, or how to get them; None while there is none."""
        return self.look()


class Remaker:
    """Submits the tasks; `submit` takes the group, the call and the inputs of one. Thread-safe."""

    def __init__(self, submit: Callable[[CallGroup, bytes, Sequence[Dependency]], Remade]) -> None:
        self._submit = submit
        self._lock = ReentrantLock()  # a signal handler may read a result in the middle of this

    def make(self, lineage: Lineage) -> Remade | None:
        """The task that makes a lost result again; None if its call or an input is not known any more."""
        with self._lock:
            if lineage.made is None:
                call = _call_of(lineage)
                needs = list(map(self._need, lineage.inputs)) if call is not None else []
                known = [need for need in needs if need is not None]
                if call is not None and len(known) == len(needs):
                    lineage.made = self._submit(lineage.group, call, known)
            return lineage.made

    def _need(self, given: Input) -> Dependency | None:
        if isinstance(given, ObjectInput):
            return given.object()
        if isinstance(given, SmallInput):
            return RemadeInput(given.task_id, lambda: given.outcome)
        if isinstance(given, LoadedInput):
            dump = given.dump()
            return RemadeInput(given.task_id, lambda: dump) if dump is not None else None
        if isinstance(given, UndeliveredInput):
            return given.need
        if isinstance(given, IntermediateInput):
            return self._node(given)
        return self._result(given)

    def _result(self, given: ResultInput) -> Dependency | None:
        stored, lineage = given.object(), given.lineage
        if stored is not None and not (lineage is not None and lineage.lost):
            outcome = given.status, StoredPayload.of(stored)
            return RemadeInput(given.task_id, lambda: current(outcome))
        made = self.make(lineage) if lineage is not None else None
        return RemadeInput(given.task_id, made._as_input) if made is not None else None

    def _node(self, given: IntermediateInput) -> Dependency:
        """An intermediate node, with all those that it depends on."""
        made = given.need.graph.made_again

        def inputs_of(node: int) -> Iterable[int]:
            needs = given.piece_of(node)._needs_of(node)
            return [need.node for need in needs if isinstance(need, NodeNeed) and need.node not in made]

        nodes = reachable({given.need.node} - made.keys(), inputs_of)
        for node in sorted(nodes):  # inputs come before their consumers
            call = given.piece_of(node).resent_call(node)
            needs = [made[need.node] if isinstance(need, NodeNeed) else need for need in call._needs]
            future = self._submit(call._group, call._call, needs)
            # A pickled call finds its nodes by their order: so it need not name one whose lost value the scheduler has.
            is_named = call._group.wire.encoding != Encoding.PICKLE
            made[node] = RemadeInput(node if is_named else future.task_id, future._as_input)
        return made[given.need.node]


def _call_of(lineage: Lineage) -> bytes | None:
    if isinstance(lineage.call, bytes):
        return lineage.call
    stored = lineage.call.object()
    return StoredPayload.of(stored) if stored is not None else None
