"""EarlierOutcomes: outcomes that agents of a relay keep since they had another relay or scheduler. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from scaler_protocol.messages import Done


class EarlierOutcomes:
    """Who keeps them, and which outcomes the scheduler has asked for, also of tasks that were leased to this relay."""

    def __init__(self) -> None:
        self.keepers: dict[int, bytes] = {}
        """Ended tasks that were not leased to this relay, with the agents that keep their outcomes."""
        self._asked: dict[int, tuple[bytes, int]] = {}
        """Tasks whose outcomes are asked for: the agent that keeps each, and the run to report it for, or 0."""

    def agent_left(self, agent: bytes) -> None:
        """What this agent kept is lost."""
        self.keepers = {task: keeper for task, keeper in self.keepers.items() if keeper != agent}
        self._asked = {task: asked for task, asked in self._asked.items() if asked[0] != agent}

    def leased(self, tasks: Iterable[int]) -> None:
        """These tasks run again."""
        for task in tasks:
            self.keepers.pop(task, None)
            self._asked.pop(task, None)

    def released(self, tasks: Iterable[int]) -> dict[bytes, list[int]]:
        """These outcomes are not needed any more; returns those that agents keep, by agent."""
        kept: dict[bytes, list[int]] = {}
        for task in tasks:
            if keeper := self.keepers.pop(task, None):
                kept.setdefault(keeper, []).append(task)
        return kept

    def ask(self, task: int, keeper: bytes, run: int) -> None:
        """The outcome of a task is asked for; 0: it is reported for the run that the agent names."""
        self._asked[task] = keeper, run

    def answered(self, agent: bytes, report: Done) -> dict[int, int]:
        """The tasks of a report whose outcomes this agent was asked for, with the runs to report them for."""
        if not self._asked:
            return {}
        found: dict[int, int] = {}
        for task, run in zip(report.tasks, report.runs, strict=True):
            keeper, own = self._asked.get(task, (b"", 0))
            if keeper == agent:
                del self._asked[task]
                found[task] = own or run
        return found
