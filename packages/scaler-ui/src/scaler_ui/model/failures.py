"""Failures of tasks, grouped by function and by type of exception. Pure."""

from __future__ import annotations

from collections import defaultdict

from scaler_protocol.limits import shortened
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.failed_task import TaskFailure
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.views import ERROR, TablePage, page_of


def failure_groups(model: MonitorModel, request: PageRequest) -> TablePage:
    """Groups of the last failures; the text is searched in functions and in tracebacks."""
    text = request.text.lower()
    groups: dict[tuple[str, str], list[TaskFailure]] = defaultdict(list)
    for failure in list(model.failures.values()):
        if not text or text in failure.function.lower() or text in failure.text.lower():
            groups[failure.function, failure.exception].append(failure)
    rows = [
        {
            "group": f"{function}\n{exception}",
            "function": function,
            "exception": exception,
            "count": len(members),
            "first": min(each.time for each in members),
            "last": max(each.time for each in members),
            "message": shortened(members[-1].headline, ERROR),
        }
        for (function, exception), members in groups.items()
    ]
    return page_of(rows, PageRequest(request.first, request.count, request.order, request.descending), ())


def failures_of(model: MonitorModel, function: str, exception: str) -> list[TaskFailure]:
    """The last failures of this function with this type of exception, in order."""
    return [each for each in model.failures.values() if each.function == function and each.exception == exception]


def failed_tasks(model: MonitorModel, function: str, exception: str, request: PageRequest) -> TablePage:
    """The tasks of a group."""
    rows = [
        {
            "id": f"{failure.task:x}",
            "client": model.client_name(failure.session),
            "host": model.hosts.get(failure.agent, ""),
            "time": failure.time,
            "error": shortened(failure.headline, ERROR),
        }
        for failure in failures_of(model, function, exception)
    ]
    return page_of(rows, request, ("id", "client", "host", "error"))
