"""LaneRecord: waiting tasks in the order in which they are dispatched."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from scaler_protocol.lazy_dataclass import dataclass
from scaler_scheduler.core.lane_ages import LaneAges
from scaler_scheduler.core.task_records import WAITING, TaskBlock, TaskRecord
from scaler_scheduler.requirements import Requirement

if TYPE_CHECKING:
    from scaler_scheduler.core.agent_record import AgentRecord
    from scaler_scheduler.core.records import SessionRecord

LaneKey = tuple[int, int, Requirement, "AgentRecord | None"]
"""Priority, depth, requirement, and the agent of the parents, see `LaneRecord.agent`."""


@dataclass(slots=True, eq=False)
class LaneRecord:
    """Waiting tasks that differ only in age: same root session, priority, depth, requirement and agent."""

    session: SessionRecord
    priority: int
    depth: int
    requirement: Requirement
    agent: AgentRecord | None
    """Where they go at once if it can take them: the agent of their parents, which run outside of its host."""
    tasks: deque[TaskRecord | TaskBlock] = field(default_factory=deque)
    """The first one is never a block that has been opened."""
    queued: int = 0
    """How many tasks these are."""
    ready: list[tuple[int, int, int, TaskRecord]] = field(default_factory=list)
    """Nodes whose inputs have all arrived, as a heap: graph by graph, each in the order of its nodes."""
    tombstones: int = 0
    """Entries of tasks that are not wanted any more."""
    listed: bool = False
    ages: LaneAges = field(default_factory=LaneAges)
    groups: int = 0
    """Remembered groups whose tasks wait here."""
    registered: bool = False
    """Whether the task queue has it: as long as it has groups or tasks."""
    calls_missing: bool = False
    """For tasks known by id only, after a restart: their calls must be submitted again before they can run."""

    @property
    def key(self) -> LaneKey:
        """Its key in the root session's table of lanes."""
        return self.priority, self.depth, self.requirement, self.agent

    @property
    def size(self) -> int:
        """Number of entries, including those of tasks that are not wanted any more."""
        return self.queued + len(self.ready)

    @property
    def since(self) -> float:
        """When its oldest task was added."""
        return self.ages.oldest(self.size)

    @property
    def first(self) -> TaskRecord | TaskBlock:
        """The next task, or the block that it is the first one of."""
        return self.ready[0][-1] if self.is_ready_next() else self.tasks[0]

    def is_ready_next(self) -> bool:
        """Whether a ready node goes next: before other tasks, so that results are used up, but after earlier nodes of
        its own graph."""
        if not self.ready or not self.tasks:
            return bool(self.ready)
        front, task = self.tasks[0], self.ready[0][-1]
        if task.id < front.id or front.extra is None or front.extra.graph is None:
            return True
        return task.extra is None or front.extra.graph is not task.extra.graph

    def records(self) -> list[TaskRecord]:
        """All entries, whichever goes first; blocks are opened."""
        found = [entry[-1] for entry in self.ready]
        for entry in self.tasks:
            found += entry.open() if isinstance(entry, TaskBlock) else (entry,)
        self.tasks = deque(found[len(self.ready) :])
        return found

    def pop(self, limit: int) -> list[TaskRecord]:
        """Take the next tasks that are wanted, at most `limit`."""
        taken: list[TaskRecord] = []
        if not self.tombstones and not self.ready:
            while self.tasks and len(taken) < limit:
                taken += self._pop_first(limit - len(taken))
            return taken
        ready, tasks, pop = self.ready, self.tasks, heapq.heappop
        while (ready or tasks) and len(taken) < limit:
            if ready and (not tasks or self.is_ready_next()):
                task = pop(ready)[-1]
            else:
                (task,) = self._pop_first(1)
            if task.state == WAITING:
                taken.append(task)
            else:
                self.tombstones -= 1
        return taken

    def _pop_first(self, limit: int) -> list[TaskRecord]:
        """The first tasks, at least one and at most `limit`, which are all of one block or of none."""
        tasks = self.tasks
        if isinstance(block := tasks[0], TaskBlock):
            taken = block.take(limit)
            if not len(block):
                tasks.popleft()
                self.open_first()
        else:
            taken = []
            while tasks and len(taken) < limit and isinstance(task := tasks[0], TaskRecord):
                tasks.popleft()
                taken.append(task)
            self.open_first()
        self.queued -= len(taken)
        return taken

    def open_first(self) -> None:
        """Put the tasks of blocks that have been opened in their place, as long as such a block is the first entry."""
        tasks = self.tasks
        while tasks and isinstance(block := tasks[0], TaskBlock) and block.records is not None:
            tasks.popleft()
            tasks.extendleft(reversed(block.records))

    def remove(self, task: TaskRecord) -> None:
        """Remove the entry of a task."""
        if any(entry[-1] is task for entry in self.ready):
            self.ready = [entry for entry in self.ready if entry[-1] is not task]
            heapq.heapify(self.ready)
            return
        self.records()
        self.tasks.remove(task)
        self.queued -= 1

    def drop_unwanted(self, task: TaskRecord) -> None:
        """Remove all entries of tasks that do not wait any more, and that of this one, but keep one entry at least."""
        alive = deque[TaskRecord | TaskBlock]()
        for entry in self.tasks:
            if isinstance(entry, TaskRecord):
                among: Sequence[TaskRecord] = (entry,)
            elif entry.records is None:
                alive.append(entry)
                continue
            else:
                among = entry.records
            alive.extend([waiting for waiting in among if waiting.state == WAITING and waiting is not task])
        self.ready = [entry for entry in self.ready if entry[-1].state == WAITING and entry[-1] is not task]
        heapq.heapify(self.ready)
        self.tombstones = 0
        if not alive and not self.ready:  # levels drop an empty lane, which would still count as listed
            alive.append(task)
            self.tombstones = 1
        self.tasks, self.queued = alive, sum([len(entry) if isinstance(entry, TaskBlock) else 1 for entry in alive])

    def clear(self) -> None:
        """Remove all entries."""
        self.tasks.clear()
        self.ready.clear()
        self.queued = self.tombstones = 0
