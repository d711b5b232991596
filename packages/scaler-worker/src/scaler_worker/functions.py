"""The functions that an agent's tasks name, and their bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from scaler_protocol import limits
from scaler_protocol.messages import Functions, Group, Run
from scaler_worker.channel import Definition
from scaler_worker.generations import Generations
from scaler_worker.records import Entry, FunctionKind, Lane

BODIES_LIMIT = 256 * 1024 * 1024
FUNCTIONS_LIMIT = limits.FUNCTIONS
"""Bytes and number of functions after which the longest unused are forgotten; they are asked for again.

Those that one message brings are never too many: what was asked for is here when it comes.
"""
GROUPS_LIMIT = 4096
"""Groups, and functions as they are called, that are known at least; one that comes again is as good as new."""


class FunctionTable:
    """Kinds by handle, lanes by group, bodies by function id."""

    def __init__(self, default_timeout: float) -> None:
        self._default_timeout = default_timeout
        self._lanes: Generations[Group, Lane] = Generations(GROUPS_LIMIT)
        self._kinds: Generations[tuple[bytes, bytes, int, int], FunctionKind] = Generations(GROUPS_LIMIT)
        self._bodies: OrderedDict[bytes, tuple[str, bytes, bool]] = OrderedDict()
        """Name, body, whether the body is a reference into object storage."""
        self._size = 0
        self._handles = 0
        self.parked: set[FunctionKind] = set()
        """Kinds with runs that wait for bytes."""

    def lanes(self, groups: Sequence[Group]) -> list[Lane]:
        """The lane of each group of a message."""
        return [self._lanes.get(group) or self._lane(group) for group in groups]

    def _lane(self, group: Group) -> Lane:
        key = (group.function, group.serializer, group.encoding, group.stream_output)
        kind = self._kinds.get(key)
        if kind is None:
            self._handles += 1
            kind = FunctionKind(self._handles, group)
            self._kinds.put(key, kind)
        lane = Lane(group, kind, self._default_timeout)
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
        while (self._size > BODIES_LIMIT or len(self._bodies) > FUNCTIONS_LIMIT) and len(self._bodies) > 1:
            self._size -= len(self._bodies.popitem(last=False)[1][1])

    def _forget(self, function: bytes) -> None:
        if known := self._bodies.pop(function, None):
            self._size -= len(known[1])

    def missing(self, kind: FunctionKind) -> list[bytes]:
        """The functions whose bytes are needed before the kind can be defined."""
        needed = (kind.function, kind.serializer) if kind.serializer else (kind.function,)
        return [function for function in needed if function not in self._bodies]

    def definition(self, kind: FunctionKind) -> Definition:
        """What a worker is to know of a kind of which nothing is missing."""
        self._bodies.move_to_end(kind.function)
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
            entry[2].kind.parked.append(entry)
            self.parked.add(entry[2].kind)

    def unpark(self) -> list[Entry]:
        """Runs of which nothing is missing any more."""
        found: list[Entry] = []
        for kind in [kind for kind in self.parked if not self.missing(kind)]:
            found += kind.parked
            kind.parked.clear()
            self.parked.discard(kind)
        return found

    def parked_entries(self) -> list[Entry]:
        """Every parked run."""
        return [entry for kind in self.parked for entry in kind.parked]

    def remove(self, runs: set[int]) -> list[Entry]:
        """Take out these runs, as many as are parked."""
        removed: list[Entry] = []
        for kind in list(self.parked):
            removed += (entry for entry in kind.parked if entry[0] in runs)
            kind.parked[:] = (entry for entry in kind.parked if entry[0] not in runs)
            if not kind.parked:
                self.parked.discard(kind)
        return removed
