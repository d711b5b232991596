"""Who is next: the tasks that wait for a worker.

Tasks stand in *lanes*: one per (root session, priority, depth, requirement), first come first served, but that nodes of
a graph are served in its order as soon as they are ready. For every offer
(what the workers of a class of agents can take) there is a heap of *rounds*, one per priority; a round is a heap of the
sessions that have something for it, each with a heap of its lanes. Order: the greatest priority, where one step of
priority is worth AGEING_SECONDS of waiting; then the session that was served least (one that comes back from idling
starts level with the others); then the deepest lane; then the oldest task.

An entry of a heap is looked at when it comes up, and goes back where its key has grown meanwhile, so a decision costs
O(log lanes), however many priorities, sessions and requirements there are. A key that has become smaller is not
noticed in one place: where a session is served elsewhere, and the one that follows it in a round has waited longer,
the round has that longer wait counted once it comes up, or is served.

A lane is known as long as a session remembers a group of it, or a task waits in it.

Invariants: a lane with tasks is in the round of every offer that fits it; `count` is the number of WAITING tasks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from scaler_scheduler.core.records import WAITING, LaneRecord, Offer, Requirement, SessionRecord, TaskRecord

AGEING_SECONDS = 60.0
QUANTUM = 32
"""Tasks taken from one lane while others wait too."""
TOLD = 100
"""Requirements at a time of which it is said that nobody meets them."""
_VOID_ENTRIES = 64


class _Round:
    """The lanes of one priority that one offer can serve, by session."""

    __slots__ = ("_lanes", "_turns", "key")

    def __init__(self) -> None:
        self.key = math.inf
        """Its place among the rounds of the offer; it may wait behind it, but not for longer than the key says."""
        self._turns: list[tuple[int, int, int, SessionRecord]] = []
        self._lanes: dict[SessionRecord, list[tuple[int, int, int, LaneRecord]]] = {}

    def add(self, lane: LaneRecord) -> None:
        """This lane has tasks."""
        session = lane.session
        lanes = self._lanes.get(session)
        if lanes is None:
            lanes = self._lanes[session] = []
            heapq.heappush(self._turns, _turn(session))
        heapq.heappush(lanes, (-lane.depth, lane.first.id, id(lane), lane))

    def next(self) -> LaneRecord | None:
        """The lane whose turn it is."""
        while self._turns:
            served, _, _, session = self._turns[0]
            lanes = self._lanes[session]
            while lanes and not lanes[0][-1].size:
                heapq.heappop(lanes)
            if not lanes:
                heapq.heappop(self._turns)
                del self._lanes[session]
            elif served != session.served:
                heapq.heapreplace(self._turns, _turn(session))
            else:
                return lanes[0][-1]
        return None

    def take_out(self, lane: LaneRecord) -> bool:
        """Remove the lane that `next` has named; returns whether it was the only one."""
        heapq.heappop(self._lanes[lane.session])
        return not self._lanes[lane.session] and len(self._turns) == 1


def _turn(session: SessionRecord) -> tuple[int, int, int, SessionRecord]:
    """A session's place in a round; one that ended may still stand there when its number comes back."""
    return session.served, session.number, id(session), session


class _Choice:
    """What one offer can serve: a round per priority, and whose turn it is among them."""

    __slots__ = ("_order", "rounds")

    def __init__(self) -> None:
        self.rounds: dict[int, _Round] = {}
        self._order: list[tuple[float, int]] = []
        """A heap of keys and priorities; an entry whose key is not that of its round is void."""

    def add(self, lane: LaneRecord) -> None:
        """This lane has tasks."""
        current = self.rounds.get(lane.priority)
        if current is None:
            current = self.rounds[lane.priority] = _Round()
        current.add(lane)
        key = _key(lane)
        if key < current.key:
            current.key = key
            heapq.heappush(self._order, (key, lane.priority))
            if len(self._order) > _VOID_ENTRIES + 2 * len(self.rounds):
                self._order = [(each.key, priority) for priority, each in self.rounds.items()]
                heapq.heapify(self._order)

    def next(self) -> LaneRecord | None:
        """The lane to serve: of the greatest priority, aged by how long the lane has waited whose turn it is there."""
        while self._order:
            key, priority = self._order[0]
            current = self.rounds.get(priority)
            if current is None or current.key != key:
                heapq.heappop(self._order)
                continue
            lane = current.next()
            if lane is None:
                heapq.heappop(self._order)
                del self.rounds[priority]
                continue
            if _key(lane) <= key:
                return lane
            current.key = _key(lane)
            heapq.heapreplace(self._order, (current.key, priority))
        return None

    def take_out(self, lane: LaneRecord) -> bool:
        """Remove the lane that `next` has named; returns whether it was the only one."""
        if not self.rounds[lane.priority].take_out(lane):
            return False
        if len(self.rounds) == 1:
            return True
        first = heapq.heappop(self._order)
        other = self.next()
        heapq.heappush(self._order, first)
        return other is None


