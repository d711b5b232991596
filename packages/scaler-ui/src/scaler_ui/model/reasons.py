"""Reasons: why a task has not ended, or how it ended, from the monitor's model. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scaler_protocol.ids import worker_name
from scaler_protocol.monitoring import MonitorStatus, TaskStep
from scaler_protocol.plurals import counted
from scaler_protocol.safe_text import escaped
from scaler_protocol.units import duration, size
from scaler_protocol.waiting import WaitReasons
from scaler_ui.model.model import GroupInfo, MonitorModel


def why(model: MonitorModel, task: int, asked: Sequence[str] = ()) -> list[str]:
    """Sentences about a task: its state, the reason for it, and the events about the task.

    `asked` is what the scheduler itself says of one that has not begun, or that is not known here. Without it the order
    in which tasks go is estimated. In the scheduler's sentences are texts of worker managers and of tasks.
    """
    asked = list(map(escaped, asked))
    status, row = model.status, model.tasks.find(task)
    said = [event.text for event in model.events if event.task == task]
    if row is None or status is None:
        return [*(asked or [_unknown(model, task)]), *said]
    step = model.tasks.value("step", row)
    if step == TaskStep.WAITING:
        group = model.group_of(row)
        reasons = WaitReasons(status)
        ahead = _behind(model, row, group, reasons)
        return [*(asked or map(_estimated, reasons.why_waiting(group.needs, group.runtime, ahead))), *said]
    if step == TaskStep.HELD:
        causes = [
            "its inputs or the body of its function are missing",
            "it is a suspect after the loss of a host, and waits for a host that runs no other suspect",
        ]
        if status.exclusive:
            causes.append("it has used too much memory, and waits for a host of its own")
        return [*(asked or [f"it is held: {'; or '.join(causes)}"]), *said]
    if step == TaskStep.ASSIGNED:
        return [*_where_assigned(model, status, row), *said]
    return [_how_ended(model, row), *said]


def briefly(model: MonitorModel, row: int, reasons: WaitReasons) -> str:
    """Why the task in a row waits, if it is not just for its turn, in a few words."""
    step = model.tasks.value("step", row)
    if step == TaskStep.HELD:
        return "inputs are missing"
    if step != TaskStep.WAITING:
        return ""
    group = model.group_of(row)
    if lacking := reasons.lacking(group.needs, group.runtime):
        return f"no worker offers {', '.join(lacking)}"
    short = reasons.short_of(group.needs)
    return f"waits for {short}" if short else ""


def printed(model: MonitorModel, task: int) -> str:
    """What a task has printed, as far as it was kept, as terminals show it; an empty text if nothing was."""
    shown, last = "", 1
    for attempt, text in list(model.printed.get(task, ())):
        if attempt != last:
            end = "\n" if shown and not shown.endswith("\n") else ""
            shown += f"{end}--- attempt {attempt}\n"
            last = attempt
        shown += text
    # After a carriage return a line is written anew, as bars of progress are.
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in shown.removesuffix("\n").split("\n"))


def is_known(model: MonitorModel, task: int) -> bool:
    """Whether the monitor knows where a task is."""
    return model.status is not None and model.tasks.find(task) is not None


def is_to_ask(model: MonitorModel, task: int) -> bool:
    """Whether the scheduler knows better than this monitor why the task has not begun, or where it is."""
    row = model.tasks.find(task)
    return row is None or model.tasks.value("step", row) in (TaskStep.WAITING, TaskStep.HELD)


def _unknown(model: MonitorModel, task: int) -> str:
    if task in model.printed:
        return f"task {task:x} ended before this monitor connected, and is not among the last failures"
    ended = "it ended before this monitor connected, and is not among the last failures, or was never submitted"
    return f"task {task:x} is not known: {ended}"


def _estimated(sentence: str) -> str:
    return sentence.replace("it waits behind ", "it waits behind about ")


def _behind(model: MonitorModel, row: int, group: GroupInfo, reasons: WaitReasons) -> list[tuple[int, int]]:
    """An estimate of the waiting tasks that go first: (priority, count). Tasks that nobody can run do not count.

    Those of a higher priority go first; of the same priority earlier ones of the same client, and as many of each other
    client, since clients take turns.
    """
    counts, own, others = Counter[int](), 0, Counter[int]()
    for number, waiting, earlier in model.tasks.waiting(row):
        other = model.groups.get(number, GroupInfo())
        if other.priority < group.priority or reasons.lacking(other.needs, other.runtime):
            continue
        if other.priority > group.priority:
            counts[other.priority] += waiting
        elif other.session == group.session:
            own += earlier
        else:
            others[other.session] += waiting
    counts[group.priority] = own + sum(min(waiting, own) for waiting in others.values())
    return sorted(((priority, count) for priority, count in counts.items() if count), reverse=True)


def _where_assigned(model: MonitorModel, status: MonitorStatus, row: int) -> list[str]:
    number, run = model.tasks.agent(row), model.tasks.value("run", row)
    names = dict(zip(status.agents, status.agent_names, strict=True))
    agent = names.get(number, "an agent that has left")
    for pid, current in zip(status.worker_pids, status.worker_runs, strict=True):
        if current == run and run:
            seconds = status.at - model.tasks.run_start(row)
            return [f"it runs on {worker_name(agent, pid)}, for {duration(max(0.0, seconds))}"]
    sizes = dict(zip(status.agents, zip(status.agent_assigned, status.agent_workers, strict=True), strict=True))
    if number in sizes:
        sent, workers = sizes[number]
        has = f"{agent}, which has {counted(sent, 'task')} for {counted(workers, 'worker')}"
        if number in status.unlisted_agents:
            return [f"it is on {has}: these are too many to be listed, so that it may run already"]
        return [f"it is queued on {has}"]
    return [f"it is queued on {agent}"]


def _how_ended(model: MonitorModel, row: int) -> str:
    task, said = model.tasks.row(row), ""
    if task.state in ("raised", "failed") and task.id not in model.faults:
        cause = model.causes.get(task.id)
        if cause or (task.state == "raised" and not task.pid):
            needed = f"task {cause:x}, which it needs," if cause else "a task that it needs"
            return f"it has ended: {task.state}, without a run: {needed} ended in this state"
        said = "; its error is not known here any more: its client has it"
    if not task.pid:
        return f"it has ended: {task.state}{said}"
    worker = worker_name(model.agents.get(task.agent, "unknown"), task.pid)
    took = f"after {duration(task.duration)} on {worker}, attempt {task.attempt}"
    return f"it has ended: {task.state}, {took}, peak memory {size(task.memory)}{said}"
