"""The tables of the overview: how far the work of each client is, and what failed last. Pure."""

from __future__ import annotations

import math

from scaler_protocol.limits import shortened
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.estimates import estimates, in_words
from scaler_ui.model.failed_task import TaskFailure
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.views import ERROR, TablePage, page_of

FAILURES_SHOWN = 5


def progress(model: MonitorModel, request: PageRequest) -> TablePage:
    """The open work by client and function: how much of it is done, in percent, and how long the rest takes."""
    rows = [
        {
            "key": f"{each.session}\n{each.function}",
            "client": each.client,
            "function": each.function,
            "done": math.floor(100 * each.ended / (each.ended + each.open)),
            "finished": each.ended,
            "open": each.open,
            "left": in_words([each]).removesuffix(" left") or ("unknown" if each.unpredictable else "no worker"),
            "seconds": each.seconds or 0.0,
        }
        for each in estimates(model)
    ]
    return page_of(rows, request, ())


def last_failures(model: MonitorModel, request: PageRequest) -> TablePage:
    """The last failures, the latest first: of each function and type of exception the last one."""
    latest: dict[tuple[str, str], TaskFailure] = {}
    for failure in reversed(model.failures.values()):
        latest.setdefault(failure.kind, failure)
        if len(latest) == FAILURES_SHOWN:
            break
    rows = [
        {
            "id": f"{failure.task:x}",
            "time": failure.time,
            "function": failure.function,
            "error": f"{shortened(failure.headline, ERROR)}{_others(model.failures.count(kind) - 1)}",
        }
        for kind, failure in latest.items()
    ]
    return TablePage(rows, len(rows))


def _others(count: int) -> str:
    return f" (and {count:,} more)" if count else ""
