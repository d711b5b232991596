"""Definitions: the bytes of functions arrive, are requested, or are refused. Pure, no IO."""

from __future__ import annotations

from collections.abc import Iterable

from scaler_protocol.errors import ProtocolError
from scaler_protocol.messages import Functions, NeedFunctions, Submit
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.completion import Completion
from scaler_scheduler.core.dispatch import Dispatch
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.records import AgentRecord, TaskRecord
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, HELD


class Definitions:
    """Passes the bytes of functions on to the agents and tasks that wait for them, or reports that they are missing."""

    def __init__(self, state: SchedulerState, completion: Completion, dispatch: Dispatch) -> None:
        self._state, self._completion, self._dispatch = state, completion, dispatch

    def take(self, event: Submit | Functions, now: float) -> None:
        """The bytes of functions have arrived."""
        if not event.functions:
            return
        if self._state.recorder is not None:
            self._state.recorder.functions(event)
        fresh = self._state.functions.define(event.functions, event.names, event.bodies, event.bodies_stored)
        self._dispatch.queue_defined(fresh, now)
        for function in fresh:
            for agent in function.asking:
                self._answer(agent, function)
            function.asking.clear()

    def ask(self, agent: AgentRecord, event: NeedFunctions) -> None:
        """An agent needs these functions: send them at once, or ask a session that has submitted calls of them.

        Functions that no task of the agent needs are not sent.
        """
        for wanted in _needed(agent, event.functions):
            function = self._state.functions.expect(wanted)
            if function.body is not None:
                self._answer(agent.peer, function)
                continue
            function.asking.add(agent.peer)
            while function.sessions:
                number = next(iter(function.sessions))
                if session := self._state.sessions.get(number):
                    self._state.send(session.peer, NeedFunctions((wanted,), number))
                    break
                function.sessions.discard(number)

    def refuse(self, peer: bytes, event: Functions, error: ProtocolError, now: float) -> None:
        """This peer sent wrong functions: its tasks that wait for them fail; those of other peers may still run."""
        for named in dict.fromkeys(event.functions):
            function = self._state.functions.find(named)
            if function is not None and function.body is None:
                for record in self._waiting(peer, function):
                    self._completion.fail(record, error, now)
                self._ask_others(peer, function)

    def _waiting(self, peer: bytes, function: FunctionRecord) -> list[TaskRecord]:
        """Collect the peer's tasks that cannot run without the function, and withdraw their runs."""
        found: list[TaskRecord] = []
        sessions = [self._state.sessions[number] for number in function.waiting_tasks]
        for session in [session for session in sessions if session.peer == peer]:
            session.missing_functions.discard(function)
            tasks = map(session.find, function.waiting_tasks.pop(session.number))
            found += [task for task in tasks if task is not None and task.state == HELD]
        for agent in [agent for name in function.asking if (agent := self._state.agents.get(name))]:
            for task in list(agent.runs.values()):
                group = task.group
                if (
                    task.state == ASSIGNED
                    and group.session.peer == peer
                    and function in (group.function, group.serializer)
                ):
                    self._state.withdraw(task)
                    self._state.leave_agent(task)
                    task.state = HELD
                    found.append(task)
        return found

    def _ask_others(self, peer: bytes, function: FunctionRecord) -> None:
        """Agents still wait for the function: ask another session."""
        if function.asking:
            sessions = (self._state.sessions.get(number) for number in function.sessions)
            for session in [session for session in sessions if session is not None and session.peer != peer][:1]:
                self._state.send(session.peer, NeedFunctions((function.id,), session.number))

    def _answer(self, agent: bytes, function: FunctionRecord) -> None:
        body, stored = Payloads((function.body or b"",)), (0,) if function.stored else ()
        self._state.send(agent, Functions((function.id,), (function.name,), body, stored))


def _needed(agent: AgentRecord, asked: Iterable[bytes]) -> list[bytes]:
    """Those of these functions that the agent was sent, or that its runs call, without duplicates.

    Runs of an agent that has returned are not all known before it has reported them.
    """
    wanted = list(dict.fromkeys(asked))
    if agent.returning or all(function in agent.functions for function in wanted):
        return wanted
    groups = {task.group for task in agent.runs.values()}
    called = {function.id for group in groups for function in (group.function, group.serializer) if function}
    return [function for function in wanted if function in agent.functions or function in called]
