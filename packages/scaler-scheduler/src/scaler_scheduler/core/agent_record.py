"""AgentRecord: an agent, its runs, and what is known of its load."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import field

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import AgentStatus
from scaler_scheduler.core.consumables import Consumables
from scaler_scheduler.core.task_records import TaskRecord
from scaler_scheduler.requirements import WorkerClass


@dataclass(slots=True, eq=False)
class AgentRecord:
    """One agent: N equal workers on one host."""

    peer: bytes
    name: str
    host: str
    workers: int
    queue_size: int
    worker_class: WorkerClass
    runs: dict[int, TaskRecord] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    functions: dict[bytes, None] = field(default_factory=dict)
    """Functions sent to it last; it asks for those that it has dropped."""
    load: float = 0.0
    """Expected seconds of its runs, and of tasks planned for it."""
    window: int = 0
    """Slow start: most unfinished runs; grows by one with each result."""
    released: dict[int, None] = field(default_factory=dict)
    """Tasks of which it need not keep the outcome any more, and has not been told so yet."""
    recalling: bool = False
    progressed: bool = False
    """Whether it was given runs, or has reported results, since the loads were last compared."""
    idle: int = 0
    """Idle workers that other agents' runs may have, when the loads were last compared."""
    resuming: bool = False
    """Whether its Reconcile is pending: until then it is given no work."""
    returning: bool = False
    """Whether it was connected before, possibly to an earlier incarnation of the scheduler."""
    suspect: TaskRecord | None = None
    """The suspect that it was given last."""
    reserved_for: TaskRecord | None = None
    """The exclusive task that it was reserved for last."""
    entry_version: int = 0
    """Identifies its valid entry in the heap of agents with room."""
    running: dict[int, float] = field(default_factory=dict)
    """Runs on a worker at its last report, with the time of the first report of each."""
    first_unreported: int = 0
    """Runs from this id on were dispatched after that report."""
    number: int = 0
    """The number that monitors know it by."""
    status: AgentStatus | None = None
    """Its last report, which came at `reported_at`."""
    reported_at: float = 0.0
    manager: str = ""
    """The id of the worker manager that started it, or empty."""
    unit: str = ""
    """The name that its manager knows it by."""
    consumables: Consumables | None = None
    lives_on_seconds: float = 0.0
    """For how long at most its runs go on without a connection to the scheduler."""
    relay_incarnation: int = 0
    """Of a relay: which incarnation made the run ids that its agents know; 0: this is the agent of one host."""

    @property
    def is_draining(self) -> bool:
        """Whether it finishes its work to leave: it has no workers that take tasks. A relay may just have no host."""
        return not self.workers and not (self.relay_incarnation and not self.runs)

    @property
    def active(self) -> int:
        """Runs that occupy a worker or wait for one: all but those that wait for nested tasks."""
        return len(self.runs) - len(self.blocked)

    def on_workers(self, unsent: AbstractSet[int] = frozenset()) -> set[int]:
        """Runs that are probably on a worker: blocked and reported ones, then the oldest sent since."""
        likely = [run for run in self.runs if run in self.running and run not in self.blocked]
        if self.is_draining:
            return self.blocked.union(likely)
        likely += [run for run in self._sent_since_report(unsent) if run not in self.blocked]
        return self.blocked.union(likely[: self.workers])

    def unreported(self, unsent: AbstractSet[int]) -> set[int]:
        """The newest runs sent since the last report: one of them may have ended the agent on arrival."""
        return set(self._sent_since_report(unsent)[-self.workers :] if self.workers else ())

    def _sent_since_report(self, unsent: AbstractSet[int]) -> list[int]:
        return [run for run in self.runs if run >= self.first_unreported and run not in unsent]
