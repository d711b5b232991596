"""The queue of waiting tasks: which one runs next.

Tasks stand in *lanes*: one per (root session, priority, depth, requirement, agent), first in, first out, except that
nodes of a graph that become ready run in the order of their graph. For every worker class (agents whose workers have
equal capabilities and Python) there is a heap of priority levels; a level is a heap of the sessions that have tasks for
the class, each with a heap of its lanes. Order: the highest priority, where one step of priority is worth
AGEING_SECONDS of waiting of the oldest task; then the session that was served least, in seconds of worker time (a
session that was idle starts level with the others); then the deepest lane; then the oldest task.

A heap entry is checked when it comes to the top, and is pushed again where its key has grown meanwhile, so a decision
costs O(log lanes), however many priorities, sessions and requirements there are. Two decreases of a key are noticed
late, when the entry comes to the top: a session's tasks were shorter than the mean of their function; and when a
session is served through another class, the session that follows it in a level may have waited longer than the level
takes into account.

A class whose agents have consumables has several such queues: for the tasks that take none, and for those that take the
same ones. For an agent the queue is chosen whose next task goes first, of those for which the agent has enough left.
No task overtakes an older one that waits for the same consumable there, so that small ones do not starve big ones.

A lane is registered as long as a session remembers one of its groups, or a task waits in it.

Invariants: a lane with entries has a task that is wanted, and is in the level of every class that can run it; `count`
is the number of WAITING tasks.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

from scaler_protocol.capabilities import Capabilities
from scaler_scheduler.core.event_log import EventLog
from scaler_scheduler.core.records import AgentRecord, LaneRecord, SessionRecord, TaskBlock, TaskRecord
from scaler_scheduler.requirements import Requirement, WorkerClass

AGEING_SECONDS = 60.0
QUANTUM = 32
"""Most tasks of one session taken at once while others wait."""
REPORTED_LIMIT = 100
"""How many logged requirements that no class meets are remembered."""
_STALE_ENTRIES = 64

_Name = TypeVar("_Name", bound=Hashable)


class _PriorityLevel:
    """The lanes of one priority that one worker class can serve, by session."""

    __slots__ = ("_lanes", "_turns", "key")

    def __init__(self) -> None:
        self.key = math.inf
        """Its key in the heap of levels. The lane that is next may have a greater key, never a smaller one."""
        self._turns: list[tuple[float, int, int, SessionRecord]] = []
        self._lanes: dict[SessionRecord, list[tuple[int, int, int, LaneRecord]]] = {}

    def add(self, lane: LaneRecord) -> None:
        """List a lane that has tasks."""
        session = lane.session
        lanes = self._lanes.get(session)
        if lanes is None:
            lanes = self._lanes[session] = []
            heapq.heappush(self._turns, _turn(session))
        heapq.heappush(lanes, _place(lane))

    def next(self) -> LaneRecord | None:
        """The lane to serve next, or None."""
        while self._turns:
            served, _, _, session = self._turns[0]
            lanes = self._lanes[session]
            while lanes and not lanes[0][-1].size:
                heapq.heappop(lanes)
            if not lanes:
                heapq.heappop(self._turns)
                del self._lanes[session]
            elif served != session.served and len(self._turns) > 1:
                heapq.heapreplace(self._turns, _turn(session))
            else:
                return lanes[0][-1]
        return None

    def taken_from(self, lane: LaneRecord) -> bool:
        """The lane that `next` returned has fewer tasks; returns whether no lane of the level has any."""
        lanes = self._lanes[lane.session]
        if lane.size:
            heapq.heapreplace(lanes, _place(lane))
            return False
        heapq.heappop(lanes)
        if not lanes:
            heapq.heappop(self._turns)
            del self._lanes[lane.session]
        return not self._turns

    def has(self, lane: LaneRecord) -> bool:
        """Whether the lane is listed, and its session has turns; for tests."""
        listed = any(entry[-1] is lane for entry in self._lanes.get(lane.session, ()))
        return listed and any(turn[-1] is lane.session for turn in self._turns)

    def is_only(self, lane: LaneRecord) -> bool:
        """Whether no other lane than the one that `next` returned is listed."""
        return len(self._turns) == len(self._lanes[lane.session]) == 1


def _place(lane: LaneRecord) -> tuple[int, int, int, LaneRecord]:
    """A lane's heap entry."""
    return -lane.depth, lane.first.id, id(lane), lane


