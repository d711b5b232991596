"""What scaler_ui tells Prometheus about itself."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from scaler_protocol.addresses import Address
from scaler_ui.listening import Listening
from scaler_ui.web.delay_metrics import DelayCollector


def test_the_delay_is_told(tmp_path: Path) -> None:
    with closing(Listening(Address(path=str(tmp_path / "nobody")))) as listening:
        registry = CollectorRegistry()
        registry.register(DelayCollector(listening))
        listening.model.caught_up(50.0, 7.5)
        listening.model.caught_up(51.0, 0.5)
        told = generate_latest(registry).decode().splitlines()
    assert "scaler_monitor_delay_seconds 7.5" in told and "scaler_monitor_losses_total 0.0" in told
