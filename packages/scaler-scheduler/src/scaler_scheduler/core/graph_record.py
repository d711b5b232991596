"""GraphRecord: how far one graph is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status
from scaler_scheduler.core.function_record import FunctionRecord


@dataclass(slots=True, eq=False)
class NodeCounts:
    """Nodes of one function of a graph, by how they ended; the rest of `submitted` has not ended."""

    submitted: int = 0
    done: int = 0
    failed: int = 0
    cancelled: int = 0


@dataclass(slots=True, eq=False)
class GraphRecord:
    """One graph. Its session has it until all of its nodes have ended; then it is kept for monitors."""

    first: int
    """The id of its first task."""
    number: int
    """The number that monitors know it by."""
    size: int
    """Number of nodes, those included that are not submitted yet."""
    session: int
    begun: float
    ended: float = 0.0
    """When the last node ended; 0 until then."""
    open: int = 0
    """Nodes that were submitted and have not ended."""
    counts: dict[FunctionRecord, NodeCounts] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The id of its last task."""
        return self.first + self.size - 1

    @property
    def arriving(self) -> bool:
        """Whether nodes of it are not submitted yet."""
        return self._submitted < self.size

    def has_received(self, task: int) -> bool:
        """Whether this is one of its nodes, and was submitted: nodes are submitted in the order of their ids."""
        return self.first <= task < self.first + self._submitted

    @property
    def _submitted(self) -> int:
        return sum(each.submitted for each in self.counts.values())

    def has_arrived(self) -> None:
        """No more nodes will be submitted; those that were refused, or that a journal has forgotten, do not count."""
        self.size = self._submitted

    def enter(self, functions: Mapping[FunctionRecord, int]) -> None:
        """Count submitted nodes, given by their functions."""
        for function, submitted in functions.items():
            self.open += submitted
            if function not in self.counts:
                self.counts[function] = NodeCounts()
            self.counts[function].submitted += submitted

    def end(self, function: FunctionRecord, status: int, nodes: int = 1) -> bool:
        """Count nodes of a function that ended with this status; returns whether they were the last ones."""
        self.open -= nodes
        counts = self.counts[function]
        if status == Status.VALUE:
            counts.done += nodes
        elif status == Status.CANCELLED:
            counts.cancelled += nodes
        else:
            counts.failed += nodes
        if self.open:
            return False
        return not self.arriving or any(each.cancelled for each in self.counts.values())