def _key(lane: LaneRecord) -> float:
    """The smallest goes first: when the lane was served last, in seconds, earlier by what its priority is worth."""
    return lane.since - AGEING_SECONDS * lane.priority


class WaitingRoom:
    """All waiting tasks."""

    def __init__(self) -> None:
        self.count = 0
        self._lanes: dict[Requirement, dict[LaneRecord, None]] = {}
        self._requirements: dict[Requirement, list[_Choice]] = {}
        self._choices: dict[Offer, _Choice] = {}
        self._told: set[Requirement] = set()
        """Requirements that no offer meets, as has been said: until one does, or no session has them."""
        self._round = 0

    def lane(self, session: SessionRecord, priority: int, depth: int, requirement: Requirement) -> LaneRecord:
        """The lane for such tasks."""
        key = (priority, depth, requirement)
        lane = session.lanes.get(key)
        if lane is None:
            lane = session.lanes[key] = LaneRecord(session, priority, depth, requirement)
            if requirement not in self._requirements:
                self._requirements[requirement] = [
                    choice for offer, choice in self._choices.items() if not requirement.lacking(offer)
                ]
                self._lanes[requirement] = {}
            self._lanes[requirement][lane] = None
            lane.known = True
        return lane

    def let_go(self, lane: LaneRecord) -> None:
        """A group of the lane is remembered no more: the lane goes with the last one, or with its last task."""
        lane.groups -= 1
        self._tidy(lane)

    def _tidy(self, lane: LaneRecord) -> None:
        """Forget the lane, should nobody need it any more."""
        if lane.known and lane.groups <= 0 and lane.size <= lane.tombstones:
            del lane.session.lanes[lane.priority, lane.depth, lane.requirement]
            lane.tasks.clear()
            lane.ready.clear()
            lane.tombstones, lane.listed = 0, False
            self._forget(lane)

    def _forget(self, lane: LaneRecord) -> None:
        lane.known = False
        lanes = self._lanes[lane.requirement]
        del lanes[lane]
        if not lanes:
            del self._lanes[lane.requirement], self._requirements[lane.requirement]
            self._told.discard(lane.requirement)

    def add_offer(self, offer: Offer) -> None:
        """Agents of this class exist from now on."""
        if offer in self._choices:
            return
        choice = self._choices[offer] = _Choice()
        for requirement, choices in self._requirements.items():
            if not requirement.lacking(offer):
                choices.append(choice)
                self._told.discard(requirement)
                for lane in self._lanes[requirement]:
                    if lane.listed:
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

    def unserved(self) -> list[Requirement]:
        """What tasks wait for that no class of agents can take."""
        return [
            requirement
            for requirement, choices in self._requirements.items()
            if not choices and any(lane.size > lane.tombstones for lane in self._lanes[requirement])
        ]

    def is_news(self, requirement: Requirement) -> bool:
        """Whether it is still to be said that nobody can take such tasks; from now on that has been said."""
        if requirement in self._told or len(self._told) >= TOLD:
            return False
        self._told.add(requirement)
        return True

    def add(
        self, tasks: Sequence[TaskRecord], lane: LaneRecord, now: float, *, first: bool = False, soon: bool = False
    ) -> None:
        """Tasks begin to wait in their lane: at its end; `first`, before all others, where they had been dispatched
        before; or `soon`, where the lane has ready tasks, and its turn is what it was."""
        if not lane.known:  # nobody waited in it, and its groups were forgotten, but not what they had dispatched
            lane = self.lane(lane.session, lane.priority, lane.depth, lane.requirement)
            for task in tasks:
                task.group.lane = lane
        queue, before = lane.tasks, lane.size
        if first:
            queue.extendleft(tasks)
        elif soon:
            for task in tasks:
                graph = task.more().graph
                heapq.heappush(lane.ready, (graph.number if graph else 0, task.id, id(task), task))
        else:
            queue.extend(tasks)
        added = lane.size - before
        if not added:
            return
        self.count += added
        root = lane.session
        if not root.waiting:
            root.served = max(root.served, self._round)
        root.waiting += added
        if first or not lane.listed:
            self._list(lane, now)

    def _list(self, lane: LaneRecord, now: float) -> None:
        if not lane.listed:
            lane.since = now
        lane.listed = True
        for choice in self._requirements[lane.requirement]:
            choice.add(lane)

    def forget(self, task: TaskRecord) -> None:
        """A waiting task does not wait any more: the caller changes its state, its place is passed over later."""
        lane = task.group.lane
        self.count -= 1
        lane.session.waiting -= 1
        lane.tombstones += 1
        if lane.tombstones > 64 and lane.tombstones > lane.size // 2:
            alive = [waiting for waiting in lane.tasks if waiting.state == WAITING and waiting is not task]
            ready = [entry for entry in lane.ready if entry[-1].state == WAITING and entry[-1] is not task]
            lane.tombstones = 0
            if not alive and not ready:  # rounds drop a lane that is empty, and it would still count as listed
                alive, lane.tombstones = [task], 1
            lane.tasks.clear()
            lane.tasks.extend(alive)
            lane.ready = ready
            heapq.heapify(lane.ready)
        self._tidy(lane)

    def take_out(self, task: TaskRecord) -> None:
        """A waiting task runs already: its place goes with it, for it may wait again."""
        lane = task.group.lane
        self.count -= 1
        lane.session.waiting -= 1
        if task in lane.tasks:  # it was put in front
            lane.tasks.remove(task)
        else:
            lane.ready = [entry for entry in lane.ready if entry[-1] is not task]
            heapq.heapify(lane.ready)
        lane.listed = lane.listed and bool(lane.size)
        self._tidy(lane)

    def take(self, offer: Offer, limit: Callable[[LaneRecord], int], now: float) -> list[TaskRecord]:
        """The next tasks for workers of this class, all of one lane, at most `limit(lane)`; or none."""
        choice = self._choices[offer]
        while lane := choice.next():
            room = limit(lane)
            if not room:
                break
            alone = choice.take_out(lane)
            taken = self._pop(lane, room if alone else min(room, QUANTUM))
            if taken:
                root = lane.session
                self._round = max(self._round, root.served)
                root.served += len(taken)
                root.waiting -= len(taken)
                self.count -= len(taken)
                lane.since = now
            if lane.size:
                choice.add(lane)
            else:
                lane.listed = False
                self._tidy(lane)
            if taken:
                return taken
        return []

    @staticmethod
    def _pop(lane: LaneRecord, limit: int) -> list[TaskRecord]:
        queue = lane.tasks
        if not lane.tombstones and not lane.ready:
            if limit >= len(queue):
                taken = list(queue)
                queue.clear()
                return taken
            popleft = queue.popleft
            return [popleft() for _ in range(limit)]
        taken = []
        ready, pop = lane.ready, heapq.heappop
        while (ready or queue) and len(taken) < limit:
            task = pop(ready)[-1] if not queue or lane.is_ready_next() else queue.popleft()
            if task.state == WAITING:
                taken.append(task)
            else:
                lane.tombstones -= 1
        return taken

    def drop_session(self, session: SessionRecord) -> None:
        """A root session is over: its lanes have no wanted tasks left. Costs what its own lanes cost."""
        for group in session.groups.values():
            self.let_go(group.lane)
        for lane in session.lanes.values():
            lane.tasks.clear()
            lane.ready.clear()
            self._forget(lane)
        session.lanes.clear()
