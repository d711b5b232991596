"""The functions of an agent's tasks: their bytes, handles, and the runs that wait for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from scaler_protocol import limits
from scaler_protocol.errors import ProtocolError
from scaler_protocol.ids import function_fault
from scaler_protocol.messages import Functions, Group, Run
from scaler_worker.agent.core.generations import Generations
from scaler_worker.agent.core.records import GROUP, RUN, Entry, FunctionKind, TaskGroup
from scaler_worker.ipc.frames import PLAIN, RESULT_SHIFT, Definition
from scaler_worker.ipc.inputs import with_inputs

BODIES_LIMIT = 256 * 1024 * 1024
FUNCTIONS_LIMIT = 2 * limits.KEPT_FUNCTIONS
"""Bounds of the cache of function bodies, evicted in LRU order and requested again when needed.

Schedulers assume half as many, so that functions used in between do not evict one that they count on.
"""
GROUPS_LIMIT = 4096
"""The table keeps at least so many groups and kinds; it creates a forgotten one again."""


class FunctionTable:
    """Task groups by wire group, kinds by function and encoding, bodies by function id."""

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self._groups: Generations[Group, TaskGroup] = Generations(GROUPS_LIMIT)
        self._kinds: Generations[tuple[bytes, bytes, int, int], FunctionKind] = Generations(GROUPS_LIMIT)
        self._bodies: OrderedDict[bytes, tuple[str, bytes, bool]] = OrderedDict()
        """Name, body, and whether the body is a reference to an object in storage."""
        self._size = 0
        self._handles = 0
        self._parked: dict[FunctionKind, None] = {}
        """Kinds with parked runs."""
        self._waiting_for: dict[bytes, dict[FunctionKind, None]] = {}
        """The same kinds by function id (function and serializer)."""

    def __len__(self) -> int:
        return len(self._bodies)

    def groups(self, groups: Sequence[Group]) -> list[TaskGroup]:
        """The task group of each wire group of a message."""
        return [self._groups.get(group) or self._group(group) for group in groups]

    def _group(self, group: Group) -> TaskGroup:
        key = (group.function, group.serializer, group.encoding, group.stream_output)
        kind = self._kinds.get(key)
        if kind is None:
            self._handles += 1
            kind = FunctionKind(self._handles, group)
            self._kinds.put(key, kind)
        task_group = TaskGroup(group, kind, self._default_timeout)
        self._groups.put(group, task_group)
        return task_group

    def entries(self, message: Run) -> list[Entry]:
        """The runs of a message, in order."""
        groups = self.groups(message.groups)
        calls: Iterable[bytes] = message.calls.parts
        flags: Iterable[int] = repeat(PLAIN)
        if message.stored or message.needs:
            calls, flags = with_inputs(message)
        if message.result_sizes:
            flags = [flag | size << RESULT_SHIFT for flag, size in zip(flags, message.result_sizes, strict=False)]
        return list(
            zip(
                range(message.first_run, message.first_run + len(message.tasks)),
                message.tasks,
                map(groups.__getitem__, message.task_groups) if message.task_groups else repeat(groups[0]),
                calls,
                message.attempts or repeat(1),
                flags,
                strict=False,
            )
        )

    def learn(self, message: Run | Functions) -> None:
        """Add the bodies of a message to the cache.

        Raises ProtocolError, without any change, if a function id is not the hash of its function.
        """
        stored = set(message.bodies_stored)
        bodies: dict[bytes, tuple[str, bytes, bool]] = {}
        for position, function in enumerate(message.functions):
            name, body = message.names[position], message.bodies[position]
            if fault := function_fault(function, name, body, stored=position in stored):
                raise ProtocolError(f"{type(message).__name__}.functions: {fault}")
            bodies[function] = name, body, position in stored
        for function, known in bodies.items():
            self._forget(function)
            self._bodies[function] = known
            self._size += len(known[1])
        fewest = max(1, len(message.functions))  # never evict what this message delivered
        while (self._size > BODIES_LIMIT or len(self._bodies) > FUNCTIONS_LIMIT) and len(self._bodies) > fewest:
            self._size -= len(self._bodies.popitem(last=False)[1][1])

    def _forget(self, function: bytes) -> None:
        if known := self._bodies.pop(function, None):
            self._size -= len(known[1])

    def missing(self, kind: FunctionKind) -> list[bytes]:
        """The function ids whose bytes are missing for the definition of `kind`."""
        return [function for function in _function_ids(kind) if function not in self._bodies]

    def definition(self, kind: FunctionKind) -> Definition:
        """The definition of a kind whose bytes are all present."""
        for function in _function_ids(kind):
            self._bodies.move_to_end(function)
        name, body, stored = self._bodies[kind.function]
        _, serializer_body, serializer_stored = self._bodies[kind.serializer] if kind.serializer else ("", b"", False)
        return Definition(
            kind.handle,
            kind.function,
            name,
            body,
            kind.encoding,
            kind.stream_output,
            kind.serializer,
            serializer_body,
            body_stored=stored,
            serializer_stored=serializer_stored,
        )

    def park(self, entries: Iterable[Entry]) -> None:
        """Park runs until the bytes of their functions arrive."""
        for entry in entries:
            kind = entry[GROUP].kind
            kind.parked.append(entry)
            self._parked[kind] = None
            for function in _function_ids(kind):
                self._waiting_for.setdefault(function, {})[kind] = None

    def unpark(self, functions: Iterable[bytes]) -> list[Entry]:
        """Remove and return the parked runs that have all bytes, now that those of `functions` have arrived."""
        found: list[Entry] = []
        for kind in [kind for function in functions for kind in self._waiting_for.get(function, ())]:
            if kind.parked and not self.missing(kind):
                found += kind.parked
                kind.parked.clear()
                self._leave(kind)
        return found

    def give_up(self, functions: Iterable[bytes]) -> list[Entry]:
        """Remove and return the parked runs that lack one of these functions."""
        kinds = dict.fromkeys(
            kind
            for function in functions
            if function not in self._bodies
            for kind in self._waiting_for.get(function, ())
        )
        return self.remove({entry[RUN] for kind in kinds for entry in kind.parked})

    def _leave(self, kind: FunctionKind) -> None:
        del self._parked[kind]
        for function in _function_ids(kind):
            del self._waiting_for[function][kind]
            if not self._waiting_for[function]:
                del self._waiting_for[function]

    def missing_functions(self) -> Iterator[bytes]:
        """The functions whose bytes parked runs wait for."""
        return (function for function in self._waiting_for if function not in self._bodies)

    def parked_entries(self) -> list[Entry]:
        """Every parked run."""
        return [entry for kind in self._parked for entry in kind.parked]

    def remove(self, runs: set[int]) -> list[Entry]:
        """Remove and return those of `runs` that are parked."""
        removed: list[Entry] = []
        for kind in list(self._parked):
            removed += (entry for entry in kind.parked if entry[RUN] in runs)
            kind.parked[:] = (entry for entry in kind.parked if entry[RUN] not in runs)
            if not kind.parked:
                self._leave(kind)
        return removed


def _function_ids(kind: FunctionKind) -> dict[bytes, None]:
    """The ids of function and serializer."""
    return dict.fromkeys((kind.function, kind.serializer) if kind.serializer else (kind.function,))
