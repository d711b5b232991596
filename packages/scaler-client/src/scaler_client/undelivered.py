"""Outcomes that could not be delivered: their calls fail with the cause."""

from __future__ import annotations

import logging
from typing import Any

from scaler_client.futures import ScalerFuture
from scaler_client.graph_records import GraphPiece
from scaler_client.records import CallBlock, Deliver, LocalFailure, OutstandingCall
from scaler_protocol.errors import ScalerError
from scaler_protocol.messages import Status

_log = logging.getLogger("scaler")


def fail(outcomes: Deliver, cause: Exception) -> None:
    """Fail those of the calls that `deliver` had not ended when it raised `cause`, and wake whoever waits for any."""
    error = ScalerError(f"the outcome of this call could not be delivered: {cause!r}")
    error.__cause__ = cause.with_traceback(None)
    payload = LocalFailure.of(error)
    for call, task in zip(outcomes.calls, outcomes.tasks, strict=False):
        try:
            if call is not None:
                _fail_one(call, task, payload)
        except Exception:
            _log.exception("whoever waits for task %x could not be told that it failed", task)


def _fail_one(call: OutstandingCall, task: int, payload: bytes) -> None:
    if isinstance(call, ScalerFuture):
        _fail_future(call, payload)
    elif isinstance(call, CallBlock):
        if not call.has(task):
            call.take(task, Status.FAILED, payload)
        if call.failures or not call.missing:  # `deliver` had not come to this
            call.changed()
    elif isinstance(call, GraphPiece) and not call.has(task):
        call.take(task, Status.FAILED, payload)


def _fail_future(future: ScalerFuture[Any], payload: bytes) -> None:
    future.settle(Status.FAILED, payload)
    future.owner.call_soon(future.invoke_callbacks)  # does nothing where they were called already
