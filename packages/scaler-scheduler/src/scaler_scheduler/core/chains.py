"""Chains: cheap nodes of which each takes the result of the one before go to one worker together. Pure.

A node that is dispatched takes along the task that alone takes its result, if that lacks nothing else, and so on. The
worker that runs one behind the other hands the result on; where that can not be (another run came in between, the node
failed, the worker died) it gives the task back unstarted, and the task is HELD until the result is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaler_scheduler.core.records import HELD, TaskRecord

CHEAP_SECONDS = 0.001
"""Longer tasks are not held up by a round trip."""
CHAIN_SECONDS = 0.008
CHAIN_TASKS = 256
"""How much is given at once: workers report that often."""


def with_followers(tasks: Sequence[TaskRecord], room: int) -> list[TaskRecord]:
    """These ready tasks, and behind each the chain that it begins; at most `room` more in all."""
    chained: list[TaskRecord] = []
    limit = len(tasks) + room
    for position, task in enumerate(tasks):
        chained.append(task)
        seconds, most = _cost(task), limit - (len(tasks) - position - 1)
        end = min(most, len(chained) + CHAIN_TASKS)
        follower = _follower(task)
        while follower is not None and len(chained) < end and (cost := _cost(follower)) <= CHEAP_SECONDS:
            seconds += cost
            if seconds > CHAIN_SECONDS:
                break
            chained.append(follower)
            follower = _follower(follower)
    return chained


def _cost(task: TaskRecord) -> float:
    """Seconds that it is expected to take; more than any chain has where that is not known."""
    seconds = task.group.function.seconds
    return CHAIN_SECONDS + 1.0 if seconds is None else seconds


def _follower(task: TaskRecord) -> TaskRecord | None:
    """The task that lacks only this one's result, if nobody else takes that."""
    extra = task.extra
    if extra is None or extra.consumers != 1 or not extra.intermediate or len(extra.dependents) != 1:
        return None
    follower = extra.dependents[0]
    more = follower.extra
    is_next = more is not None and more.missing_inputs == 1 and follower.state == HELD
    return follower if is_next and follower.group.lane is task.group.lane else None
