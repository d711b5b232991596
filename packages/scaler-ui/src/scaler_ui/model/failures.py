"""Failures of tasks, grouped by function and by type of exception. Pure."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from scaler_protocol.messages import Status
from scaler_protocol.tracebacks import headline
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.model import EVENTS, MonitorModel, TaskFailure
from scaler_ui.model.views import ERROR_LIMIT, TablePage, page_of

NO_RESULT = "no result"
"""What stands for the type of exception of a task that has failed without one: its worker died, for example."""

_headline = lru_cache(2 * EVENTS)(headline)


def exception_type(failure: TaskFailure) -> str:
    """The type of the exception, as its traceback names it."""
    if failure.status != Status.RAISED:
        return NO_RESULT
    return _headline(failure.text).partition(":")[0] or NO_RESULT


def failure_groups(model: MonitorModel, request: PageRequest) -> TablePage:
    """Groups of the last failures; the text is searched in functions and in tracebacks."""
    text = request.text.lower()
    groups: dict[tuple[str, str], list[TaskFailure]] = defaultdict(list)
    for failure in list(model.failures.values()):
        if not text or text in failure.function.lower() or text in failure.text.lower():
            groups[failure.function, exception_type(failure)].append(failure)
    rows = [
        {
            "group": f"{function}\n{exception}",
            "function": function,
            "exception": exception,
            "count": len(members),
            "first": min(each.time for each in members),
            "last": max(each.time for each in members),
            "message": _headline(members[-1].text)[:ERROR_LIMIT],
        }
        for (function, exception), members in groups.items()
    ]
    return page_of(rows, PageRequest(request.first, request.count, request.order, request.descending), ())


def failures_of(model: MonitorModel, function: str, exception: str) -> list[TaskFailure]:
    """The last failures of this function with this type of exception, in order."""
    return [each for each in model.failures.values() if each.function == function and exception_type(each) == exception]


def failed_tasks(model: MonitorModel, function: str, exception: str, request: PageRequest) -> TablePage:
    """The tasks of a group."""
    rows = [
        {
            "id": f"{failure.task:x}",
            "client": model.client_name(failure.session),
            "host": model.hosts.get(failure.agent, ""),
            "time": failure.time,
            "error": _headline(failure.text)[:ERROR_LIMIT],
        }
        for failure in failures_of(model, function, exception)
    ]
    return page_of(rows, request, ("id", "client", "host", "error"))