def _turn(session: SessionRecord) -> tuple[float, int, int, SessionRecord]:
    """A session's heap entry; an ended session may still be listed when another gets its number."""
    return session.served, session.number, id(session), session


class ClassQueue:
    """The lanes that one worker class can serve: a level per priority, in a heap."""

    __slots__ = ("_order", "levels")

    def __init__(self) -> None:
        self.levels: dict[int, _PriorityLevel] = {}
        self._order: list[tuple[float, int]] = []
        """A heap of keys and priorities; an entry is stale if its key is not that of its level."""

    def add(self, lane: LaneRecord) -> None:
        """List a lane that has tasks."""
        current = self.levels.get(lane.priority)
        if current is None:
            current = self.levels[lane.priority] = _PriorityLevel()
        current.add(lane)
        key = _key(lane)
        if key < current.key:
            current.key = key
            heapq.heappush(self._order, (key, lane.priority))
            if len(self._order) > _STALE_ENTRIES + 2 * len(self.levels):
                self._order = [(each.key, priority) for priority, each in self.levels.items()]
                heapq.heapify(self._order)

    def next(self) -> LaneRecord | None:
        """The lane to serve: that of the highest priority, where each level is aged by the wait of its next lane."""
        while self._order:
            key, priority = self._order[0]
            current = self.levels.get(priority)
            if current is None or current.key != key:
                heapq.heappop(self._order)
                continue
            lane = current.next()
            if lane is None:
                heapq.heappop(self._order)
                del self.levels[priority]
                continue
            if _key(lane) <= key:
                return lane
            current.key = _key(lane)
            heapq.heapreplace(self._order, (current.key, priority))
        return None

    def taken_from(self, lane: LaneRecord) -> None:
        """The lane that `next` returned has fewer tasks."""
        if self.levels[lane.priority].taken_from(lane):
            heapq.heappop(self._order)
            del self.levels[lane.priority]

    def has(self, lane: LaneRecord) -> bool:
        """Whether the lane is listed, under a key that lets it have its turn; for tests."""
        level = self.levels.get(lane.priority)
        return level is not None and level.has(lane) and (level.key, lane.priority) in self._order

    def is_only(self, lane: LaneRecord) -> bool:
        """Whether no other lane than the one that `next` returned has tasks."""
        if not self.levels[lane.priority].is_only(lane):
            return False
        if len(self.levels) == 1:
            return True
        first = heapq.heappop(self._order)
        other = self.next()
        heapq.heappush(self._order, first)
        return other is None


Parts = dict[tuple[str, ...], ClassQueue]
"""The queues of a class whose agents have consumables, by the names of those that the tasks take."""


def next_part(
    parts: Parts, has_room: Callable[[Requirement], bool], waiting: Container[tuple[str, ...]] = ()
) -> ClassQueue | None:
    """The queue to serve for an agent that has room for tasks of some requirements; None if there is none.

    Those of `waiting` are left out.
    """
    claimed: set[str] = set()
    for names, requirement in heads_of(parts):
        if claimed.isdisjoint(names):
            if names not in waiting and has_room(requirement):
                return parts[names]
            claimed.update(names)
    return None


def heads_of(parts: Parts) -> tuple[tuple[tuple[str, ...], Requirement], ...]:
    """The queues that have tasks, and what the next one of each requires, in the order in which these go."""
    return tuple((names, lane.requirement) for names, lane in in_order(parts))


def in_order(queues: Mapping[_Name, ClassQueue]) -> Iterator[tuple[_Name, LaneRecord]]:
    """The lanes that are next in the queues with tasks, in the order in which these go by the rules of ClassQueue."""
    heads = {key: lane for key, queue in queues.items() if (lane := queue.next()) is not None}
    while heads:
        best: dict[int, _Name] = {}
        for key, lane in heads.items():
            other = best.get(lane.priority)
            if other is None or _order(lane) < _order(heads[other]):
                best[lane.priority] = key
        first = min(best.values(), key=lambda key: _key(heads[key]))
        yield first, heads.pop(first)


def _order(lane: LaneRecord) -> tuple[float, int, int, int]:
    """Among lanes of one priority, the smallest is served first."""
    return lane.session.served, lane.session.number, -lane.depth, lane.first.id


