"""Submits a planned graph piece by piece: serialized arguments, and the dependencies of each call."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Any, Final

from scaler_client.calls.encoding import PLAIN, CallWriter, PartCalls, PickledCalls
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.calls.part_encoding import future_part, object_part
from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.records import CallGroup, Dependency
from scaler_client.futures.argument_refs import Collector, collector, too_many_inputs
from scaler_client.futures.futures import FailedArgumentError, ScalerFuture, finished_future
from scaler_client.futures.graph_futures import GraphFutures
from scaler_client.graphs.planner import DataNode, GraphPlan, NodeInput, format_path, gc_paused
from scaler_client.objects.handles import StoredPayload, pending_puts
from scaler_client.objects.store import wait_until_put
from scaler_client.payloads.user_exceptions import add_note
from scaler_client.runtime.io_thread import IoThread
from scaler_client.task_context import load_object
from scaler_protocol.buffers import Payload
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.messages import MESSAGE_GROUPS, MESSAGE_LIMIT, MESSAGE_NEEDS, MESSAGE_TASKS, Group
from scaler_protocol.ranges import shown
from scaler_protocol.serializer import join_parts, split_parts

_INLINE_CHARACTERS: Final = 256
"""Characters of a text or bytes node up to which it is serialized into each of its consumers."""
_PICKLED_DIRECTLY: Final = PLAIN | {NodeInput}
_NO_KEYWORDS: Final[dict[str, Any]] = {}

FindGroup = Callable[[Callable[..., Any], int], CallGroup]
"""The group of calls of a function with this number of arguments; raises TypeError if it does not accept them."""


class WrittenData:
    """A serialized data node: serialized once for all its consumers."""

    __slots__ = ("load", "needs", "payload")

    def __init__(self, payload: bytes, load: Callable[[bytes], Any], needs: Sequence[Dependency]) -> None:
        self.payload, self.load, self.needs = payload, load, needs

    def __reduce__(self) -> tuple[Any, ...]:
        found = collector()
        for need in self.needs:
            found.add(need)
        if type(self.payload) is StoredPayload:
            return load_object, (found.keep(self.payload), self.load)
        return self.load, (self.payload,)


class GraphSubmission:
    """One graph: calls are serialized and handed to the IO thread piece by piece."""

    def __init__(
        self,
        io: IoThread,
        writer: CallWriter,
        find_group: FindGroup,
        plan: GraphPlan,
        *,
        watched: bool = False,
        waits: bool = True,
        reserialized: set[int] | None = None,
    ) -> None:
        self._io, self._writer, self._find_group, self._plan = io, writer, find_group, plan
        size = len(plan.keys)
        self._first = io.next_tasks(size) if size else 0
        self._graph = GraphTasks(range(self._first, self._first + size), self._describe, watched=watched)
        self._reserialized = reserialized
        self._waits = waits
        self._data: dict[DataNode, Any] = {}
        self._shapes: dict[int, bytes] = {}
        self._causes: tuple[int, dict[int, int]] = 0, {}
        """The number of failures when it was computed, and GraphPlan.failure_causes of them."""
        self.futures: dict[Hashable, ScalerFuture[Any]] = {}
        """The futures of the requested calls."""

    def submit(self) -> None:
        """Serialize and hand over all calls once there is room for them; if that raises, the graph is cancelled."""
        plan, owner = self._plan, self._writer.owner
        kinds = list(zip(map(id, plan.functions), map(len, plan.arguments), strict=True))
        # Refuse wrong numbers of arguments before anything is sent.
        named = dict(zip(kinds, plan.functions, strict=True))
        groups = {kind: self._find_group(function, kind[1]) for kind, function in named.items()}
        written = [groups[kind] for kind in kinds]
        asked = {position: key for key, position in plan.positions.items()}
        try:
            for position, key in asked.items():
                future = self.futures[key] = ScalerFuture(owner, self._first + position, written[position], b"")
                self._graph.requested[future.task_id] = future
                if plan.consumers[position]:
                    self._graph.leases[future.task_id] = future._lease()
            position = 0
            with self._io.gate.reserved(len(kinds), block=self._waits) as put, gc_paused():
                while position < len(kinds):
                    piece = self._piece(position, written, asked)
                    put(piece)
                    position += len(piece.calls)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel all calls."""
        self._io.cancel(self._graph.tasks)

    def _piece(self, start: int, groups: list[CallGroup], asked: Mapping[int, Hashable]) -> GraphPiece:
        """Serialize one piece from a position on."""
        first, plan = self._first, self._plan
        calls, others = self._write_some(start, _most_together(groups, start))
        end = start + len(calls)
        rows = plan.needs[start:end]
        futures: dict[int, ScalerFuture[Any]] = {}
        for at in [position - start for position in range(start, end) if position in asked]:
            future = self.futures[asked[start + at]]
            needed = [self._graph.need(first + need) for need in rows[at]]
            future._call, future._needs = calls[at], [*needed, *others.get(at, ())]
            futures[future.task_id] = future
        for at, found in others.items():
            rows[at] += tuple([need.task_id - first for need in found if need.task_id])
        numbers: dict[CallGroup, int] = {}
        return GraphPiece(
            self._graph,
            first + start,
            groups=numbers,
            numbers=[numbers.setdefault(group, len(numbers)) for group in groups[start:end]],
            calls=calls,
            dependents=[at for at, row in enumerate(rows) for _ in row],
            needs=[first + need for row in rows for need in row],
            consumers=plan.consumers[start:end],
            intermediate=[position - start for position in range(start, end) if position not in asked],
            others=others,
            requested=futures,
        )

    # --- arguments --------------------------------------------------------------------------------------------------

    def _write_some(self, start: int, end: int) -> tuple[list[bytes], dict[int, Sequence[Dependency]]]:
        """Serialize as many calls as one message holds; returns their dependencies on other tasks and objects, too."""
        calls: list[bytes] = []
        others: dict[int, Sequence[Dependency]] = {}
        size, inputs, shapes, written = 0, 0, self._plan.shapes, self._shapes
        for position in range(start, end):
            given, own = self._plan.arguments[position], len(self._plan.needs[position])
            if calls and inputs + own > MESSAGE_NEEDS:
                break
            if given is shapes.get(count := len(given)) and (shape := written.get(count)) is not None:
                call = shape
            else:
                call, found = self._write(position)
                own += len(found)
                if calls and inputs + own > MESSAGE_NEEDS:
                    break  # it is written again for the next message
                if found:
                    others[len(calls)] = found
            if own > MESSAGE_NEEDS:
                raise too_many_inputs(f"node {shown(self._plan.keys[position])} of the graph", own)
            calls.append(call)
            size += len(call)
            inputs += own
            if size >= MESSAGE_LIMIT:
                break
        return calls, others

    def _write(self, position: int) -> tuple[bytes, Sequence[Dependency]]:
        try:
            written: Payload
            if isinstance(self._writer, PartCalls):
                written, found = self._write_parts(self._writer, position)
            else:
                written, found = self._write_whole(self._writer, self._plan.arguments[position])
            for stored in pending_puts(found):
                wait_until_put(stored)
            return self._store(written), found
        except FailedArgumentError as failed:  # the scheduler asks for this input, and the node ends like it
            return b"", [failed.argument._lease()]
        except Exception as error:
            add_note(error, f"raised while node {shown(self._plan.keys[position])} of the graph was serialized")
            raise

    def _store(self, payload: Payload) -> bytes:
        """The bytes, or the handle of an object if they exceed INLINE_LIMIT."""
        short = type(payload) is bytes and len(payload) <= INLINE_LIMIT
        return payload if short else self._io.storage.store(payload)  # type: ignore[return-value]

    def _write_whole(self, writer: PickledCalls, arguments: tuple[Any, ...]) -> tuple[Payload, Sequence[Dependency]]:
        if writer.is_traced:
            return writer.write(tuple(map(self._replaced, arguments)), _NO_KEYWORDS, self._reserialized)
        kinds = set(map(type, arguments))
        if arguments is self._plan.shapes.get(len(arguments)):
            written = self._shapes[len(arguments)] = pickle.dumps((arguments, _NO_KEYWORDS), 5)
            return written, ()
        if not kinds <= _PICKLED_DIRECTLY:
            arguments = tuple([self._replaced(value) for value in arguments])
            if not set(map(type, arguments)) <= _PICKLED_DIRECTLY:
                return writer.write(arguments, _NO_KEYWORDS, self._reserialized)
        return pickle.dumps((arguments, _NO_KEYWORDS), 5), ()

    def _replaced(self, value: Any) -> Any:
        """An argument with the values of its data nodes."""
        kind = type(value)
        if kind is DataNode:
            return self._written(value)
        if kind is list:
            return [self._replaced(item) for item in value]
        if kind is dict:
            return {name: self._replaced(item) for name, item in value.items()}
        return value

    def _written(self, node: DataNode) -> Any:
        found = self._data.get(node)
        if found is None:
            value = node.value
            whole = type(value) in PLAIN and (not isinstance(value, str | bytes) or len(value) <= _INLINE_CHARACTERS)
            if not whole and not isinstance(value, ScalerFuture | ObjectReference):
                value = self._dumped(value)
            found = self._data[node] = (value,)
        return found[0]

    def _dumped(self, value: Any) -> Any:
        with Collector(self._writer.owner) as collected:
            payload = self._writer.dump_object(value)
        if collected.failed is not None:
            return value  # serializing it into a call raises FailedArgumentError
        return WrittenData(self._store(payload), self._writer.load, collected.found)

    def _write_parts(self, writer: PartCalls, position: int) -> tuple[bytes, Sequence[Dependency]]:
        names: list[str] = []
        parts: list[bytes] = []
        found: list[Dependency] = []
        for argument in self._plan.arguments[position]:
            value = self._written(argument) if type(argument) is DataNode else argument
            if type(value) is NodeInput:
                name, part = future_part("", self._first + self._plan.needs[position][value.at])
            elif type(value) is WrittenData and type(value.payload) is StoredPayload:
                name, part = object_part("", value.payload)
                found.append(value.payload.object)
            elif type(value) is WrittenData:
                name, part = "", value.payload
            else:
                if type(value) in (list, dict) and _holds_nodes(value):
                    problem = "with a custom serializer only whole arguments may be nodes"
                    raise TypeError(f"node {self._plan.keys[position]!r}: {problem}")
                payload, needs = writer.write((value,), _NO_KEYWORDS)
                found += needs
                assert isinstance(payload, bytes), "parts are joined"
                ((name, part),) = split_parts(payload)
            names.append(name)
            parts.append(part)
        return join_parts(names, parts), found

    def progress(self) -> tuple[int, int]:
        """The number of calls that have ended, and of all calls."""
        size = len(self._graph.tasks)
        if not self._graph.requested:
            return size, size
        return self._graph.ended + sum(future.done() for future in self.futures.values()), size

    # --- results ----------------------------------------------------------------------------------------------------

    def results(self, value_of: Callable[[Any], Any], keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        """Wait for the requested values. Raises the first failure and cancels the rest."""
        given = [node.value for node in self._plan.data.values() if isinstance(node.value, ScalerFuture)]
        awaited = [*given, *self.futures.values()]
        try:
            _raise_failure(given)
            wait(awaited, return_when=FIRST_EXCEPTION)
            _raise_failure(awaited)
            return {key: self._value(key, value_of) for key in keys}
        except BaseException:
            self.cancel()
            raise

    def _value(self, key: Hashable, value_of: Callable[[Any], Any]) -> Any:
        future = self.futures.get(key)
        return future.result() if future is not None else value_of(self._plan.data[key].value)

    def all_futures(self, value_of: Callable[[Any], Any], keys: Sequence[Hashable]) -> GraphFutures:
        """A future for each requested node; that of data is done."""
        owner, group = self._writer.owner, CallGroup(Group(b""), (), self._writer.load, self._writer.dump)
        futures = GraphFutures({}, self._first, len(self._plan.keys))
        for key in keys:
            if (future := self.futures.get(key)) is None:
                value = self._plan.data[key].value
                future = value if isinstance(value, ScalerFuture) else finished_future(owner, group, value_of(value))
            futures[key] = future
        return futures

    def _describe(self, task: int, failed: set[int]) -> str:
        if len(failed) > self._causes[0]:  # one pass over the graph serves all failures so far
            known = failed.copy()
            self._causes = len(known), self._plan.failure_causes({other - self._first for other in known})
        path = self._plan.path(task - self._first, self._causes[1])
        return f"in a graph: {format_path(path)}" if len(path) > 1 else f"in a graph: node {path[0]!r}"


def _raise_failure(futures: Sequence[ScalerFuture[Any]]) -> None:
    """Raise what the first of these futures that has failed or was cancelled raises; waits for none."""
    for future in futures:
        if future._failed() or future.cancelled():
            future.result()


def _most_together(groups: Sequence[CallGroup], start: int) -> int:
    """Where the piece that begins at `start` ends at the latest: one message has so many tasks, and so many groups."""
    end, met = min(start + MESSAGE_TASKS, len(groups)), set[CallGroup]()
    for position in range(start, end):
        met.add(groups[position])
        if len(met) > MESSAGE_GROUPS:
            return position
    return end


def _holds_nodes(value: Any) -> bool:
    if type(value) in (NodeInput, DataNode):
        return True
    items = value.values() if type(value) is dict else value if type(value) is list else ()
    return any(map(_holds_nodes, items))
