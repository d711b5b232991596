"""Tasks with spans of their own, and where workers put theirs."""

from __future__ import annotations

from pathlib import Path

from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


class ExportTo:
    """Has a worker write its spans into a file, a JSON object for each."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self) -> None:
        provider = TracerProvider()
        out = self._file.open("a", encoding="utf-8")
        exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)


def step(value: int) -> tuple[int, object]:
    with trace.get_tracer("mine").start_as_current_span("step"):
        return value + 1, baggage.get_baggage("tenant")


async def step_later(value: int) -> int:
    return step(value)[0]
