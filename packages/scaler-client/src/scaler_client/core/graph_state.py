"""The state of submitted graphs, kept until their requested nodes have ended. Pure, no IO.

A graph is sent in pieces, each a Submit; a scheduler that has missed pieces gets them again. The outcomes of its
intermediate nodes stay with the scheduler. There are two exceptions: after a restart of the scheduler, nodes that no
process holds are resent as ordinary tasks; and a node that failed because an object was lost is rerun with all its
inputs. The outcomes of such nodes come to the client, which keeps them for their consumers. An input that is made again
for another requested node, by a task of its own (`scaler_client.runtime.remaking`), is not rerun: that task is used.

A restarted scheduler is asked for the nodes that are still needed: the unfinished requested ones and, transitively,
their inputs without a known outcome. Of those it does not find, only the *wanted* ones are resent: requested nodes, and
inputs of resent nodes. A node whose outcome an agent has kept makes all its inputs unwanted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from scaler_client.core.records import CallGroup, Deliver, Dependency, Dump, Outcome, OutstandingCall, ResentCall
from scaler_client.objects.handles import StoredPayload
from scaler_client.payloads.user_exceptions import add_note
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.messages import Status

F = TypeVar("F", bound=tuple[BaseException, Any])


@dataclass(slots=True, eq=False)
class GraphTasks:
    """One graph: its nodes are consecutive tasks in topological order."""

    tasks: range
    path: Callable[[int, set[int]], str]
    """Describes how a task depends on these failed tasks."""
    requested: dict[int, OutstandingCall] = field(default_factory=dict)
    """Requested nodes that have not ended."""
    outcomes: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """Outcomes of intermediate nodes: failures, and values after a restart."""
    failed: set[int] = field(default_factory=set)
    """Nodes known to have failed; the set only grows."""
    leases: dict[int, Dependency] = field(default_factory=dict)
    """Result leases of requested nodes that have consumers in the graph."""
    pieces: list[GraphPiece] = field(default_factory=list)
    """All submitted pieces, while a requested node is outstanding."""
    deferred: set[int] = field(default_factory=set)
    """Requested nodes that failed because an object was lost; rerun when all others have ended."""
    as_tasks: bool = False
    wanted: set[int] = field(default_factory=set)
    """After a restart: nodes to resend if no process holds them."""
    lost_nodes: set[int] = field(default_factory=set)
    """After a restart: nodes that no process holds and that were not resent."""
    made_again: dict[int, Dependency] = field(default_factory=dict)
    """By intermediate node, the task that makes it again for a requested node whose result was lost."""
    replaced: dict[int, Dependency] = field(default_factory=dict)
    """Those of them that rerun nodes use; changed only when nodes are rerun, as no process has their consumers then."""
    watched: bool = False
    ended: int = 0
    """Intermediate nodes that have a value; counted only if `watched`."""

    def need(self, task: int) -> Dependency:
        """One of its tasks as a dependency of another one."""
        return self.leases.get(task) or NodeNeed(self, task)

    def rerun(self, requested: Iterable[int]) -> dict[int, GraphPiece]:
        """The intermediate nodes to rerun for requested ones: all their inputs, transitively, without a value here.

        Consumers come before their inputs.
        """
        self.as_tasks = True
        self.replaced = {node: made for node, made in self.made_again.copy().items() if _may_be_used(made)}
        nodes = self._to_rerun(requested)
        for node in nodes:
            self.outcomes.pop(node, None)
        return {node: self._piece_of(node) for node in sorted(nodes, reverse=True)}

    def inputs_of(self, requested: Collection[int]) -> list[Dependency]:
        """The dependencies of requested nodes, and of the intermediate nodes that would be rerun for them now."""
        found = [need for task in requested for need in self.requested[task]._needs_of(task)]
        for node in self._to_rerun(requested):
            found += self._piece_of(node)._needs_of(node)
        return found

    def _to_rerun(self, requested: Iterable[int]) -> set[int]:
        start = {node for task in requested for node in self._without_value(self.requested[task]._needs_of(task))}
        return reachable(start, lambda node: self._without_value(self._piece_of(node)._needs_of(node)))

    def _without_value(self, needs: Iterable[Dependency]) -> set[int]:
        """The intermediate nodes among dependencies that have no value here, and are not made again."""
        nodes = {need.task_id for need in needs if need.task_id in self.tasks and need.task_id not in self.leases}
        return {node for node in nodes - self.replaced.keys() if not self._has_value(node)}

    def _has_value(self, node: int) -> bool:
        status, payload = self.outcomes.get(node, (Status.FAILED, b""))
        return status == Status.VALUE and type(payload) is not StoredPayload

    def _piece_of(self, node: int) -> GraphPiece:
        return self.pieces[bisect_right(self.pieces, node, key=_first) - 1]

    @property
    def arriving(self) -> bool:
        """Whether pieces of it are still to be submitted."""
        return sum(len(piece.calls) for piece in self.pieces) < len(self.tasks)

    def resume(self, outstanding: Mapping[int, OutstandingCall], unsent: Container[int]) -> set[int]:
        """The scheduler was restarted: the nodes it need not look for. Unsent nodes will be sent anyway."""
        self.as_tasks = True
        self.lost_nodes.clear()
        self.deferred.clear()
        if self.arriving:
            self.wanted = set(self.tasks)
        else:
            self.wanted = set(self.requested)
            for task in filter(unsent.__contains__, self.tasks):
                self.wanted |= self._missing(task, outstanding)
        return self.unneeded(outstanding, unsent)

    def unneeded(self, outstanding: Mapping[int, OutstandingCall], unsent: Container[int]) -> set[int]:
        """The nodes that neither a requested nor an unsent node depends on, directly or transitively."""
        if self.arriving:  # pieces still to come may depend on any node
            return set()
        start = {*self.requested, *filter(unsent.__contains__, self.tasks)}
        needed = reachable(start, lambda task: self._missing(task, outstanding))
        return {task for task in self.tasks if task not in needed}

    def resend(self, tasks: Iterable[int], outstanding: Mapping[int, OutstandingCall]) -> list[int]:
        """No process holds these nodes: which of them, and of those lost before, to resend, in topological order.

        Invariant between calls: no lost node is wanted, as it would have been resent.
        """

        def lost_inputs(resent: int) -> set[int]:
            missing = self._missing(resent, outstanding)
            self.wanted |= missing
            return missing & self.lost_nodes

        self.lost_nodes.update(tasks)
        again = reachable(self.lost_nodes & self.wanted, lost_inputs)
        self.lost_nodes -= again
        return sorted(again)

    def _missing(self, task: int, outstanding: Mapping[int, OutstandingCall]) -> set[int]:
        """The direct inputs of a node whose outcomes are not here."""
        if (call := outstanding.get(task)) is None:
            return set()
        needs = [need for need in call._needs_of(task) if need.task_id in self.tasks and need.outcome() is None]
        return {need.task_id for need in needs} - self.replaced.keys()


def reachable(start: Iterable[int], inputs_of: Callable[[int], Iterable[int]]) -> set[int]:
    """The nodes of `start` and, transitively, all their inputs. Linear: each node's inputs are asked for once.

    Invariant of the loop: all inputs of a reached node are reached, unless it is still waiting.
    """
    reached = set(start)
    waiting = list(reached)
    while waiting:
        for task in inputs_of(waiting.pop()):
            if task not in reached:
                reached.add(task)
                waiting.append(task)
    return reached


@dataclass(frozen=True, slots=True)
class NodeNeed:
    """An intermediate node as a dependency of another one."""

    graph: GraphTasks
    node: int

    @property
    def task_id(self) -> int:
        """The task whose result is used: that of the node, or the one that makes it again."""
        made = self.graph.replaced.get(self.node)
        return self.node if made is None else made.task_id

    def outcome(self) -> Outcome | Dump | None:
        """Status and payload; None while they are not here."""
        made = self.graph.replaced.get(self.node)
        return self.graph.outcomes.get(self.node) if made is None else made.outcome()


class FailurePayload(bytes):
    """The outcome of a failed node, with the path from it to the node that failed first."""

    path: Callable[[], str]


@dataclass(slots=True, eq=False)
class GraphPiece:
    """Consecutive nodes of a graph. `needs` are task ids, `dependents` the positions of their consumers, ascending."""

    graph: GraphTasks
    first: int
    groups: Mapping[CallGroup, int]
    """Its groups and their numbers."""
    numbers: list[int]
    """The group of each node."""
    calls: list[bytes]
    dependents: list[int]
    needs: list[int]
    consumers: list[int]
    intermediate: list[int]
    others: Mapping[int, Sequence[Dependency]]
    """By position, the dependencies that are not nodes of this graph; `needs` contains them, too."""
    requested: Mapping[int, OutstandingCall]

    _weight = 0
    task_id = 0
    """No id: a piece is sent as a whole, whichever of its tasks is cancelled."""

    @property
    def tasks(self) -> range:
        """The ids of its tasks."""
        return range(self.first, self.first + len(self.calls))

    @property
    def _group(self) -> CallGroup:
        """One of its groups; see `groups`."""
        return next(iter(self.groups))

    @property
    def parent(self) -> int:
        """The run that submits it."""
        return self._group.parent

    def _call_of(self, task: int) -> bytes:
        """The payload of one of its tasks."""
        return self.calls[task - self.first]

    def _needs_of(self, task: int) -> Sequence[Dependency]:
        """The dependencies of one of its tasks."""
        at = task - self.first
        own = self.needs[bisect_left(self.dependents, at) : bisect_right(self.dependents, at)]
        others = self.others.get(at, ())
        return [*(self.graph.need(need) for need in own if need in self.graph.tasks), *others]

    def resent_call(self, task: int) -> ResentCall:
        """One of its tasks, to be resent."""
        group = list(self.groups)[self.numbers[task - self.first]]
        return ResentCall(task, group, 0, self._call_of(task), self._needs_of(task))

    def has(self, task: int) -> bool:
        """Whether the outcome of an intermediate node is here."""
        return task in self.graph.outcomes

    def take(self, task: int, status: int, payload: bytes) -> bool:
        """Note the outcome of an intermediate node; False, as no thread waits for it."""
        self.graph.outcomes[task] = (status, payload)
        if status != Status.VALUE:
            self.graph.failed.add(task)
        return False


class GraphTable:
    """The graphs of a client with unfinished requested nodes, by requested node."""

    def __init__(self) -> None:
        self._graphs: dict[int, GraphTasks] = {}
        self._deferred: dict[GraphTasks, None] = {}

    def __bool__(self) -> bool:
        return bool(self._graphs)

    def __contains__(self, task: object) -> bool:
        return task in self._graphs

    def add(self, piece: GraphPiece) -> None:
        """Add a submitted piece."""
        piece.graph.pieces.append(piece)
        for task in piece.requested:
            self._graphs[task] = piece.graph

    def ended(self, tasks: Iterable[int]) -> list[GraphTasks]:
        """These tasks have ended or were cancelled; returns the graphs without requested nodes left."""
        over = []
        for task in tasks:
            graph = self._graphs.pop(task, None)
            if graph is not None and graph.requested.pop(task, None) is not None and not graph.requested:
                graph.pieces = []  # lineages may refer to them
                over.append(graph)
        return over

    def defer(self, tasks: Iterable[int]) -> list[int]:
        """These tasks failed because an object was lost; returns those outside of graphs, to be rerun at once."""
        others = []
        for task in tasks:
            if (graph := self._graphs.get(task)) is None:
                others.append(task)
            else:
                graph.deferred.add(task)
                self._deferred[graph] = None
        return others

    def is_deferred(self, task: int) -> bool:
        """Whether this requested node has failed and waits until all others of its graph have ended."""
        return (graph := self._graphs.get(task)) is not None and task in graph.deferred

    def ready_to_rerun(self) -> list[int]:
        """The requested nodes to rerun now, because all unfinished nodes of their graphs are deferred."""
        tasks: list[int] = []
        for graph in [graph for graph in self._deferred if graph.requested.keys() <= graph.deferred]:
            del self._deferred[graph]
            tasks += graph.requested
            graph.deferred.clear()
        return tasks

    def rerun(self, tasks: Iterable[int]) -> dict[int, GraphPiece]:
        """The intermediate nodes to rerun for these tasks."""
        requested = self._by_graph(tasks)
        return {node: piece for graph, nodes in requested.items() for node, piece in graph.rerun(nodes).items()}

    def inputs_of(self, tasks: Iterable[int]) -> list[Dependency]:
        """The dependencies of those of these tasks that are requested nodes, and of what is rerun for them."""
        return [need for graph, nodes in self._by_graph(tasks).items() for need in graph.inputs_of(nodes)]

    def _by_graph(self, tasks: Iterable[int]) -> dict[GraphTasks, list[int]]:
        requested: dict[GraphTasks, list[int]] = {}
        for task in tasks:
            if (graph := self._graphs.get(task)) is not None:
                requested.setdefault(graph, []).append(task)
        return requested

    def resume(
        self, outstanding: Mapping[int, OutstandingCall], unsent: Container[int], *, in_pieces: bool
    ) -> list[int]:
        """The scheduler was restarted, or may have missed messages: the tasks that it is to look for.

        `in_pieces`: it knows the graphs of which it has received pieces, and is to look for the others.
        """
        spare, firsts = set[int](), set[int]()
        for graph in self._all(outstanding):
            if in_pieces and not graph.as_tasks:
                firsts.update(piece.first for piece in graph.pieces if piece.first not in unsent)
                spare.update(graph.tasks)
                spare -= graph.requested.keys()
            else:
                spare |= graph.resume(outstanding, unsent)
        wanted = [task for task in outstanding if task not in unsent and task not in spare]
        return [*wanted, *firsts.difference(wanted)]

    def _all(self, outstanding: Mapping[int, OutstandingCall]) -> set[GraphTasks]:
        """The unfinished graphs, and those of which no requested node was submitted yet."""
        pieces = {call for call in outstanding.values() if isinstance(call, GraphPiece)}
        return {*self._graphs.values(), *(piece.graph for piece in pieces)}

    def missed_pieces(self, tasks: Iterable[int], outstanding: Mapping[int, OutstandingCall]) -> list[GraphPiece]:
        """The pieces that begin with one of these tasks, of graphs that are sent in pieces: they were not received."""
        missed = set(tasks)
        graphs = [graph for graph in self._all(outstanding) if not graph.as_tasks]
        return [piece for graph in graphs for piece in graph.pieces if piece.first in missed]

    def as_tasks(self, tasks: Iterable[int]) -> set[GraphTasks]:
        """Of the graphs of these requested nodes, those whose nodes the scheduler treats as ordinary tasks."""
        graphs = {graph for task in tasks if (graph := self._graphs.get(task)) is not None}
        return {graph for graph in graphs if graph.as_tasks}

    def resend(self, tasks: Iterable[int], outstanding: Mapping[int, OutstandingCall]) -> list[int]:
        """No process holds these tasks: those to resend one by one, nodes and others."""
        again: list[int] = []
        nodes: dict[GraphTasks, list[int]] = {}
        for task in tasks:
            call = outstanding.get(task)
            graph = call.graph if isinstance(call, GraphPiece) else self._graphs.get(task)
            if graph is None:
                again.append(task)
            elif graph.as_tasks:
                nodes.setdefault(graph, []).append(task)
        for graph, lost_nodes in nodes.items():
            again += graph.resend(lost_nodes, outstanding)
        return again

    @staticmethod
    def count(calls: Iterable[OutstandingCall | None]) -> None:
        """Count nodes that have a value."""
        for call in calls:
            if isinstance(call, GraphPiece):
                call.graph.ended += 1

    def explain(self, outcomes: Deliver) -> Sequence[bytes]:
        """The results; those of failed nodes carry the path to the node that failed first."""
        statuses = list(outcomes.statuses)
        if not any(statuses):
            return outcomes.results
        explained = list(outcomes.results)
        for position, (task, status) in enumerate(zip(outcomes.tasks, statuses, strict=True)):
            graph = self._graphs.get(task)
            if graph is not None and outcomes.calls[position] is not None and status in (Status.RAISED, Status.FAILED):
                graph.failed.add(task)
                payload = explained[position] = FailurePayload(explained[position])
                payload.path = _Path(graph, task)
        return explained

    def clear(self) -> None:
        """Nothing is wanted any more."""
        for graph in self._graphs.values():
            graph.pieces = []
        self._graphs.clear()
        self._deferred.clear()


def _first(piece: GraphPiece) -> int:
    return piece.first


def _may_be_used(made: Dependency) -> bool:
    """Whether a task that makes a node again has not ended without a value."""
    outcome = made.outcome()
    return not isinstance(outcome, tuple) or outcome[0] == Status.VALUE


class _Path:
    """Computes the path when the exception is loaded."""

    __slots__ = ("_graph", "_task")

    def __init__(self, graph: GraphTasks, task: int) -> None:
        self._graph, self._task = graph, task

    def __call__(self) -> str:
        return self._graph.path(self._task, self._graph.failed)


def noted(failure: F, payload: bytes) -> F:
    """The failure, its exception with a note of how the requested node depends on the node that failed first."""
    path = payload.path() if type(payload) is FailurePayload else ""
    if path:
        add_note(failure[0], path)
    return failure