def _key(lane: LaneRecord) -> float:
    """The smallest is served first: the time since when its oldest task waits, less what its priority is worth."""
    return lane.since - AGEING_SECONDS * lane.priority


class TaskQueue:
    """All waiting tasks."""

    def __init__(self, event_log: EventLog) -> None:
        self.count = 0
        self._event_log = event_log
        self._lanes: dict[Requirement, dict[LaneRecord, None]] = {}
        self._requirements: dict[Requirement, list[ClassQueue]] = {}
        self._classes: dict[WorkerClass, ClassQueue] = {}
        """What takes no consumables."""
        self._parts: dict[WorkerClass, Parts] = {}
        """All queues of the classes whose agents have consumables."""
        self._reported: set[Requirement] = set()
        """Requirements that no class meets and that were logged; until a class meets them, or no lane has them."""
        self._served = 0.0
        """The `served` of the session served last: sessions that were idle start from here."""

    def lane(
        self,
        session: SessionRecord,
        priority: int,
        depth: int,
        requirement: Requirement,
        agent: AgentRecord | None = None,
    ) -> LaneRecord:
        """The lane for such tasks; registered if it is new."""
        key = (priority, depth, requirement, agent)
        lane = session.lanes.get(key)
        if lane is None:
            lane = session.lanes[key] = LaneRecord(session, priority, depth, requirement, agent)
            if requirement not in self._requirements:
                self._requirements[requirement] = [
                    self._queue_of(requirement, worker_class)
                    for worker_class in self._classes
                    if not requirement.unmet_by(worker_class)
                ]
                self._lanes[requirement] = {}
            self._lanes[requirement][lane] = None
            lane.registered = True
        return lane

    def _queue_of(self, requirement: Requirement, worker_class: WorkerClass) -> ClassQueue:
        """The queue of a class, which can run them, for tasks with a requirement."""
        if worker_class not in self._parts:
            return self._classes[worker_class]
        names = tuple(name for name, _ in requirement.share_of(worker_class))
        return self._parts[worker_class].setdefault(names, ClassQueue())

    def release_group(self, lane: LaneRecord) -> None:
        """A session has forgotten a group of the lane, which is dropped with its last group or last task."""
        lane.groups -= 1
        self._forget_if_unused(lane)

    def _forget_if_unused(self, lane: LaneRecord) -> None:
        """Drop the lane if it has neither groups nor tasks."""
        if lane.registered and lane.groups <= 0 and not lane.size:
            del lane.session.lanes[lane.key]
            self._forget(lane)

    def _forget(self, lane: LaneRecord) -> None:
        lane.registered = False
        lanes = self._lanes[lane.requirement]
        del lanes[lane]
        if not lanes:
            del self._lanes[lane.requirement], self._requirements[lane.requirement]
            self._reported.discard(lane.requirement)
            self._drop_unused_parts()

    def _drop_unused_parts(self) -> None:
        """Drop the queues that no requirement uses any more."""
        for parts in self._parts.values():
            for names in [names for names, queue in parts.items() if names and not self._is_used(queue)]:
                del parts[names]

    def _is_used(self, queue: ClassQueue) -> bool:
        return any(queue in queues for queues in self._requirements.values())

    def add_class(self, worker_class: WorkerClass) -> None:
        """The first agent of this class has connected."""
        if worker_class in self._classes:
            return
        plain = self._classes[worker_class] = ClassQueue()
        if worker_class.consumables:
            self._parts[worker_class] = {(): plain}
        for requirement, queues in self._requirements.items():
            if not requirement.unmet_by(worker_class):
                queue = self._queue_of(requirement, worker_class)
                queues.append(queue)
                self._reported.discard(requirement)
                for lane in self._lanes[requirement]:
                    if lane.size:
                        lane.listed = True
                        queue.add(lane)

    def remove_class(self, worker_class: WorkerClass) -> None:
        """The last agent of this class is gone."""
        plain = self._classes.pop(worker_class)
        gone = list(self._parts.pop(worker_class, {(): plain}).values())
        for requirement, queues in self._requirements.items():
            queues[:] = [queue for queue in queues if queue not in gone]
            if not queues:
                for lane in self._lanes[requirement]:
                    lane.listed = False

    def counts(self) -> Iterator[tuple[Requirement, int]]:
        """How many tasks wait, by what they need; 0 where none does."""
        for requirement, lanes in self._lanes.items():
            yield requirement, sum([lane.size - lane.tombstones for lane in lanes])

    def lanes(self) -> Iterator[LaneRecord]:
        """All registered lanes."""
        return (lane for lanes in self._lanes.values() for lane in lanes)

    def lanes_by_class(self, requirement: Requirement) -> Iterator[list[LaneRecord]]:
        """For each connected class that can run such a task, all lanes with tasks that it can run."""
        for queue in self._requirements.get(requirement, ()):
            yield [
                lane
                for each, queues in self._requirements.items()
                if queue in queues
                for lane in self._lanes[each]
                if lane.size > lane.tombstones
            ]

    def can_be_served(self, requirement: Requirement) -> bool:
        """Whether some connected class can run such a task."""
        return bool(self._requirements.get(requirement))

    def unserved(self) -> list[Requirement]:
        """Requirements of waiting tasks that no connected class meets."""
        return [
            requirement
            for requirement, queues in self._requirements.items()
            if not queues and any(lane.size > lane.tombstones for lane in self._lanes[requirement])
        ]

    def report_once(self, requirement: Requirement) -> bool:
        """Whether it must be logged that no class meets the requirement; True once."""
        if requirement in self._reported or len(self._reported) >= REPORTED_LIMIT:
            return False
        self._reported.add(requirement)
        return True

    def add(
        self, tasks: Sequence[TaskRecord], lane: LaneRecord, now: float, *, first: bool = False, soon: bool = False
    ) -> None:
        """Add tasks to their lane: at its end; at its front, oldest first, if `first` (tasks that had been dispatched
        before); among the ready nodes of graphs if `soon`."""
        if not lane.registered:  # it was dropped while tasks of its groups were dispatched
            lane = self.lane(lane.session, *lane.key)
            for task in tasks:
                task.group.lane = lane
        before = lane.size
        if first:
            lane.tasks.extendleft(sorted(tasks, key=lambda task: -task.id))
            lane.queued += len(tasks)
        elif soon:
            for task in tasks:
                graph = task.extra.graph if task.extra is not None else None
                heapq.heappush(lane.ready, (graph.number if graph else 0, task.id, id(task), task))
        else:
            lane.tasks.extend(tasks)
            lane.queued += len(tasks)
        if tasks:
            self._added(len(tasks), lane, before, now, first=first)

    def add_block(self, block: TaskBlock, now: float) -> None:
        """Add the tasks of a block at the end of their lane."""
        lane = block.group.lane
        if not lane.registered:
            lane = block.group.lane = self.lane(lane.session, *lane.key)
        before = lane.size
        lane.tasks.append(block)
        lane.queued += len(block)
        self._added(len(block), lane, before, now)

    def _added(self, count: int, lane: LaneRecord, before: int, now: float, *, first: bool = False) -> None:
        """So many tasks were added to a lane that had `before` ones, and may now begin with another one if `first`."""
        self.count += count
        lane.ages.added(count, before, now)
        root = lane.session
        if not root.waiting:
            root.served = max(root.served, self._served)
        root.wait(count)
        if first or not lane.listed:
            self._list(lane)

    def _list(self, lane: LaneRecord) -> None:
        queues = self._requirements[lane.requirement]
        lane.listed = bool(queues)
        for queue in queues:
            queue.add(lane)

    def discard(self, task: TaskRecord) -> None:
        """A waiting task is no longer wanted. The caller changes its state; its entry in the lane is skipped later."""
        lane = task.group.lane
        if not lane.registered:  # its session is over
            return
        self.count -= 1
        lane.session.wait(-1)
        lane.tombstones += 1
        if 64 < lane.tombstones < lane.size < 2 * lane.tombstones:
            lane.drop_unwanted(task)
        self._drop_unwanted(lane)

    def remove(self, task: TaskRecord) -> None:
        """A waiting task turned out to be running: remove its entry at once, since the task may be queued again."""
        lane = task.group.lane
        self.count -= 1
        lane.session.wait(-1)
        lane.remove(task)
        self._drop_unwanted(lane)

    def _drop_unwanted(self, lane: LaneRecord) -> None:
        """A lane has lost a task: one without any that is wanted has no entries, and levels drop it."""
        if (size := lane.size) <= lane.tombstones:
            if size:
                lane.clear()
            lane.listed = False
            self._forget_if_unused(lane)

    def has_tasks_for(self, worker_class: WorkerClass) -> bool:
        """Whether a task waits that workers of this class could run, whatever the runs there have taken."""
        return bool(self.count) and self._classes[worker_class].next() is not None

    def of_class(self, worker_class: WorkerClass) -> ClassQueue:
        """What workers of this class can run, whatever the runs there have taken."""
        return self._classes[worker_class]

    def takes_consumables(self, requirement: Requirement) -> bool:
        """Whether a task takes consumables wherever it can run."""
        queues = self._requirements.get(requirement, ())
        return bool(self._parts and queues) and not any(queue in self._classes.values() for queue in queues)

    def is_wanted(self, share: Capabilities, worker_class: WorkerClass) -> bool:
        """Whether a task waits for workers of this class that takes one of the consumables of a share."""
        names = {name for name, _ in share}
        return any(
            not names.isdisjoint(taken) and queue.next() is not None
            for taken, queue in self.parts_of(worker_class).items()
        )

    def parts_of(self, worker_class: WorkerClass) -> Parts:
        """All queues of a class whose agents have consumables; empty for other classes."""
        return self._parts.get(worker_class, {})

    @property
    def parts_by_class(self) -> Mapping[WorkerClass, Parts]:
        """All queues of the classes whose agents have consumables."""
        return self._parts

    def take(self, queue: ClassQueue, lane: LaneRecord, most: int, *, one_lane: bool = False) -> list[TaskRecord]:
        """Tasks of the lane that is next in this queue, and of those after it that begin with the same session and
        function: at most `most`, and QUANTUM if others wait.

        What is the same for all of them is done once, however few each lane has. The caller charges their session with
        what they will take.
        """
        session, function = lane.session, lane.first.group.function
        if most > QUANTUM and not queue.is_only(lane):
            most = QUANTUM
        taken = self._take_from(lane, most)
        queue.taken_from(lane)
        while len(taken) < most and not one_lane:
            following = queue.next()
            if following is None or following.session is not session or following.first.group.function is not function:
                break
            taken += self._take_from(following, most - len(taken))
            queue.taken_from(following)
        self._dispatched(session, len(taken))
        return taken

    def take_all(self, lane: LaneRecord) -> list[TaskRecord]:
        """All tasks of a lane, even if it is not next."""
        if not lane.size:
            return []
        taken = self._take_from(lane, lane.size)
        self._dispatched(lane.session, len(taken))
        for queue in self._requirements.get(lane.requirement, ()):
            if level := queue.levels.get(lane.priority):
                level.next()  # drops empty lanes at its top
        return taken

    def _take_from(self, lane: LaneRecord, limit: int) -> list[TaskRecord]:
        size = lane.size if self._event_log.measuring else 0
        taken = lane.pop(limit)
        if size:
            self._event_log.waited(lane.ages.first(len(taken), size))
        self._drop_unwanted(lane)
        return taken

    def _dispatched(self, root: SessionRecord, count: int) -> None:
        """So many tasks of a session do not wait any more."""
        self._served = max(self._served, root.served)
        root.wait(-count)
        self.count -= count

    def drop_session(self, session: SessionRecord) -> None:
        """A root session is over, and none of its tasks is wanted. Costs time in proportion to its own lanes."""
        for group in session.groups.values():
            self.release_group(group.lane)
        for lane in session.lanes.values():
            self.count -= lane.size - lane.tombstones
            lane.clear()
            self._forget(lane)
        session.wait(-session.waiting)
        session.lanes.clear()

    def check(self) -> None:
        """Assert the invariants; for tests."""
        waiting: Counter[SessionRecord] = Counter()
        for requirement, lanes in self._lanes.items():
            queues = self._requirements[requirement]
            assert lanes and queues == [
                self._queue_of(requirement, worker_class)
                for worker_class in self._classes
                if not requirement.unmet_by(worker_class)
            ]
            for lane in lanes:
                lane.check()
                assert lane.registered and lane.session.lanes[lane.key] is lane
                assert lane.listed == bool(lane.size and queues), f"{lane.key} is listed: {lane.listed}"
                assert not lane.size or all(queue.has(lane) for queue in queues), f"{lane.key} is not in every queue"
                waiting[lane.session] += lane.size - lane.tombstones
        assert self.count == waiting.total(), (self.count, waiting.total())
        assert all(session.waiting == count for session, count in waiting.items())
