"""TaskSearch: the tasks of a table that match what a reader asks for, in the order of a column, page by page. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.monitoring import TaskStep
from scaler_ui.model.columns import Column, ranks, slice_of_order, take
from scaler_ui.model.task_table import ENDINGS, RUNNING, STATES, TaskRow, TaskTable

NO_NAMES: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TaskSubset:
    """The tasks of a function, of clients, agents, a process, another task; without a value they may be any."""

    function: str = ""
    sessions: Sequence[int] | None = None
    agents: Sequence[int] | None = None
    pid: int = 0
    parent: int = 0


EVERY_TASK: Final = TaskSubset()


class TaskSearch:
    """Searches a table; `agents` and `clients` are the names of agents and sessions by their numbers."""

    def __init__(
        self, table: TaskTable, agents: Mapping[int, str] = NO_NAMES, clients: Mapping[int, str] = NO_NAMES
    ) -> None:
        self._table, self._agents, self._clients = table, agents, clients

    def page(
        self,
        order: str,
        *,
        descending: bool,
        first: int,
        count: int,
        text: str = "",
        state: str = "",
        within: TaskSubset = EVERY_TASK,
    ) -> tuple[list[TaskRow], int]:
        """The matching rows from `first` on, sorted by a column, and the number of matches.

        A task matches if it is in this state and subset, and the text is in the name of its function, agent or client,
        or is its id, session or process. Functions and states are sorted by name, other columns by value.
        """
        keys = self._keys(order)
        rows = None
        if text or state or within != EVERY_TASK:
            wanted = self._within(within)
            if text:
                wanted &= self._with_text(text.lower())
            if state:
                wanted &= self._in_state(state)
            rows = np.flatnonzero(wanted)
            keys = keys[rows]
        chosen = slice_of_order(keys, first, first + count, descending=descending)
        if rows is not None:
            chosen = rows[chosen]
        return [self._table.row(int(row)) for row in chosen], len(keys)

    def _keys(self, order: str) -> Column:
        """The sort keys of the rows."""
        table = self._table
        if order == "function":
            return take(ranks(table.functions.values), table.view("function"))
        if order == "state":
            of_words = ranks([*(STATES.get(number, "") for number in range(RUNNING + 1)), *ENDINGS.values()])
            step = table.steps()
            return take(of_words, np.where(step == TaskStep.ENDED, RUNNING + 1 + table.view("status"), step))
        if order == "agent":
            names = [self._agents.get(number, "") for number in table.agent_numbers.values]
            return take(ranks(names), table.view("agent"))
        return table.view(order)

    def _in_state(self, state: str) -> Column:
        step = self._table.steps()
        steps = [number for number, word in STATES.items() if word == state]
        statuses = [number for number, word in ENDINGS.items() if word == state]
        has_ended_so = (step == TaskStep.ENDED) & np.isin(self._table.view("status"), statuses)
        found: Column = np.isin(step, steps) | has_ended_so
        return found

    def _within(self, subset: TaskSubset) -> Column:
        table = self._table
        found: Column = np.ones(len(table), bool)
        if subset.function:
            found &= table.view("function") == table.functions.known(subset.function)
        if subset.sessions is not None:
            found &= np.isin(table.view("session"), np.array(subset.sessions, "I"))
        if subset.agents is not None:
            found &= self._of_agents(subset.agents)
        if subset.pid:
            found &= table.view("pid") == subset.pid
        if subset.parent:
            found &= table.view("parent") == subset.parent
        return found

    def _of_agents(self, numbers: Sequence[int]) -> Column:
        places = [self._table.agent_numbers.known(number) for number in numbers]
        found: Column = np.isin(self._table.view("agent"), places)
        return found

    def _with_text(self, text: str) -> Column:
        table = self._table
        functions = np.array([text in name.lower() for name in table.functions.values])
        found: Column = take(functions, table.view("function"))
        if agents := [number for number, name in self._agents.items() if text in name.lower()]:
            found |= self._of_agents(agents)
        if sessions := [session for session, name in self._clients.items() if text in name.lower()]:
            found |= np.isin(table.view("session"), sessions)
        if _is_number(text, 16):
            number = int(text, 16)
            found |= (table.view("id") == number) | (table.view("session") == number)
        if _is_number(text, 10):
            found |= table.view("pid") == int(text)
        return found


def _is_number(text: str, base: int) -> bool:
    """Whether a text is a number within the range of a column."""
    try:
        return 0 <= int(text, base) < 2**64
    except ValueError:
        return False
