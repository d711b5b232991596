"""Chains: cheap nodes, each the only consumer of the one before, are sent to one worker together. Pure.

A dispatched node is followed by its only consumer, if that has no other missing input, and so on. The worker runs them
in order and passes each result on. If it cannot (another run came in between, the node failed, the worker died), it
returns the task unstarted, and the task is HELD until the result arrives.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaler_scheduler.core.records import HeldNodes, TaskEntry, TaskRecord
from scaler_scheduler.core.task_states import HELD

CHEAP_SECONDS = 0.001
"""For longer tasks a round trip costs little in comparison."""
CHAIN_SECONDS = 0.008
CHAIN_TASKS = 256
"""Most seconds and tasks of one chain, since a worker reports only at its end."""


def with_followers(tasks: Sequence[TaskRecord], room: int) -> list[TaskRecord]:
    """These ready tasks, each followed by the chain that it begins; at most `room` tasks are added."""
    chained: list[TaskRecord] = []
    limit = len(tasks) + room
    for position, task in enumerate(tasks):
        chained.append(task)
        if task.extra is None or task.extra.consumers != 1 or (follower := _follower(task)) is None:
            continue
        seconds, most = _cost(task), limit - (len(tasks) - position - 1)
        end = min(most, len(chained) + CHAIN_TASKS)
        while follower is not None and len(chained) < end:
            seconds += _cost(follower)
            if seconds > CHAIN_SECONDS:
                break
            chained.append(follower)
            follower = _follower(follower)
    return chained


def _cost(task: TaskEntry) -> float:
    """Expected seconds; more than any chain may take if unknown."""
    seconds = task.group.function.seconds
    return CHAIN_SECONDS + 1.0 if seconds is None else seconds


def _follower(task: TaskRecord) -> TaskRecord | None:
    """The only consumer of this node, if it is cheap, and this node's result is its only missing input."""
    extra = task.extra
    if extra is None or extra.consumers != 1 or not extra.intermediate or len(extra.dependents) != 1:
        return None
    session, number = task.group.session, extra.dependents[0]
    entry = session.tasks.get(number)
    if entry is None or _cost(entry) > CHEAP_SECONDS or entry.group.lane is not task.group.lane:
        return None
    if isinstance(entry, HeldNodes) and entry.columns.missing(number - entry.columns.first) > 1:
        return None
    follower = session.find(number)
    more = follower.extra if follower is not None else None
    return follower if more is not None and more.missing_inputs == 1 and entry.state == HELD else None
