"""Run messages: what an agent is sent of the tasks that it is to run. Pure.

A message has the functions that the agent may not have, and the inputs, attempts and stored calls of those tasks that
have any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from scaler_protocol.limits import KEPT_FUNCTIONS
from scaler_protocol.messages import MESSAGE_LIMIT, Group, Run, Status
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.function_record import FunctionRecord
from scaler_scheduler.core.records import AgentRecord, GroupRecord, TaskRecord
from scaler_scheduler.core.shared_calls import SharedCalls, column_of
from scaler_scheduler.core.task_states import Outcome

_RUN_TASKS = 4096
"""Most tasks in one Run message."""
_AWAITED: Final[Outcome] = (int(Status.VALUE), b"", False)
"""Stands for an input that the run gets from the one before it in its chain."""


def run_message(
    agent: AgentRecord,
    tasks: Sequence[TaskRecord],
    ids: Sequence[int],
    columns: dict[str, Any],
    result_sizes: Sequence[int] = (),
) -> Run:
    """The Run of tasks with consecutive runs and these ids, with the functions that the agent may not have.

    `columns` are those of `run_columns`.
    """
    groups: dict[GroupRecord, int] = {}
    for task in tasks:
        if task.group not in groups:
            groups[task.group] = len(groups)
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


def functions_of(groups: Collection[GroupRecord]) -> Iterable[FunctionRecord]:
    """The functions and serializers of groups: most groups have the same ones."""
    found: dict[FunctionRecord | None, None] = dict.fromkeys([group.function for group in groups])
    found.update(dict.fromkeys([group.serializer for group in groups]))
    return [function for function in found if function is not None]


def _functions_to_send(agent: AgentRecord, groups: Collection[GroupRecord]) -> list[FunctionRecord]:
    """The functions of these groups that the agent does not keep; from now on it does."""
    functions = [function for function in functions_of(groups) if function.id not in agent.functions]
    for function in functions:
        agent.functions[function.id] = None
    while len(agent.functions) > KEPT_FUNCTIONS:
        del agent.functions[next(iter(agent.functions))]
    return functions


def names_released(agent: AgentRecord, ids: Iterable[int], needs: Iterable[int]) -> bool:
    """Whether the agent may keep an old outcome of one of these tasks, or of one that they need: it was made anew."""
    released = agent.released.keys()
    return bool(released) and not (released.isdisjoint(ids) and released.isdisjoint(needs))


def message_parts(tasks: list[TaskRecord]) -> Iterator[tuple[list[TaskRecord], dict[str, Any]]]:
    """Cut tasks into parts that fit one message each; each with its `run_columns`."""
    for at in range(0, len(tasks), _RUN_TASKS):
        yield from _fitting(tasks[at : at + _RUN_TASKS])


def _fitting(tasks: list[TaskRecord]) -> Iterator[tuple[list[TaskRecord], dict[str, Any]]]:
    columns = run_columns(tasks)
    size = sum(columns["calls"].lengths) + sum(columns["inputs"].lengths)
    if size <= MESSAGE_LIMIT or len(tasks) == 1:
        yield tasks, columns
    else:
        half = len(tasks) // 2
        yield from _fitting(tasks[:half])
        yield from _fitting(tasks[half:])


def run_columns(tasks: Sequence[TaskRecord]) -> dict[str, Any]:
    """The columns of a Run that depend on nothing but its tasks: calls, attempts, inputs."""
    dependents: list[int] = []
    needs: list[int] = []
    inputs: list[Any] = []
    stored: list[int] = []
    awaited: list[int] = []
    is_repeated = False
    for position, task in enumerate(tasks):
        if (extra := task.extra) is not None:
            if extra.inputs:
                needs += extra.inputs
                dependents += [position] * len(extra.inputs)
                if extra.missing_inputs:
                    awaited += [len(inputs) + at for at, found in enumerate(extra.inputs.values()) if found is None]
                    inputs += [found or _AWAITED for found in extra.inputs.values()]
                else:
                    inputs += extra.inputs.values()
            if extra.stored:
                stored.append(position)
            if extra.notes is not None:
                is_repeated = True
    _, payloads, references = zip(*inputs, strict=True) if inputs else ((), (), ())
    return {
        "calls": _calls_of(tasks),
        "attempts": [task.attempt for task in tasks] if is_repeated else (),
        "stored": stored,
        "dependents": dependents,
        "needs": needs,
        "inputs": Payloads(payloads),
        "inputs_stored": [at for at, is_reference in enumerate(references) if is_reference] if any(references) else (),
        "inputs_awaited": awaited,
    }


def _calls_of(tasks: Sequence[TaskRecord]) -> Payloads:
    calls: list[Any] = [task.calls for task in tasks]
    return column_of([task.id for task in tasks], calls) if SharedCalls in set(map(type, calls)) else Payloads(calls)
