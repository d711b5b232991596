"""Metrics about scaler_ui itself: how far it is behind the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from scaler_ui.listening import Listening


class DelayCollector(Collector):
    """Tells how old what the pages show was, and what they miss."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        text = "How old what scaler_ui showed in the last minute was, at most: messages wait while it is busy."
        yield GaugeMetricFamily("scaler_monitor_delay_seconds", text, value=self._listening.model.delays.longest)
        text = "How often messages of the scheduler to scaler_ui were lost."
        yield CounterMetricFamily("scaler_monitor_losses", text, value=self._listening.losses)
