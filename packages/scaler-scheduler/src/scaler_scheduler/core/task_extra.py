"""TaskExtra: what nodes of graphs have beside other tasks, and tasks of which runs were lost or raised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.core.graph_record import GraphRecord
from scaler_scheduler.core.node_columns import joined
from scaler_scheduler.core.task_states import Outcome

GIVEN_UP_RUNS = 8
NO_INPUTS: Final[dict[int, Outcome | None]] = {}
"""The inputs of tasks that need none, or that have ended; it is never changed."""


@dataclass(slots=True, eq=False)
class RunNotes:
    """What is known of a task's runs beside the current one, and what these have submitted: little of few tasks."""

    lost_runs: int = 0
    shared_losses: int = 0
    """Runs lost with an agent when it is unknown which run ended it: see `scaler_scheduler.core.suspects`."""
    suspect: bool = False
    exclusive: bool = False
    """Whether it used more memory than a worker may, and runs alone: see `scaler_scheduler.core.exclusive`."""
    seen: float = 0.0
    """When its agent first reported the run of a suspect as being on a worker."""
    charged: int = 0
    """The run that was counted as lost with its agent; discounted if the agent comes back with it."""
    given_up: tuple[tuple[int, bytes], ...] = ()
    """The last GIVEN_UP_RUNS runs lost with their agents, with the agents' identities; an agent may come back with its
    run."""
    raised_runs: int = 0
    earlier_runs: int = 0
    """Runs that were on a worker before the task was queued again, whether they are charged to it or not."""
    counted: int = 0
    """The last of these that was given up with its agent; discounted if the agent comes back with it."""
    children: list[int] | None = None
    """Tasks that it has submitted."""
    lost_second_runs: int = 0
    """Second runs that ended without an outcome."""

    def give_up(self, run: int, agent: bytes) -> None:
        """A run was lost with its agent, which may come back with it."""
        self.given_up = (*self.given_up[1 - GIVEN_UP_RUNS :], (run, agent))


class TaskExtra:
    """Fields that few tasks need beside nodes of graphs, of which there may be millions."""

    __slots__ = (
        "consumers", "dependents", "graph", "inputs", "intermediate", "missing_inputs", "notes", "outcome",
        "owner_waits", "stored",
    )  # fmt: skip

    def __init__(
        self,
        graph: GraphRecord | None = None,
        inputs: dict[int, Outcome | None] = NO_INPUTS,
        missing_inputs: int = 0,
        dependents: Sequence[int] = (),
        consumers: int = 0,
        intermediate: bool = False,
    ) -> None:
        self.graph = graph
        self.inputs = inputs
        """Its inputs, which have values, by the tasks that make them; None for those that have not arrived."""
        self.missing_inputs = missing_inputs
        """Inputs that have not arrived."""
        self.dependents = dependents
        """Tasks that need its result, until it has ended; some may be gone; a list if they are many."""
        self.consumers = consumers
        """Tasks of its graph that use its result and have not ended."""
        self.intermediate = intermediate
        """Whether its result is for other nodes only: the client did not ask for it."""
        self.owner_waits = not intermediate
        """Whether the owner must release the outcome before it is forgotten."""
        self.outcome: Outcome | None = None
        """How it ended; kept as long as it has consumers."""
        self.stored = False
        """Whether its call is a reference to an object."""
        self.notes: RunNotes | None = None

    def add_dependents(self, tasks: Sequence[int]) -> None:
        """These tasks need its result."""
        self.dependents = joined(self.dependents, tasks)

    def results(self) -> Iterator[bytes]:
        """The payloads that are kept for this task and for those that need it."""
        if self.outcome is not None:
            yield self.outcome[1]
        for found in self.inputs.values():
            if found is not None:
                yield found[1]

    @property
    def is_suspect(self) -> bool:
        """Whether it may have ended its host."""
        return self.notes is not None and self.notes.suspect

    @property
    def is_exclusive(self) -> bool:
        """Whether it runs alone on a host."""
        return self.notes is not None and self.notes.exclusive

    @property
    def is_apart(self) -> bool:
        """Whether the task, if it is not on an agent, is a suspect or exclusive, and lacks no input."""
        notes = self.notes
        return notes is not None and (notes.suspect or notes.exclusive) and not self.missing_inputs
