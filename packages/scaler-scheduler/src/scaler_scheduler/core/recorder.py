"""Recorder: the core's port to a journal, to which it reports all that another scheduler needs to take over. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scaler_protocol.messages import Done, Functions, Inputs, Submit
from scaler_scheduler.core.records import AgentRecord, SessionRecord, TaskRecord
from scaler_scheduler.core.task_states import Outcome


class Recorder(Protocol):
    """Takes records in the order of what happened.

    Nested sessions are not recorded: the runs of their parents have their calls.
    """

    def session(self, session: SessionRecord) -> None:
        """A session is new, or a recorded attribute of it has changed."""

    def labelled(self, session: SessionRecord, task: int, label: str) -> None:
        """A task was named; never refused, but it counts for the key."""

    def session_over(self, number: int) -> None:
        """A session has ended, with all of its tasks."""

    def functions(self, event: Submit | Functions) -> None:
        """The bytes of functions have arrived."""

    def submitted(self, session: SessionRecord, event: Submit) -> None:
        """New tasks were accepted."""

    def forwarded(self, session: SessionRecord, report: Done) -> None:
        """All tasks of an agent's report have ended."""

    def ended(self, record: TaskRecord, outcome: Outcome, profile: bytes, agent_name: str) -> None:
        """One task has ended."""

    def refusal(self, session: SessionRecord) -> str:
        """Why no more can be recorded for this session; empty if there is room."""

    def released(self, session: SessionRecord, tasks: Sequence[int]) -> None:
        """The owner has these outcomes."""

    def cancelled(self, session: SessionRecord, tasks: Sequence[int]) -> None:
        """The owner does not want these tasks."""

    def inputs(self, session: SessionRecord, event: Inputs) -> None:
        """The owner has supplied inputs of tasks."""

    def assigned(self, agent: AgentRecord, first_run: int, tasks: Sequence[int]) -> None:
        """An agent was given these tasks, as consecutive runs."""

    def attempts(self, record: TaskRecord) -> None:
        """A run of the task has ended without an outcome."""

    def agent_joined(self, agent: AgentRecord) -> None:
        """An agent has connected."""

    def agent_left(self, agent: bytes) -> None:
        """The agent of this identity is gone; its runs are not assigned any more."""
