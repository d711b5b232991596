"""What an event costs does not grow with what it does not concern: counted in instructions of Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import inf
from types import FrameType
from typing import Any

import pytest

from scaler_io.links.events import PeerJoined, PeerLost
from scaler_protocol.handshake import Hello, Role
from scaler_protocol.ids import first_task, function_id
from scaler_protocol.messages import AgentStatus, Done, Group, Release, Run, Submit
from scaler_protocol.payloads import Payloads
from scaler_protocol.profiles import Profile
from scaler_scheduler.core import session_ends
from scaler_scheduler.core.config import SchedulerConfig
from scaler_scheduler.core.core import SchedulerCore

FUNCTION = function_id(b"body")
CLIENT, SESSION = b"c".ljust(16), 5
FEW, MANY = 20, 400
LINUX: Any = {"capability_names": ("linux",), "capability_values": (-1,)}
WORKERS = 2


def instructions(act: Callable[[], object]) -> int:
    """Instructions of Python that `act` executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


class Scheduler:
    """A core with agents that hold `held` runs each, and a client with `waiting` further tasks, of these groups."""

    def __init__(self, agents: int, held: int = 0, waiting: int = 0, groups: tuple[Group, ...] = (Group(FUNCTION),)):
        self.core, self.now, self.next = SchedulerCore(3, SchedulerConfig()), 0.0, first_task(SESSION)
        self.runs: dict[bytes, list[tuple[int, int]]] = {}
        self.join(Role.CLIENT, CLIENT, session=SESSION)
        for number in range(agents):
            self.join(Role.AGENT, agent(number), workers=WORKERS, queue_size=1000, **LINUX)
        self.turn()
        self.submit(agents * held + waiting, groups)
        self.turn()
        for _ in range(3):  # whatever was to be compared has been
            self.turn(0.05)

    def join(self, role: int, identity: bytes, **offered: Any) -> None:
        hello = Hello(role, identity, 1, **offered)
        self.core.handle(identity, PeerJoined(hello, False), self.now)

    def submit(self, count: int, groups: tuple[Group, ...]) -> None:
        for at in range(0, count, 1000):
            ids = range(self.next, self.next + min(1000, count - at))
            self.next = ids.stop
            which = [task % len(groups) for task in ids] if len(groups) > 1 else ()
            first = not at
            calls = Payloads([b"x"] * len(ids))
            defined: Any = {"functions": (FUNCTION,), "names": ("f",), "bodies": Payloads([b"body"])} if first else {}
            self.core.handle(CLIENT, Submit(groups, ids, calls, which, **defined), self.now)

    def turn(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for effect in self.core.settle(self.now):
            message, to = getattr(effect, "message", None), getattr(effect, "to", b"")
            if isinstance(message, Run):
                runs = range(message.first_run, message.first_run + len(message.tasks))
                self.runs.setdefault(to, []).extend(zip(runs, message.tasks, strict=True))
        self.core.due()

    def end(self, number: int) -> None:
        """An agent ends its oldest run of 10 ms, and the client releases the outcome."""
        run, task = self.runs[agent(number)].pop(0)
        profile = Profile(10_000, 0, 0, 0, 0, 1).packed()
        self.core.handle(agent(number), Done((task,), (0,), Payloads((b"r",)), (run,), profiles=profile), self.now)
        self.core.handle(CLIENT, Release((task,)), self.now)

    def report(self, number: int) -> None:
        """An agent reports its state."""
        runs = [run for run, _ in self.runs.get(agent(number), ())][:WORKERS]
        columns: Any = dict.fromkeys(("names", "pids", "states", "runs", "cpus", "rsses", "queues"), (0,) * WORKERS)
        self.core.handle(agent(number), AgentStatus(**columns | {"runs": runs + [0] * (WORKERS - len(runs))}), self.now)


def agent(number: int) -> bytes:
    return b"a%015d" % number


def cost(scheduler: Scheduler, act: Callable[[Scheduler, int], object], seconds: float = 0.02) -> int:
    """Instructions of an event and the turn after it, the mean of ten: some of these do what is due for many."""

    def event(number: int) -> None:
        act(scheduler, number)
        scheduler.turn(seconds)

    event(0)
    return sum(instructions(lambda number=number: event(number)) for number in range(1, 11)) // 10  # type: ignore[misc]


def is_flat(few: int, many: int) -> bool:
    """Whether a twentyfold number of others costs at most a quarter more."""
    return many <= 1.25 * few + 20


EVENTS: dict[str, tuple[int, int, Callable[[Scheduler, int], object]]] = {
    "nothing happens": (0, 0, lambda scheduler, number: None),
    "a report of an idle host": (0, 0, Scheduler.report),
    "a report of a busy host": (WORKERS, 0, Scheduler.report),
    "a run ends, a task waits": (WORKERS, 500, Scheduler.end),
    "a run ends, no task waits": (WORKERS, 0, Scheduler.end),
    "an idle host leaves": (
        0, 0,
        lambda scheduler, number: scheduler.core.handle(agent(number), PeerLost("", farewell=True), scheduler.now),
    ),
    "a busy host leaves": (
        WORKERS, 500,
        lambda scheduler, number: scheduler.core.handle(agent(number), PeerLost("", farewell=True), scheduler.now),
    ),
}  # fmt: skip
"""Runs of each host, tasks that wait, and the event, which concerns one host."""


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_costs_the_same_with_many_hosts(name: str) -> None:
    held, waiting, act = EVENTS[name]
    few, many = (cost(Scheduler(hosts, held, waiting), act) for hosts in (FEW, MANY))
    assert is_flat(few, many), (few, many)


def test_a_session_that_leaves_costs_the_same_with_many_others() -> None:
    def leave(scheduler: Scheduler, number: int) -> None:
        scheduler.core.handle(b"s%015d" % number, PeerLost("", farewell=True), scheduler.now)

    costs = []
    for sessions in (FEW, MANY):
        scheduler = Scheduler(FEW)
        for number in range(sessions):
            scheduler.join(Role.CLIENT, b"s%015d" % number, session=100 + number)
        scheduler.turn()
        costs.append(cost(scheduler, leave))
    assert is_flat(*costs), costs


def test_a_client_leaves_many_tasks_which_are_forgotten_a_few_at_a_time() -> None:
    costs = []
    for waiting in (5_000, 20_000):
        scheduler = Scheduler(FEW, WORKERS, waiting)
        scheduler.core.handle(CLIENT, PeerLost("", farewell=True), scheduler.now)
        turns = 0
        while scheduler.core.due() == -inf:
            costs.append(instructions(scheduler.turn))
            turns += 1
            scheduler.core.check()
        assert turns == waiting // session_ends.TASKS
    assert max(costs) < 200 * session_ends.TASKS, max(costs)


@pytest.mark.parametrize("kind", ["priorities", "requirements"])
def test_a_decision_costs_the_same_with_many_kinds_of_tasks(kind: str) -> None:
    costs = []
    for count in (2, 200):
        many = tuple(
            Group(FUNCTION, priority=number) if kind == "priorities" else Group(FUNCTION, ("linux",), (1 + number,))
            for number in range(count)
        )
        costs.append(cost(Scheduler(FEW, WORKERS, 2000, many), Scheduler.end))
    assert is_flat(*costs), costs


NODE_INSTRUCTIONS = 2_600
"""Most instructions of Python for a node that needs three others, on hosts with two workers, from Submit to its end."""


def node_cost(layers: int, width: int = 100) -> float:
    """Instructions per node of a graph in which each needs three of the layer before, on hosts that end all runs."""
    scheduler, count, first = Scheduler(FEW), layers * width, first_task(SESSION) + 1000
    needs = [first + (at // width - 1) * width + (at + step) % width for at in range(width, count) for step in range(3)]

    def submit(begin: int, end: int) -> None:
        of_these = slice(3 * max(0, begin - width), 3 * (end - width))
        columns: Any = {
            "dependents": [at - begin for at in range(max(begin, width), end) for _ in range(3)],
            "needs": needs[of_these],
            "consumers": [3 if at < count - width else 0 for at in range(begin, end)],
            "intermediate": [at - begin for at in range(begin, end) if at < count - width],
        }
        if not begin:
            columns |= {"functions": (FUNCTION,), "names": ("f",), "bodies": Payloads([b"body"])}
        calls = Payloads([b"x"] * (end - begin))
        event = Submit(
            (Group(FUNCTION),), range(first + begin, first + end), calls, graph=first, graph_size=count, **columns
        )
        scheduler.core.handle(CLIENT, event, scheduler.now)

    def run() -> None:
        for begin in range(0, count, width):
            submit(begin, begin + width)
        scheduler.turn()
        while scheduler.runs:
            given, scheduler.runs = scheduler.runs, {}
            for host, runs in given.items():
                profiles = Profile(10_000, 0, 0, 0, 0, 1).packed() * len(runs)
                numbers, tasks = zip(*runs, strict=True)
                done = Done(tasks, (0,) * len(runs), Payloads([b"r"] * len(runs)), numbers, profiles=profiles)
                scheduler.core.handle(host, done, scheduler.now)
            scheduler.turn(0.1)

    spent = instructions(run)
    assert scheduler.core.state.event_log.unfinished == 0
    scheduler.core.check()
    return spent / count


def test_a_node_costs_few_instructions_however_large_its_graph_is() -> None:
    few, many = node_cost(5), node_cost(25)
    assert max(few, many) < NODE_INSTRUCTIONS and is_flat(int(few), int(many)), (few, many)


def test_a_task_costs_the_same_with_many_priorities_and_little_more_than_one_among_its_like() -> None:
    """Each task has a lane of its own; a host has room for many."""
    submitted, given = {}, {}
    for count in (1, 1, 200, 2000):  # the first time, functions are made that stay
        scheduler = Scheduler(0)
        scheduler.join(Role.AGENT, agent(0), workers=100, queue_size=1000, **LINUX)
        scheduler.turn()
        groups, tasks = tuple(Group(FUNCTION, priority=number) for number in range(count)), max(200, count)
        submitted[count] = instructions(partial(scheduler.submit, tasks, groups)) // tasks
        given[count] = instructions(scheduler.turn) // 100
        assert len(scheduler.runs[agent(0)]) == 100
    assert is_flat(submitted[200], submitted[2000]), submitted
    assert is_flat(given[200], given[2000]), given
    assert given[2000] < 4.5 * given[1], given
