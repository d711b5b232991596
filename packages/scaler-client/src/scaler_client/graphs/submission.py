"""From a plan to the pieces of a graph: arguments as bytes, and who takes whose result."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Any, Final

from scaler_client.calls.encoding import PLAIN, CallWriter, FailedArgumentError, PartCalls, PickledCalls
from scaler_client.calls.object_reference import ObjectReference
from scaler_client.calls.part_encoding import future_part, object_part
from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.records import CallGroup, Dependency
from scaler_client.futures.argument_refs import Collector, collector
from scaler_client.futures.futures import ScalerFuture, finished_future
from scaler_client.graphs.planner import DataNode, GraphPlan, NodeInput, format_path, gc_paused
from scaler_client.objects.handles import StoredPayload, pending_puts
from scaler_client.objects.store import wait_until_put
from scaler_client.payloads.user_exceptions import add_note
from scaler_client.runtime.io_thread import IoThread
from scaler_client.task_context import load_object
from scaler_protocol.buffers import Payload
from scaler_protocol.handshake import INLINE_LIMIT
from scaler_protocol.messages import MESSAGE_LIMIT, Group
from scaler_protocol.ranges import shown
from scaler_protocol.serializer import join_parts, split_parts

PIECE_NODES: Final = 4096
_BRIEF: Final = 256
"""Plain values up to so many characters are written into each call that takes them."""
_WRITTEN_AT_ONCE: Final = PLAIN | {NodeInput}
_NOTHING: Final[dict[str, Any]] = {}

FindGroup = Callable[[Callable[..., Any], int], CallGroup]
"""The group of calls of a function with so many arguments; raises TypeError where it does not take them."""


class WrittenData:
    """A data node as bytes: written once, however many calls take it."""

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
    """One graph on its way: nodes are written and handed over piece by piece."""

    def __init__(
        self,
        io: IoThread,
        writer: CallWriter,
        find_group: FindGroup,
        plan: GraphPlan,
        *,
        watched: bool = False,
        reserialized: set[int] | None = None,
    ) -> None:
        self._io, self._writer, self._find_group, self._plan = io, writer, find_group, plan
        size = len(plan.keys)
        self._first = io.next_tasks(size) if size else 0
        self._graph = GraphTasks(range(self._first, self._first + size), self._describe, watched=watched)
        self._reserialized = reserialized
        self._data: dict[DataNode, Any] = {}
        self._shapes: dict[int, bytes] = {}
        self._ways: tuple[int, dict[int, int]] = 0, {}
        """How many failures were known when it was worked out, and by which way they came."""
        self.futures: dict[Hashable, ScalerFuture[Any]] = {}
        """The requested calls."""

    def submit(self) -> None:
        """Write and hand over all of it; where that fails nothing of it is run any more."""
        plan, owner = self._plan, self._writer.owner
        kinds = list(zip(map(id, plan.functions), map(len, plan.arguments), strict=True))
        # Before anything is sent: functions that can not be called so.
        named = dict(zip(kinds, plan.functions, strict=True))
        groups = {kind: self._find_group(function, kind[1]) for kind, function in named.items()}
        written = [groups[kind] for kind in kinds]
        asked = {place: key for key, place in plan.places.items()}
        try:
            for place, key in asked.items():
                future = self.futures[key] = ScalerFuture(owner, self._first + place, written[place], b"")
                self._graph.requested[future.task_id] = future
                if plan.takers[place]:
                    self._graph.leases[future.task_id] = future.lease()
            place = 0
            with gc_paused():
                while place < len(kinds):
                    place = self._hand_over(place, written, asked)
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """Nothing of it is wanted any more."""
        self._io.cancel(self._graph.tasks)

    def _hand_over(self, start: int, groups: list[CallGroup], asked: Mapping[int, Hashable]) -> int:
        """Write and hand over one piece, from a place on; returns the place behind it."""
        first, plan = self._first, self._plan
        calls, others = self._write_some(start)
        end = start + len(calls)
        rows = plan.needs[start:end]
        futures: dict[int, ScalerFuture[Any]] = {}
        for at in [place - start for place in range(start, end) if place in asked]:
            future = self.futures[asked[start + at]]
            needed = [self._graph.need(first + need) for need in rows[at]]
            future.call, future.needs = calls[at], [*needed, *others.get(at, ())]
            futures[future.task_id] = future
        for at, found in others.items():
            rows[at] += tuple([need.task_id - first for need in found if need.task_id])
        numbers: dict[CallGroup, int] = {}
        piece = GraphPiece(
            self._graph,
            first + start,
            groups=numbers,
            numbers=[numbers.setdefault(group, len(numbers)) for group in groups[start:end]],
            calls=calls,
            dependents=[at for at, row in enumerate(rows) for _ in row],
            needs=[first + need for row in rows for need in row],
            consumers=plan.takers[start:end],
            intermediate=[place - start for place in range(start, end) if place not in asked],
            others=others,
            requested=futures,
        )
        self._io.mailbox.put(piece)
        return end

    # --- arguments --------------------------------------------------------------------------------------------------

    def _write_some(self, start: int) -> tuple[list[bytes], dict[int, Sequence[Dependency]]]:
        """As many calls as a message takes, from a place on; and by position what they take besides nodes."""
        calls: list[bytes] = []
        others: dict[int, Sequence[Dependency]] = {}
        size, shapes, written = 0, self._plan.shapes, self._shapes
        for given in self._plan.arguments[start : start + PIECE_NODES]:
            if given is shapes.get(count := len(given)) and (shape := written.get(count)) is not None:
                calls.append(shape)
                size += len(shape)
            else:
                call, found = self._write(start + len(calls))
                if found:
                    others[len(calls)] = found
                calls.append(call)
                size += len(call)
            if size >= MESSAGE_LIMIT:
                break
        return calls, others

    def _write(self, place: int) -> tuple[bytes, Sequence[Dependency]]:
        try:
            written: Payload
            if isinstance(self._writer, PartCalls):
                written, found = self._write_parts(self._writer, place)
            else:
                written, found = self._write_whole(self._writer, self._plan.arguments[place])
            for kept in pending_puts(found):
                wait_until_put(kept)
            return self._placed(written), found
        except FailedArgumentError as failed:  # the scheduler is told when it asks, and the node ends so
            return b"", [failed.argument.lease()]
        except Exception as error:
            add_note(error, f"it was raised when node {shown(self._plan.keys[place])} of the graph was to be sent")
            raise

    def _placed(self, payload: Payload) -> bytes:
        """The bytes, or what stands for them where they are too big to travel."""
        short = type(payload) is bytes and len(payload) <= INLINE_LIMIT
        return payload if short else self._io.storage.place(payload)  # type: ignore[return-value]

    def _write_whole(self, writer: PickledCalls, arguments: tuple[Any, ...]) -> tuple[Payload, Sequence[Dependency]]:
        kinds = set(map(type, arguments))
        if arguments is self._plan.shapes.get(len(arguments)):
            written = self._shapes[len(arguments)] = pickle.dumps((arguments, _NOTHING), 5)
            return written, ()
        if not kinds <= _WRITTEN_AT_ONCE:
            arguments = tuple([self._replaced(value) for value in arguments])
            if not set(map(type, arguments)) <= _WRITTEN_AT_ONCE:
                return writer.write(arguments, _NOTHING, self._reserialized)
        return pickle.dumps((arguments, _NOTHING), 5), ()

    def _replaced(self, value: Any) -> Any:
        """An argument with what stands for the data nodes in it."""
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
            whole = type(value) in PLAIN and (not isinstance(value, str | bytes) or len(value) <= _BRIEF)
            if not whole and not isinstance(value, ScalerFuture | ObjectReference):
                value = self._dumped(value)
            found = self._data[node] = (value,)
        return found[0]

    def _dumped(self, value: Any) -> Any:
        with Collector(self._writer.owner) as collected:
            payload = self._writer.dump_object(value)
        if collected.failed is not None:
            return value  # whoever writes it into a call finds out
        return WrittenData(self._placed(payload), self._writer.load, collected.found)

    def _write_parts(self, writer: PartCalls, place: int) -> tuple[bytes, Sequence[Dependency]]:
        names: list[str] = []
        parts: list[bytes] = []
        found: list[Dependency] = []
        for argument in self._plan.arguments[place]:
            value = self._written(argument) if type(argument) is DataNode else argument
            if type(value) is NodeInput:
                name, part = future_part("", self._first + self._plan.needs[place][value.at])
            elif type(value) is WrittenData and type(value.payload) is StoredPayload:
                name, part = object_part("", value.payload)
                found.append(value.payload.kept)
            elif type(value) is WrittenData:
                name, part = "", value.payload
            else:
                if type(value) in (list, dict) and _holds_nodes(value):
                    problem = "with a serializer of one's own only whole arguments may be nodes"
                    raise TypeError(f"node {self._plan.keys[place]!r}: {problem}")
                payload, needs = writer.write((value,), _NOTHING)
                found += needs
                assert isinstance(payload, bytes), "parts are joined"
                ((name, part),) = split_parts(payload)
            names.append(name)
            parts.append(part)
        return join_parts(names, parts), found

    def progress(self) -> tuple[int, int]:
        """How many calls of how many have a value."""
        size = len(self._graph.tasks)
        if not self._graph.requested:
            return size, size
        return self._graph.ended + sum(future.done() for future in self.futures.values()), size

    # --- results ----------------------------------------------------------------------------------------------------

    def results(self, value_of: Callable[[Any], Any], keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        """The requested values, once all are there. The first failure is raised, and the rest cancelled."""
        try:
            wait(self.futures.values(), return_when=FIRST_EXCEPTION)
            for future in self.futures.values():
                if future.failed() or future.cancelled():
                    future.result()
            return {key: self._value(key, value_of) for key in keys}
        except BaseException:
            self.cancel()
            raise

    def _value(self, key: Hashable, value_of: Callable[[Any], Any]) -> Any:
        future = self.futures.get(key)
        return future.result() if future is not None else value_of(self._plan.data[key].value)

    def all_futures(self, value_of: Callable[[Any], Any], keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        """A future per requested node; data is done already."""
        owner, group = self._writer.owner, CallGroup(Group(b""), (), self._writer.load, self._writer.dump)
        futures: dict[Hashable, Any] = {}
        for key in keys:
            if (future := self.futures.get(key)) is None:
                value = self._plan.data[key].value
                future = value if isinstance(value, ScalerFuture) else finished_future(owner, group, value_of(value))
            futures[key] = future
        return futures

    def _describe(self, task: int, failed: set[int]) -> str:
        if len(failed) > self._ways[0]:  # one pass over the graph for all that look at their failures
            known = failed.copy()
            self._ways = len(known), self._plan.ways({other - self._first for other in known})
        path = self._plan.path(task - self._first, self._ways[1])
        return f"in a graph: {format_path(path)}" if len(path) > 1 else f"in a graph: node {path[0]!r}"


def _holds_nodes(value: Any) -> bool:
    if type(value) in (NodeInput, DataNode):
        return True
    items = value.values() if type(value) is dict else value if type(value) is list else ()
    return any(map(_holds_nodes, items))
