"""NodeColumns: the nodes of a graph of one message, and what they lack, without a record for each. Pure."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate

from scaler_protocol.messages import Submit
from scaler_scheduler.core.task_states import Outcome

FEW_TASKS = 16
"""So many inputs and dependents of a task are in tuples, which take a third of what lists and dictionaries do."""


class NodeColumns:
    """A row for each task of a Submit whose ids are consecutive.

    Needs and calls are kept as they came, until the last row is not used any more.
    """

    __slots__ = (
        "calls", "consumers", "dependents", "first", "given", "intermediate", "need_counts",
        "need_ends", "needs",
    )  # fmt: skip

    def __init__(self, event: Submit) -> None:
        count, needs = len(event.tasks), Counter(event.dependents)
        self.first = event.tasks[0]
        self.calls = event.calls.parts
        self.need_counts = array("I", map(needs.__getitem__, range(count)))
        """Inputs of each."""
        self.needs = array("Q", event.needs)
        self.need_ends = array("I", accumulate(self.need_counts, initial=0))
        """Where the tasks that make the inputs of each begin in `needs`, and where the last ones end."""
        self.consumers = array("I", event.consumers or bytes(4 * count))
        """Tasks of the graph that use its result and have not ended."""
        self.intermediate = bytearray(count)
        """Whether its result is for other nodes only."""
        for row in event.intermediate:
            self.intermediate[row] = True
        self.dependents: list[Sequence[int]] = [()] * count
        """The submitted tasks that need its result; a list if they are many."""
        self.given: list[dict[int, Outcome | None] | None] = [None] * count
        """The inputs that have arrived, by the tasks that made them; None if none have."""

    @property
    def call_bytes(self) -> int:
        """The bytes of all calls."""
        return sum(map(len, self.calls))

    def needs_of(self, row: int) -> Sequence[int]:
        """The tasks that make the inputs of one."""
        return self.needs[self.need_ends[row] : self.need_ends[row + 1]]

    def missing(self, row: int) -> int:
        """How many inputs of a task have not arrived."""
        return self.need_counts[row] - len(self.given[row] or ())

    def take_inputs(self, row: int) -> tuple[dict[int, Outcome | None], int]:
        """The inputs of a task that gets a record, and how many have not arrived: these are None.

        They are in the order in which the task names them, by which calls find them, not in that in which they came.
        """
        given, self.given[row] = self.given[row] or {}, None
        missing = self.need_counts[row] - len(given)
        if len(given) == 1 and not missing:
            return given, 0
        return {need: given.get(need) for need in self.needs_of(row)}, missing

    def add_dependents(self, task: int, dependents: Sequence[int]) -> None:
        """These tasks need its result."""
        row = task - self.first
        self.dependents[row] = joined(self.dependents[row], dependents)

    def results(self) -> Iterator[bytes]:
        """The payloads of the inputs that have arrived."""
        for given in self.given:
            yield from (found[1] for found in (given or {}).values() if found is not None)


def joined(tasks: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    """All of these tasks; the first ones are changed if they are a list, which they are if they are many."""
    if isinstance(tasks, list):
        tasks += others
        return tasks
    return (*tasks, *others) if len(tasks) + len(others) <= FEW_TASKS else [*tasks, *others]


def are_rows(event: Submit) -> bool:
    """Whether NodeColumns can hold the tasks of a message: those that clients send in the order of a graph."""
    tasks, rows = event.tasks, list(event.dependents)
    return rows == sorted(rows) and list(tasks) == list(range(tasks[0], tasks[0] + len(tasks)))


def dependents_by_need(event: Submit, rows: AbstractSet[int]) -> dict[int, list[int]]:
    """What the tasks of these rows need, with the tasks that need it; empty if one of them names something twice."""
    if len(set(zip(event.dependents, event.needs, strict=True))) < len(event.needs):
        return {}
    found, tasks = defaultdict[int, list[int]](list), event.tasks
    for need, row in zip(event.needs, event.dependents, strict=True):
        if row in rows:
            found[need].append(tasks[row])
    return found
