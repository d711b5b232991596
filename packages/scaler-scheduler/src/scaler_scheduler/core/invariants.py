"""Invariants of SchedulerState: the tables agree with each other, and with their counts and sums; for tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection

from scaler_protocol.capabilities import Capabilities
from scaler_scheduler.core.records import AgentRecord, SessionRecord, TaskRecord, edges_of
from scaler_scheduler.core.state import SchedulerState
from scaler_scheduler.core.task_states import ASSIGNED, DONE, GONE, HELD, WAITING


def check_state(state: SchedulerState) -> None:
    """Assert that every task is where its state says, and that all that is counted is counted right."""
    sessions = state.sessions.values()
    for session in sessions:
        _check_tasks(session)
        _check_graphs(session)
    for session in state.ended_sessions:
        assert all(task.state in (WAITING, HELD, DONE) for task in session.tasks.values())
    states = Counter(task.state for session in sessions for task in session.tasks.values())
    ended = Counter(task.state for session in state.ended_sessions for task in session.tasks.values())
    both = states + ended
    unfinished = both.total() - both[DONE]
    assert unfinished == state.event_log.unfinished, (unfinished, state.event_log.unfinished)
    state.waiting.check()
    assert states[WAITING] == state.waiting.count, (states[WAITING], state.waiting.count)
    _check_key_shares(sessions)
    at_agents = Counter(task.state for agent in state.agents.values() for task in agent.runs.values())
    assert at_agents[ASSIGNED] == states[ASSIGNED] == state.count_assigned(), (at_agents, states)
    assert all(task.state == HELD for task in (*state.suspects, *state.exclusive, *state.pinned))
    state.long_results.check(state.agents.values(), sessions)
    _check_agents(state)


def _check_tasks(session: SessionRecord) -> None:
    for number, task in session.tasks.items():
        if not isinstance(task, TaskRecord):
            continue
        assert number == task.id and task.state != GONE, f"task {number:x} is {task.state}"
        if task.state == ASSIGNED:
            assert task.agent is not None and task.agent.runs.get(task.run) is task
        elif task.state == DONE:
            assert not (task.run or task.call), f"{number:x} has ended, but has a run"


def _check_graphs(session: SessionRecord) -> None:
    if session.graphs:
        unended = Counter(edges_of(task, entry)[0] for task, entry in session.tasks.items() if entry.state != DONE)
        for graph in session.graphs.values():
            assert graph.open == unended[graph], (graph, unended[graph])


def _check_key_shares(sessions: Collection[SessionRecord]) -> None:
    """`session.waiting` itself is compared with the lanes by `TaskQueue.check`."""
    waiting = Counter(session.share for session in sessions if session.waiting)
    for share in {session.share for session in sessions}:
        assert share.waiting == waiting[share], (share.waiting, waiting[share])


def _check_agents(state: SchedulerState) -> None:
    for agent in state.with_room:
        assert state.agents.get(agent.peer) is agent, f"agent {agent.name} is gone, and has no room"
    if state.cluster is not None:
        state.cluster.check({agent.peer: _taken(agent) for agent in state.agents.values()})
    for agent in state.agents.values():
        assert agent.blocked <= agent.runs.keys()
        expected = sum(task.cost for task in agent.runs.values())
        assert math.isclose(agent.load, expected, abs_tol=1e-6), f"{agent.name} has {expected} s, not {agent.load}"


def _taken(agent: AgentRecord) -> dict[int, Capabilities]:
    return {run: task.group.lane.requirement.share_of(agent.worker_class) for run, task in agent.runs.items()}
