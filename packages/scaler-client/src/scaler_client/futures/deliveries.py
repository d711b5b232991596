"""Delivers outcome batches to futures and blocks. A call for which this fails ends with the cause; others go on."""

from __future__ import annotations

import logging
from typing import Any

from scaler_client.core.graph_state import GraphPiece
from scaler_client.core.records import CallBlock, Deliver, LocalFailure, OutstandingCall
from scaler_client.futures.futures import KEEPING, ScalerFuture
from scaler_client.futures.waiters import guard
from scaler_protocol.messages import Status

_log = logging.getLogger("scaler")


Failure = tuple[OutstandingCall, int, Exception]
"""A call, its task, and the exception that prevented its delivery."""


def deliver(outcomes: Deliver) -> None:
    """Settle the calls of a batch and wake their waiters."""
    failures: list[Failure] = []
    with guard:
        watched, changed = _end_unwatched(outcomes, failures)
    for future, status, payload in watched:
        try:
            if future._settle(status, payload, outcomes.reports):
                watch = future._watch
                if watch is not None and watch.callbacks:
                    future._owner.call_soon(future._invoke_callbacks)
        except Exception as error:
            failures.append((future, future.task_id, error))
    for block in changed:
        block.changed()
    for call, task, cause in failures:
        _log.error("the outcome of task %x could not be delivered", task, exc_info=cause)
        _fail(call, task, cause)


def _end_unwatched(
    outcomes: Deliver, failures: list[Failure]
) -> tuple[list[tuple[ScalerFuture[Any], int, bytes]], dict[CallBlock, None]]:
    """Settle futures without a Watch, and blocks; returns the futures with one, and the blocks to notify.

    Adds calls that could not be settled to `failures`.
    """
    watched: list[tuple[ScalerFuture[Any], int, bytes]] = []
    changed: dict[CallBlock, None] = {}
    columns = zip(outcomes.calls, outcomes.tasks, outcomes.statuses, outcomes.results, strict=True)
    for call, task, status, payload in columns:
        if type(call) is ScalerFuture:
            if call._watch is None:
                call._outcome, call._reports = payload, outcomes.reports
                if status not in KEEPING or not call._is_repeatable():
                    call._call, call._needs = b"", ()
                call._status = status
            else:
                watched.append((call, status, payload))
        elif isinstance(call, CallBlock | GraphPiece):
            try:
                if call.take(task, status, payload) and isinstance(call, CallBlock):
                    changed[call] = None
            except Exception as error:
                failures.append((call, task, error))
    return watched, changed


def fail(outcomes: Deliver, cause: Exception) -> None:
    """Fail the calls of a batch that were not delivered, because delivery raised `cause`."""
    for call, task in zip(outcomes.calls, outcomes.tasks, strict=False):
        if call is not None:
            _fail(call, task, cause)


def _fail(call: OutstandingCall, task: int, cause: Exception) -> None:
    payload = LocalFailure.undelivered(cause)
    try:
        if isinstance(call, ScalerFuture):
            call._settle(Status.FAILED, payload)
            call._owner.call_soon(call._invoke_callbacks)  # no effect if they were called already
        elif isinstance(call, CallBlock | GraphPiece):
            if not call.has(task):
                call.take(task, Status.FAILED, payload)
            if isinstance(call, CallBlock) and (call.failures or not call.missing):
                call.changed()
    except Exception:
        _log.exception("the failure of task %x could not be reported to its waiters", task)
