"""The functions that an agent's tasks name, and their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from scaler_protocol import limits
from scaler_protocol.messages import Functions, Group, Run
from scaler_worker.agent.core.generations import Generations
from scaler_worker.agent.core.records import Entry, FunctionKind, TaskGroup
from scaler_worker.ipc.frames import Definition

BODIES_LIMIT = 256 * 1024 * 1024
FUNCTIONS_LIMIT = 2 * limits.HELD_FUNCTIONS
"""Bytes and number of functions after which the longest unused are forgotten; they are asked for again.

Schedulers count on half as many: what else is used between two of those does not push the older one out.
"""
GROUPS_LIMIT = 4096
"""Groups, and functions as they are called, that are known at least; one that comes again is as good as new."""


class FunctionTable:
    """Kinds by handle, lanes by group, bodies by function id."""

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self._lanes: Generations[Group, TaskGroup] = Generations(GROUPS_LIMIT)
        self._kinds: Generations[tuple[bytes, bytes, int, int], FunctionKind] = Generations(GROUPS_LIMIT)
        self._bodies: OrderedDict[bytes, tuple[str, bytes, bool]] = OrderedDict()
        """Name, body, whether the body is a reference into object storage."""
        self._size = 0
        self._handles = 0
        self._parked: dict[FunctionKind, None] = {}
        """Kinds with runs that wait for bytes."""
        self._awaited: dict[bytes, dict[FunctionKind, None]] = {}
        """The same kinds by the functions that they are made of."""

    def __len__(self) -> int:
        return len(self._bodies)

    def lanes(self, groups: Sequence[Group]) -> list[TaskGroup]:
        """The lane of each group of a message."""
        return [self._lanes.get(group) or self._lane(group) for group in groups]

    def _lane(self, group: Group) -> TaskGroup:
        key = (group.function, group.serializer, group.encoding, group.stream_output)
        kind = self._kinds.get(key)
        if kind is None:
            self._handles += 1
            kind = FunctionKind(self._handles, group)
            self._kinds.put(key, kind)
        lane = TaskGroup(group, kind, self._default_timeout)
        self._lanes.put(group, lane)
        return lane

    def learn(self, message: Run | Functions) -> None:
        """Take the bodies that a message brings along."""
        stored = set(message.bodies_stored)
        named = zip(message.functions, message.names, message.bodies, strict=True)
        for position, (function, name, body) in enumerate(named):
            self._forget(function)
            self._bodies[function] = (name, body, position in stored)
            self._size += len(body)
        fewest = max(1, len(message.functions))  # what was asked for is here when it has come
        while (self._size > BODIES_LIMIT or len(self._bodies) > FUNCTIONS_LIMIT) and len(self._bodies) > fewest:
            self._size -= len(self._bodies.popitem(last=False)[1][1])

    def _forget(self, function: bytes) -> None:
        if known := self._bodies.pop(function, None):
            self._size -= len(known[1])

    def missing(self, kind: FunctionKind) -> list[bytes]:
        """The functions whose bytes are needed before the kind can be defined."""
        return [function for function in _made_of(kind) if function not in self._bodies]

    def definition(self, kind: FunctionKind) -> Definition:
        """What a worker is to know of a kind of which nothing is missing."""
        for function in _made_of(kind):
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
        """Keep runs until the bytes of their functions come."""
        for entry in entries:
            kind = entry[2].kind
            kind.parked.append(entry)
            self._parked[kind] = None
            for function in _made_of(kind):
                self._awaited.setdefault(function, {})[kind] = None

    def unpark(self, functions: Iterable[bytes]) -> list[Entry]:
        """Runs of which nothing is missing any more, now that the bytes of these functions have come."""
        found: list[Entry] = []
        for kind in [kind for function in functions for kind in self._awaited.get(function, ())]:
            if kind.parked and not self.missing(kind):
                found += kind.parked
                kind.parked.clear()
                self._leave(kind)
        return found

    def _leave(self, kind: FunctionKind) -> None:
        del self._parked[kind]
        for function in _made_of(kind):
            del self._awaited[function][kind]
            if not self._awaited[function]:
                del self._awaited[function]

    def awaited(self) -> Iterator[bytes]:
        """The functions whose bytes runs wait for."""
        return (function for function in self._awaited if function not in self._bodies)

    def parked_entries(self) -> list[Entry]:
        """Every parked run."""
        return [entry for kind in self._parked for entry in kind.parked]

    def remove(self, runs: set[int]) -> list[Entry]:
        """Take out these runs, as many as are parked."""
        removed: list[Entry] = []
        for kind in list(self._parked):
            removed += (entry for entry in kind.parked if entry[0] in runs)
            kind.parked[:] = (entry for entry in kind.parked if entry[0] not in runs)
            if not kind.parked:
                self._leave(kind)
        return removed


def _made_of(kind: FunctionKind) -> dict[bytes, None]:
    """Function and serializer."""
    return dict.fromkeys((kind.function, kind.serializer) if kind.serializer else (kind.function,))
