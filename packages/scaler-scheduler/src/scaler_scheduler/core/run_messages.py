"""Run messages: what an agent is sent of the tasks that it is to run. Pure.

A message has the functions that the agent may not have, and the inputs, attempts and stored calls of those tasks that
have any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from scaler_protocol.limits import KEPT_FUNCTIONS
from scaler_protocol.messages import MESSAGE_LIMIT, Group, Run
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.records import AgentRecord, GroupRecord, TaskRecord

_RUN_TASKS = 4096
"""Most tasks in one Run message."""


def run_message(
    agent: AgentRecord, tasks: Sequence[TaskRecord], ids: Sequence[int], result_sizes: Sequence[int] = ()
) -> Run:
    """The Run of tasks with consecutive runs and these ids, with the functions that the agent may not have."""
    groups: dict[GroupRecord, int] = {}
    for task in tasks:
        if task.group not in groups:
            groups[task.group] = len(groups)
    columns: dict[str, Any] = _extra_columns(tasks) if any(task.extra is not None for task in tasks) else {}
    if functions := _functions_to_send(agent, groups):
        columns |= {
            "functions": [function.id for function in functions],
            "names": [function.name for function in functions],
            "bodies": Payloads([function.body or b"" for function in functions]),
            "bodies_stored": [at for at, function in enumerate(functions) if function.stored],
        }
    return Run(
        tasks[0].run,
        [group.for_agents if agent.consumables is None else _group_for(agent, group) for group in groups],
        ids,
        Payloads([task.call for task in tasks]),
        task_groups=[groups[task.group] for task in tasks] if len(groups) > 1 else (),
        result_sizes=result_sizes,
        **columns,
    )


def _group_for(agent: AgentRecord, group: GroupRecord) -> Group:
    """The group as the agent is sent it, with what each run takes of its consumables."""
    share = group.lane.requirement.share_of(agent.worker_class)
    if not share:
        return group.for_agents
    names, values = zip(*share, strict=True)
    return replace(group.for_agents, capability_names=names, capability_values=values)


def _functions_to_send(agent: AgentRecord, groups: Iterable[GroupRecord]) -> list[FunctionRecord]:
    """The functions of these groups that the agent does not keep; from now on it does."""
    functions = {
        function.id: function
        for group in groups
        for function in (group.function, group.serializer)
        if function is not None and function.id not in agent.functions
    }
    if not functions:
        return []
    agent.functions.update(dict.fromkeys(functions))
    while len(agent.functions) > KEPT_FUNCTIONS:
        del agent.functions[next(iter(agent.functions))]
    return list(functions.values())


def names_released(agent: AgentRecord, tasks: Iterable[TaskRecord]) -> bool:
    """Whether the agent may keep an old outcome of one of these tasks, or of one that they need: it was made anew."""
    released = agent.released
    return bool(released) and any(
        task.id in released or (task.extra is not None and not released.keys().isdisjoint(task.extra.needs))
        for task in tasks
    )


def message_parts(tasks: list[TaskRecord]) -> Iterator[list[TaskRecord]]:
    """Cut tasks into parts that fit one message each."""
    start, size = 0, 0
    for position, task in enumerate(tasks):
        weight = len(task.call)
        if task.extra is not None and task.extra.given:
            for _, payload, _ in task.extra.given.values():
                weight += len(payload)
        if position > start and (size + weight > MESSAGE_LIMIT or position - start >= _RUN_TASKS):
            yield tasks[start:position]
            start, size = position, 0
        size += weight
    if start < len(tasks):
        yield tasks[start:] if start else tasks


def _extra_columns(tasks: Sequence[TaskRecord]) -> dict[str, Any]:
    """The columns of a Run that only some tasks need: attempts, stored calls, inputs."""
    dependents: list[int] = []
    needs: list[int] = []
    inputs: list[bytes] = []
    stored: list[int] = []
    pending: list[int] = []
    for position, task in enumerate(tasks):
        if (extra := task.extra) is None or not extra.needs:
            continue
        for found in map((extra.given or {}).get, extra.needs):
            if found is None:
                pending.append(len(inputs))
                inputs.append(b"")
                continue
            _, payload, is_reference = found
            if is_reference:
                stored.append(len(inputs))
            inputs.append(payload)
        needs += extra.needs
        dependents += [position] * len(extra.needs)
    columns: dict[str, Any] = {
        "attempts": [task.attempt for task in tasks],
        "stored": [position for position, task in enumerate(tasks) if task.extra and task.extra.stored],
    }
    if inputs:
        columns |= {"dependents": dependents, "needs": needs, "inputs": Payloads(inputs)}
        columns |= {"inputs_stored": stored, "inputs_awaited": pending}
    return columns
