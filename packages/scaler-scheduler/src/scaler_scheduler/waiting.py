"""Who is next: the tasks that wait for a worker.

Tasks stand in *lanes*: one per (root session, priority, depth, requirement), first come first served. For every offer
(what the workers of a class of agents can take) there is a heap of the lanes it can serve, per priority. Order: the
greatest priority, where one step of priority is worth AGEING_SECONDS of waiting of the lane's head; then the session
that was served least (a session that comes back from idling starts level with the others); then the deepest; then the
oldest. Keys of a heap only grow, so a stale entry is found when it is popped, and goes back with its new key: a
decision costs O(log lanes), however many requirements there are.

Invariants: a lane with tasks is listed in every offer that fits its requirement; `count` is the number of WAITING
tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from scaler_scheduler.records import WAITING, LaneRecord, Offer, Requirement, SessionRecord, TaskRecord

AGEING_SECONDS = 60.0
QUANTUM = 32
"""Tasks taken from one lane while others wait too."""

_Entry = tuple[int, int, int, int, LaneRecord]
"""Tasks served of the lane's session, depth and age of its head, and something that makes entries differ."""


class _Choice:
    """The lanes that one offer can serve: a heap per priority."""

    __slots__ = ("heaps",)

    def __init__(self) -> None:
        self.heaps: dict[int, list[_Entry]] = {}

    def add(self, lane: LaneRecord) -> None:
        entry = (lane.session.served, -lane.depth, lane.tasks[0].id, id(lane), lane)
        heapq.heappush(self.heaps.setdefault(lane.priority, []), entry)


class WaitingRoom:
    """All waiting tasks."""

    def __init__(self) -> None:
        self.count = 0
        self._lanes: dict[tuple[SessionRecord, int, int, Requirement], LaneRecord] = {}
        self._requirements: dict[Requirement, list[_Choice]] = {}
        self._choices: dict[Offer, _Choice] = {}
        self._round = 0

    def lane(self, session: SessionRecord, priority: int, depth: int, requirement: Requirement) -> LaneRecord:
        """The lane for such tasks."""
        key = (session, priority, depth, requirement)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = LaneRecord(session, priority, depth, requirement)
            if requirement not in self._requirements:
                self._requirements[requirement] = [
                    choice for offer, choice in self._choices.items() if not requirement.lacking(offer)
                ]
        return lane

    def add_offer(self, offer: Offer) -> None:
        """Agents of this class exist from now on."""
        if offer in self._choices:
            return
        choice = self._choices[offer] = _Choice()
        for requirement, choices in self._requirements.items():
            if not requirement.lacking(offer):
                choices.append(choice)
        for lane in self._lanes.values():
            if lane.listed and choice in self._requirements[lane.requirement]:
                choice.add(lane)

    def remove_offer(self, offer: Offer) -> None:
        """The last agent of this class has left."""
        choice = self._choices.pop(offer)
        for choices in self._requirements.values():
            if choice in choices:
                choices.remove(choice)

    def can_be_served(self, requirement: Requirement) -> bool:
        """Whether some class of agents can take such a task."""
        return bool(self._requirements.get(requirement))

    def add(self, tasks: Iterable[TaskRecord], lane: LaneRecord, now: float, *, first: bool = False) -> None:
        """Tasks begin to wait in their lane: at its end, or before all others where they had been dispatched before."""
        queue, before = lane.tasks, len(lane.tasks)
        if first:
            queue.extendleft(tasks)
        else:
            queue.extend(tasks)
        added = len(queue) - before
        if not added:
            return
        self.count += added
        root = lane.session
        if not root.waiting:
            root.served = max(root.served, self._round)
        root.waiting += added
        if first or not lane.listed:
            if not lane.listed:
                lane.since = now
            lane.listed = True
            for choice in self._requirements[lane.requirement]:
                choice.add(lane)

    def forget(self, task: TaskRecord) -> None:
        """A waiting task is not wanted any more; the caller changed its state, its place is passed over later."""
        lane = task.group.lane
        self.count -= 1
        lane.session.waiting -= 1
        lane.tombstones += 1
        if lane.tombstones > 64 and lane.tombstones > len(lane.tasks) // 2:
            alive = [waiting for waiting in lane.tasks if waiting.state == WAITING]
            lane.tasks.clear()
            lane.tasks.extend(alive)
            lane.tombstones = 0

    def take(self, offer: Offer, limit: Callable[[LaneRecord], int], now: float) -> list[TaskRecord]:
        """The next tasks for workers of this class, all of one lane, at most `limit(lane)`; or none."""
        choice = self._choices[offer]
        while heap := self._best(choice, now):
            lane = heapq.heappop(heap)[-1]
            alone = not heap and len(choice.heaps) == 1
            room = limit(lane)
            taken = self._pop(lane, room if alone else min(room, QUANTUM))
            if taken:
                root = lane.session
                self._round = max(self._round, root.served)
                root.served += len(taken)
                root.waiting -= len(taken)
                self.count -= len(taken)
                lane.since = now
            if lane.tasks:
                choice.add(lane)
            else:
                lane.listed = False
            if taken or not room:
                return taken
        return []

    def _best(self, choice: _Choice, now: float) -> list[_Entry] | None:
        """The heap to take from: the greatest priority, aged by how long its next lane has waited."""
        best, best_value = None, 0.0
        for priority, heap in list(choice.heaps.items()):
            if lane := self._peek(heap):
                value = priority + (now - lane.since) / AGEING_SECONDS
                if best is None or value > best_value:
                    best, best_value = heap, value
            else:
                del choice.heaps[priority]
        return best

    @staticmethod
    def _peek(heap: list[_Entry]) -> LaneRecord | None:
        """The next lane of a heap, after putting stale entries right."""
        while heap:
            served, depth, oldest, mark, lane = heap[0]
            if not lane.tasks:
                heapq.heappop(heap)
                continue
            if served == lane.session.served:
                return lane
            heapq.heapreplace(heap, (lane.session.served, depth, oldest, mark, lane))
        return None

    @staticmethod
    def _pop(lane: LaneRecord, limit: int) -> list[TaskRecord]:
        queue = lane.tasks
        if not lane.tombstones:
            if limit >= len(queue):
                taken = list(queue)
                queue.clear()
                return taken
            popleft = queue.popleft
            return [popleft() for _ in range(limit)]
        taken = []
        while queue and len(taken) < limit:
            task = queue.popleft()
            if task.state == WAITING:
                taken.append(task)
            else:
                lane.tombstones -= 1
        return taken

    def drop_session(self, session: SessionRecord) -> None:
        """A root session is over: its lanes are empty by now."""
        for key in [key for key in self._lanes if key[0] is session]:
            self._lanes.pop(key).tasks.clear()
        used = {lane.requirement for lane in self._lanes.values()}
        for requirement in [requirement for requirement in self._requirements if requirement not in used]:
            del self._requirements[requirement]
