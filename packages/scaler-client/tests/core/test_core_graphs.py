"""Graphs in ClientCore: what a scheduler that was started again is told of them."""

from __future__ import annotations

import pytest

from scaler_client.core.core import ClientCore
from scaler_client.core.effects import Transmit
from scaler_client.core.events import TasksCancelled
from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.records import CallGroup, Dependency
from scaler_io.links.events import LinkDown, LinkUp
from scaler_protocol.handshake import Welcome
from scaler_protocol.messages import (
    Cancel,
    Done,
    Group,
    Inputs,
    Message,
    NeedInputs,
    NeedTasks,
    Reconcile,
    Release,
    Submit,
)
from scaler_protocol.payloads import Payloads

GROUP = CallGroup(Group(b"f"), (), lambda payload: payload, lambda value: b"")
NEEDS = {10: [], 11: [10], 12: [11], 13: [12], 14: [10], 15: [14], 16: [], 17: [16]}
"""Two ways that part at 10, one of them with a requested node in the middle, and one by itself."""
ASKED = (12, 13, 15, 17)


class Node:
    """A requested node; its outcome is known once the test says so."""

    _group, _weight, _call = GROUP, 0, b"call"

    def __init__(self, graph: GraphTasks, task: int) -> None:
        self.task_id = task
        self._needs: list[Dependency] = [graph.need(need) for need in NEEDS[task]]
        self.known: tuple[int, bytes] | None = None

    def _call_of(self, task: int) -> bytes:
        return self._call

    def _needs_of(self, task: int) -> list[Dependency]:
        return self._needs

    def outcome(self) -> tuple[int, bytes] | None:
        return self.known


class Driver:
    """A client's core with the graph above, in two pieces."""

    def __init__(self) -> None:
        self.core = ClientCore("tcp://127.0.0.1:2345")
        self.graph = GraphTasks(range(10, 18), lambda task, failed: "")
        self.nodes: dict[int, Node] = {}
        for task in ASKED:
            self.nodes[task] = self.graph.requested[task] = Node(self.graph, task)
            self.graph.leases[task] = self.nodes[task]
        self.connect()

    def connect(self) -> None:
        self.core.handle(LinkUp(Welcome(1), resumed=False), 0.0)

    def piece(self, first: int, end: int) -> None:
        """These nodes are handed over."""
        tasks = range(first, end)
        pairs = [(task - first, need) for task in tasks for need in NEEDS[task]]
        consumers = [sum(task in needs for needs in NEEDS.values()) for task in tasks]
        piece = GraphPiece(
            self.graph, first, {GROUP: 0}, [0] * len(tasks), [b"call"] * len(tasks),
            [at for at, _ in pairs], [need for _, need in pairs], consumers,
            [task - first for task in tasks if task not in ASKED], {},
            {task: self.nodes[task] for task in tasks if task in ASKED},
        )  # fmt: skip
        self.core.handle(piece, 0.0)

    def sent(self) -> list[Message]:
        """What the scheduler is told."""
        messages = [effect.message for effect in self.core.settle(0.0) if isinstance(effect, Transmit)]
        self.core.check()
        return messages

    def done(self, task: int) -> None:
        """A requested node has ended, or after a restart any other."""
        if task in self.nodes:
            self.nodes[task].known = (0, b"value")
        else:
            self.graph.outcomes[task] = (0, b"value")
        self.core.handle(Done([task], [0], Payloads([b"value"])), 0.0)

    def restarted(self) -> list[int]:
        """The scheduler is another one: what it is to look for."""
        self.core.handle(LinkDown("it was killed"), 0.0)
        self.connect()
        (resume,) = (message for message in self.sent() if isinstance(message, Reconcile))
        return list(resume.wanted)

    def nobody_holds(self, *tasks: int) -> list[int]:
        """What is sent again."""
        self.core.handle(NeedTasks(tasks), 0.0)
        return [task for message in self.sent() if isinstance(message, Submit) for task in message.tasks]


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.piece(10, 14)
    driver.piece(14, 18)
    assert [type(message) for message in driver.sent()] == [Submit, Submit]
    return driver


def test_all_of_a_graph_that_nobody_holds_is_sent_again(driver: Driver) -> None:
    assert driver.restarted() == [*range(10, 18)]
    assert driver.nobody_holds(*range(10, 18)) == [*range(10, 18)]


def test_what_was_delivered_is_not_sent_again_nor_what_only_that_needed(driver: Driver) -> None:
    driver.done(17)
    driver.done(12)
    assert driver.restarted() == [10, 13, 14, 15]
    assert driver.nobody_holds(10, 13, 14, 15) == [10, 13, 14, 15]
    driver.core.handle(NeedInputs([13], [12]), 0.0)
    assert [message for message in driver.sent() if isinstance(message, Inputs)] == [
        Inputs((13,), (12,), (0,), Payloads([b"value"]), ())
    ]


def test_what_was_cancelled_is_not_sent_again_nor_what_only_that_needed(driver: Driver) -> None:
    driver.core.handle(TasksCancelled([15]), 0.0)
    assert driver.sent() == [Cancel([15])]
    assert driver.restarted() == [10, 11, 12, 13, 16, 17]


def test_what_is_cancelled_after_a_restart_takes_along_what_only_it_needed(driver: Driver) -> None:
    driver.restarted()
    driver.nobody_holds(*range(10, 18))
    driver.core.handle(TasksCancelled([13]), 0.0)
    driver.core.handle(TasksCancelled([12]), 0.0)
    assert driver.sent() == [Cancel([13, 12, 11])]
    driver.core.handle(TasksCancelled([15, 17]), 0.0)
    (cancel,) = driver.sent()
    assert isinstance(cancel, Cancel) and set(cancel.tasks) == {10, 14, 15, 16, 17}


def test_nothing_is_sent_again_below_what_an_agent_has(driver: Driver) -> None:
    driver.done(12)
    assert driver.restarted() == [10, 13, 14, 15, 16, 17]
    assert driver.nobody_holds(10, 13, 15, 17) == [13, 15, 17], "14 and 16 are at an agent"
    assert driver.nobody_holds(14) == [10, 14], "it was lost there"
    driver.done(16)
    assert driver.restarted() == [10, 13, 14, 15, 17]


def test_while_it_is_not_known_what_the_rest_takes_all_is_asked_for() -> None:
    driver = Driver()
    driver.piece(10, 14)
    driver.sent()
    driver.done(12)
    driver.done(13)
    assert driver.restarted() == [10, 11]
    driver.piece(14, 18)
    assert driver.nobody_holds(10, 11) == [14, 15, 16, 17, 10, 11]


def test_what_was_not_sent_before_finds_what_it_takes() -> None:
    driver = Driver()
    driver.piece(10, 14)
    driver.sent()
    driver.core.handle(LinkDown("it was killed"), 0.0)
    driver.piece(14, 18)
    driver.done(13)
    driver.done(12)
    driver.connect()
    resume, submit, release = driver.sent()
    assert isinstance(resume, Reconcile) and list(resume.wanted) == [10]
    assert isinstance(submit, Submit) and list(submit.tasks) == [14, 15, 16, 17]
    assert release == Release([13, 12])
    assert driver.nobody_holds(10) == [10]
