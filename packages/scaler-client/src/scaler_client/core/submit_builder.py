"""Builds Submit messages from waiting calls. Pure, no IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import CallBlock, CallGroup, Dependency, FunctionBody, OutstandingCall, WaitingCall
from scaler_client.objects.handles import StoredPayload, pending_puts, stored_positions
from scaler_protocol.messages import MESSAGE_GROUPS, MESSAGE_NEEDS, Functions, Inputs, Message, Reconcile, Submit
from scaler_protocol.payloads import NONE, Payloads

_SEVERAL: Final = (CallBlock, GraphPiece)
"""Several tasks at once. A tuple, since `CallBlock | GraphPiece` in a function would be made at each call of it."""


def is_uploaded(call: WaitingCall | GraphPiece) -> bool:
    """Whether the objects that a call names are in storage; blocks and graphs are submitted only after that."""
    if isinstance(call, _SEVERAL):
        return True
    return not (call._needs or type(call._call) is StoredPayload) or not pending_puts(call._needs, call._call)


class SubmitBuilder:
    """Collects calls of one parent; groups are numbered in the order of their first call."""

    __slots__ = ("calls", "count_limit", "dependents", "groups", "needs", "numbers", "parent", "size", "tasks")

    def __init__(self, parent: int, count_limit: int) -> None:
        self.parent = parent
        self.count_limit = count_limit
        self.groups: dict[CallGroup, int] = {}
        self.tasks: list[int] = []
        self.calls: list[bytes] = []
        self.numbers: list[int] = []
        self.dependents: list[int] = []
        self.needs: list[int] = []
        self.size = 0

    def fill(self, waiting: deque[WaitingCall | GraphPiece], room: int) -> None:
        """Move calls from `waiting` while they fit into `room` bytes; the first one always fits."""
        tasks, calls, numbers = self.tasks, self.calls, self.numbers
        group, number, size = None, 0, self.size
        left = self.count_limit - len(tasks)
        while waiting:
            call = waiting[0]
            if isinstance(call, GraphPiece) or not is_uploaded(call):
                break
            if call._group is not group:
                group = call._group
                if group.parent != self.parent:
                    break
                if group not in self.groups and len(self.groups) >= MESSAGE_GROUPS:
                    break  # their functions have so many bytes together
                number = self.groups.setdefault(group, len(self.groups))
            if isinstance(call, CallBlock):
                count, needs = len(call.calls), sum(map(len, call.needs.values()))
            else:
                count, needs = 1, len(call._needs)
            weight = call._weight * count
            if tasks and (size + weight > room or count > left or len(self.needs) + needs > MESSAGE_NEEDS):
                break
            waiting.popleft()
            if isinstance(call, CallBlock):
                self._add_block(call, number)
            else:
                if needs:
                    self._depend(len(tasks), call._needs)
                tasks.append(call.task_id)
                calls.append(call._call)
                numbers.append(number)
            size += weight
            left -= count
        self.size = size

    def _add_block(self, block: CallBlock, number: int) -> None:
        for position, needs in block.needs.items():
            self._depend(len(self.tasks) + position, needs)
        self.tasks.extend(block.tasks)
        self.calls.extend(block.calls)
        self.numbers.extend([number] * len(block.calls))

    def _depend(self, position: int, needs: Sequence[Dependency]) -> None:
        for need in needs:
            if need.task_id:
                self.dependents.append(position)
                self.needs.append(need.task_id)


def submit_message(batch: SubmitBuilder | GraphPiece, bodies: Sequence[FunctionBody]) -> Submit:
    """The Submit of a batch, or of a piece of a graph, with the functions that the scheduler does not have."""
    written = [body.body for body in bodies]
    message = Submit(
        groups=[group.wire for group in batch.groups],
        tasks=batch.tasks,
        calls=Payloads(batch.calls),
        task_groups=batch.numbers if len(batch.groups) > 1 else (),
        stored=stored_positions(batch.calls),
        dependents=batch.dependents,
        needs=batch.needs,
        functions=[body.id for body in bodies],
        names=[body.name for body in bodies],
        bodies=Payloads(written) if written else NONE,
        parent=batch.parent,
        bodies_stored=stored_positions(written),
    )
    if isinstance(batch, GraphPiece):
        graph = batch.graph
        message = replace(message, graph=graph.tasks.start, graph_size=len(graph.tasks), watched=graph.watched)
        return replace(message, consumers=batch.consumers, intermediate=batch.intermediate)
    return message


def tasks_of(message: Message, outstanding: Mapping[int, OutstandingCall]) -> Iterable[int]:
    """The tasks that cannot end unless the scheduler receives this message; for a graph, all its nodes."""
    if isinstance(message, Submit) and message.graph:
        return range(message.graph, message.graph + message.graph_size)
    if isinstance(message, Reconcile):
        return message.wanted
    if isinstance(message, Functions):
        return _callers(frozenset(message.functions), outstanding)
    return message.tasks if isinstance(message, Submit | Inputs) else ()


def _callers(functions: frozenset[bytes], outstanding: Mapping[int, OutstandingCall]) -> list[int]:
    """The tasks that call any of these functions, with all nodes of their graphs."""
    tasks: dict[int, None] = {}
    for task, call in outstanding.items():
        groups = call.groups if isinstance(call, GraphPiece) else (call._group,)
        if any(body.id in functions for group in groups for body in group.bodies):
            tasks.update(dict.fromkeys(call.graph.tasks if isinstance(call, GraphPiece) else (task,)))
    return list(tasks)
