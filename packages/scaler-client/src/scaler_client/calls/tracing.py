"""Spans of OpenTelemetry for the calls of a client that asks for them; needs `pip install scaler[otel]`.

The context in which a call is submitted travels as its first argument, before those of the user: its function is
wrapped by one that takes it off, and calls the user's in that context.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CoroutineType
from typing import Any, Final

from opentelemetry import context, propagate, trace

from scaler_client.calls.arguments import ArgumentCache, Carries, CarriesAfter, never
from scaler_client.calls.encoding import Needs, PickledCalls
from scaler_client.futures.waiters import FutureOwner
from scaler_client.task_context import runtime
from scaler_protocol.buffers import Payload

INSTRUMENTATION: Final = "scaler"
"""The name of the tracer, by which exporters are configured."""


def _tracer() -> trace.Tracer:
    """The tracer of the provider that the program, or the worker, has set."""
    return trace.get_tracer(INSTRUMENTATION)


class TracedCalls(PickledCalls):
    """Calls as PickledCalls writes them, each with its context."""

    is_traced = True

    def __init__(self, owner: FutureOwner, arguments: ArgumentCache) -> None:
        super().__init__(owner, arguments)
        self._plain = PickledCalls(owner, arguments)

    def wrapped(self, function: bytes, name: str) -> bytes:
        """The pickle of a function that takes a context first."""
        return pickle.dumps(_Wrapped(function, name), 5)

    def write(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        reserialized: set[int] | None = None,
        carries: Carries = never,
    ) -> tuple[Payload, Needs]:
        """As PickledCalls does, within a span `scaler.submit`."""
        with _tracer().start_as_current_span("scaler.submit", kind=trace.SpanKind.PRODUCER):
            return self._plain.write((_carrier(), *args), kwargs, reserialized, carries)

    def write_rows(
        self, rows: Sequence[tuple[Any, ...]], reserialized: set[int] | None = None, carries: CarriesAfter = never
    ) -> tuple[Sequence[Payload], dict[int, Needs]]:
        """As PickledCalls does, within one span `scaler.submit` for all of them."""
        attributes = {"scaler.calls": len(rows)}
        with _tracer().start_as_current_span("scaler.submit", kind=trace.SpanKind.PRODUCER, attributes=attributes):
            carrier = _carrier()
            return self._plain.write_rows([(carrier, *row) for row in rows], reserialized, carries)

    @staticmethod
    @contextmanager
    def fetching(task: int) -> Iterator[None]:
        """The span in which the result of a task is fetched and loaded."""
        with _tracer().start_as_current_span("scaler.fetch", attributes={"scaler.task": f"{task:x}"}):
            yield


def _carrier() -> str:
    """The current context as text, with the time of day in nanoseconds, by which spans are placed."""
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return json.dumps([time.time_ns(), headers])


class _Wrapped:
    """Pickles as the wrapper of a function, which is a pickle itself."""

    def __init__(self, function: bytes, name: str) -> None:
        self._function, self._name = function, name

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self._function, self._name)


def _load(function: bytes, name: str) -> TracedFunction:
    return TracedFunction(pickle.loads(function), name)


class TracedFunction:
    """A function in a worker: each call has spans `scaler.wait`, which ends now, and `scaler.run`."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name

    def __call__(self, carrier: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function in the context of the carrier; a coroutine is in it when it is awaited."""
        submitted, headers = json.loads(carrier)
        parent = propagate.extract(headers)
        attributes = self._attributes()
        tracer = _tracer()
        tracer.start_span("scaler.wait", parent, attributes=attributes, start_time=submitted).end()
        kind = trace.SpanKind.CONSUMER
        span = tracer.start_span("scaler.run", parent, kind=kind, attributes=attributes)
        result: Any = None
        try:
            with _within(parent, span):
                result = self._function(*args, **kwargs)
        finally:
            if type(result) is not CoroutineType:
                span.end()
        return _awaited(result, parent, span) if type(result) is CoroutineType else result

    def _attributes(self) -> dict[str, str | int]:
        found: dict[str, str | int] = {"code.function.name": self._name}
        here = runtime()
        if (current := here.current() if here is not None else None) is not None:
            found |= {"scaler.task": f"{current.id:x}", "scaler.attempt": current.attempt}
            found["scaler.worker"] = current.worker
        return found


@contextmanager
def _within(parent: context.Context, span: trace.Span) -> Iterator[None]:
    """Make the span current, in the context of its parent, baggage included; an exception is recorded."""
    token = context.attach(parent)
    try:
        with trace.use_span(span, record_exception=True, set_status_on_exception=True):
            yield
    finally:
        context.detach(token)


async def _awaited(result: Coroutine[Any, Any, Any], parent: context.Context, span: trace.Span) -> Any:
    try:
        with _within(parent, span):
            return await result
    finally:
        span.end()
