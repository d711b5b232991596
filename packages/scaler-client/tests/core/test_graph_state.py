"""GraphTasks: which nodes are needed, resent and rerun, compared with loops over all nodes until nothing changes."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_client.core.graph_state import GraphPiece, GraphTasks
from scaler_client.core.records import CallGroup, Dependency, OutstandingCall
from scaler_client.objects.handles import StoredObject, StoredPayload
from scaler_client.payloads import pickles
from scaler_protocol.messages import Group, Status

FIRST = 10
GROUP = CallGroup(Group(b"f"), (), pickles.load, pickle.dumps)
ENDED = Status.VALUE, b"value"


@dataclass(eq=False)
class RequestedNode:
    """A requested node, and its result lease."""

    graph: GraphTasks
    task_id: int
    inputs: Sequence[int]
    asked: Counter[int]
    known: tuple[int, bytes] | None = None
    _group: CallGroup = GROUP
    _weight: int = 0

    def _call_of(self, task: int) -> bytes:
        return b"call"

    def _needs_of(self, task: int) -> list[Dependency]:
        self.asked[task] += 1
        return [self.graph.need(task) for task in self.inputs]

    def outcome(self) -> tuple[int, bytes] | None:
        return self.known


@dataclass(eq=False)
class CountedPiece(GraphPiece):
    asked: Counter[int] = field(default_factory=Counter)

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        self.asked[task] += 1
        return super()._needs_of(task)


@dataclass
class MadeNode:
    """The task that makes an intermediate node again, as an input."""

    task_id: int
    known: tuple[int, bytes] | None

    def outcome(self) -> tuple[int, bytes] | None:
        return self.known


class SubmittedGraph:
    """A graph of which all has been submitted, in pieces of `size` nodes; `asked` counts looks at a node's inputs."""

    def __init__(self, inputs: Mapping[int, Sequence[int]], requested: Iterable[int], size: int) -> None:
        self.inputs = inputs
        self.asked: Counter[int] = Counter()
        self.graph = graph = GraphTasks(range(FIRST, FIRST + len(inputs)), lambda task, failed: "")
        self.outstanding: dict[int, OutstandingCall] = {}
        for task in requested:
            node = RequestedNode(graph, task, inputs[task], self.asked)
            graph.requested[task] = graph.leases[task] = self.outstanding[task] = node
        for first in range(FIRST, FIRST + len(inputs), size):
            tasks = range(first, min(first + size, FIRST + len(inputs)))
            pairs = [(task - first, need) for task in tasks for need in inputs[task]]
            piece = CountedPiece(
                graph=graph, first=first, groups={GROUP: 0}, numbers=[0] * len(tasks), calls=[b"call"] * len(tasks),
                dependents=[at for at, _ in pairs], needs=[need for _, need in pairs], consumers=[], intermediate=[],
                others={}, requested={}, asked=self.asked,
            )  # fmt: skip
            graph.pieces.append(piece)
            self.outstanding |= {task: piece for task in tasks if task not in graph.requested}

    def finish(self, task: int, outcome: tuple[int, bytes]) -> None:
        """The outcome of a node is here."""
        if task not in self.graph.leases:
            self.graph.outcomes[task] = outcome
            return
        node = self.graph.leases[task]
        assert isinstance(node, RequestedNode)
        node.known = outcome
        del self.graph.requested[task], self.outstanding[task]

    def missing(self, task: int) -> set[int]:
        """The direct inputs of a node that has not ended, without an outcome here."""
        if task not in self.outstanding:
            return set()
        return {each for each in self.inputs[task] if self.graph.need(each).outcome() is None}

    def needed(self, start: set[int]) -> set[int]:
        """By definition: the start, and all that a needed node is missing."""
        while True:
            more = start.union(*map(self.missing, start))
            if more == start:
                return start
            start = more


class LostNodes:
    """By definition: a lost node is resent once it is wanted; the missing inputs of a resent node are wanted."""

    def __init__(self, submitted: SubmittedGraph, wanted: set[int]) -> None:
        self.submitted, self.wanted, self.lost = submitted, set(wanted), set[int]()

    def resend(self, tasks: Iterable[int]) -> list[int]:
        self.lost |= set(tasks)
        resent = set[int]()
        while found := next((task for task in self.lost if task in self.wanted), None):
            self.lost.remove(found)
            resent.add(found)
            self.wanted |= self.submitted.missing(found)
        return sorted(resent)


def subsets(tasks: Iterable[int]) -> st.SearchStrategy[set[int]]:
    known = sorted(tasks)
    return st.sets(st.sampled_from(known)) if known else st.builds(set)


@st.composite
def submitted_graphs(draw: st.DrawFn) -> SubmittedGraph:
    """Any graph of which at least one requested node is unfinished."""
    count = draw(st.integers(1, 12))
    tasks = range(FIRST, FIRST + count)
    inputs = {task: sorted(draw(subsets(range(FIRST, task)))) for task in tasks}
    requested = draw(subsets(tasks)) | {draw(st.sampled_from(tasks))}
    submitted = SubmittedGraph(inputs, requested, draw(st.integers(1, count)))
    stored = StoredPayload.of(StoredObject(NoBackend(), bytes(24)))
    outcomes = st.sampled_from([ENDED, (Status.VALUE, stored), (Status.FAILED, b"why")])
    for task in draw(subsets(tasks)):
        if set(submitted.graph.requested) != {task}:
            submitted.finish(task, draw(outcomes))
    for task in draw(subsets(tasks)):  # these were cancelled
        if task not in submitted.graph.requested:
            submitted.outstanding.pop(task, None)
    return submitted


class NoBackend:
    """An ObjectBackend without objects."""

    def fetch(self, reference: bytes, timeout: float = 0.0) -> bytes:
        raise AssertionError("nothing is fetched")

    def free(self, reference: bytes) -> None: ...


@given(submitted_graphs(), st.data())
def test_what_is_looked_for_and_resent_after_a_restart(submitted: SubmittedGraph, data: st.DataObject) -> None:
    graph, outstanding = submitted.graph, submitted.outstanding
    unsent = data.draw(subsets(graph.tasks))
    needed = submitted.needed({*graph.requested, *unsent})
    assert graph.resume(outstanding, unsent) == set(graph.tasks) - needed
    wanted = set(graph.requested).union(*map(submitted.missing, unsent))
    assert graph.wanted == wanted
    definition = LostNodes(submitted, wanted)
    for _ in range(data.draw(st.integers(1, 4))):
        lost = data.draw(subsets(needed - unsent))
        assert graph.resend(lost, outstanding) == definition.resend(lost)
        assert graph.lost_nodes == definition.lost and not graph.lost_nodes & graph.wanted


@given(submitted_graphs(), st.data())
def test_what_is_rerun_for_requested_nodes(submitted: SubmittedGraph, data: st.DataObject) -> None:
    graph = submitted.graph
    requested = data.draw(st.sets(st.sampled_from(sorted(graph.requested)), min_size=1))
    values = {task for task, found in graph.outcomes.items() if found == ENDED}
    ends = st.sampled_from([None, ENDED, (Status.FAILED, b"why"), (Status.CANCELLED, b"")])
    made = {
        task: MadeNode(100 + task, data.draw(ends)) for task in data.draw(subsets(graph.tasks)) - graph.leases.keys()
    }
    graph.made_again.update(made)
    used = {task for task, node in made.items() if node.known in (None, ENDED)}
    values |= used
    rerun: set[int] = set()
    while True:
        inputs = {each for task in {*requested, *rerun} for each in submitted.inputs[task]}
        more = {each for each in inputs if each not in graph.leases and each not in values}
        if more == rerun:
            break
        rerun = more
    outcomes = dict(graph.outcomes)
    pieces = graph.rerun(requested)
    assert list(pieces) == sorted(rerun, reverse=True)
    assert all(task in piece.tasks for task, piece in pieces.items())
    assert graph.outcomes == {task: found for task, found in outcomes.items() if task not in rerun}
    for task in set(graph.tasks) - graph.leases.keys():
        expected = (made[task].task_id, made[task].known) if task in used else (task, graph.outcomes.get(task))
        assert (graph.need(task).task_id, graph.need(task).outcome()) == expected


def chain(length: int, ends: int) -> SubmittedGraph:
    """A chain of nodes, whose last one is the input of each requested node."""
    inputs: dict[int, Any] = {FIRST + each: [FIRST + each - 1] if each else [] for each in range(length)}
    requested = range(FIRST + length, FIRST + length + ends)
    inputs |= {task: [FIRST + length - 1] for task in requested}
    return SubmittedGraph(inputs, requested, 100)


@pytest.mark.parametrize("work", ["resume", "resend", "rerun"])
def test_the_inputs_of_each_node_are_looked_at_once(work: str) -> None:
    submitted = chain(1000, 50)
    graph = submitted.graph
    if work == "resume":
        assert not graph.resume(submitted.outstanding, ())
    elif work == "resend":
        graph.resume(submitted.outstanding, ())
        submitted.asked.clear()
        assert graph.resend(graph.tasks, submitted.outstanding) == list(graph.tasks)
    else:
        assert len(graph.rerun(list(graph.requested))) == 1000
    assert set(submitted.asked.values()) == {1} and len(submitted.asked) == len(graph.tasks)
