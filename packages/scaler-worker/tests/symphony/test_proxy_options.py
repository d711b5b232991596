"""The command lines of both programs."""

from __future__ import annotations

import pytest

from scaler_worker.symphony.proxy_options import CLUSTER, MANAGER

ADDRESS = "tcp://127.0.0.1:2345"


def test_the_promised_command() -> None:
    options = CLUSTER.parse([ADDRESS, "ScalerService", "--base-concurrency", "4"], {})
    assert (options.service_name, options.base_concurrency, str(options.address)) == ("ScalerService", 4, ADDRESS)


def test_short_options() -> None:
    words = "-n 3 -w grid -wc gpu -wtqs 10 -hi 1 -ds 60 -tm 1000 -gc 5"
    options = CLUSTER.parse([ADDRESS, "S", *words.split()], {})
    assert (options.base_concurrency, options.worker_name, options.per_worker_capabilities) == (3, "grid", {"gpu": -1})
    assert (options.per_worker_task_queue_size, options.heartbeat_interval_seconds) == (10, 1.0)
    assert (options.death_timeout_seconds, options.trim_memory_threshold_bytes) == (60.0, 1000)


def test_the_manager() -> None:
    options = MANAGER.parse([ADDRESS, "-sn", "S", "-mtc", "8", "-wmi", "grid"], {})
    assert (options.service_name, options.base_concurrency, options.worker_manager_id) == ("S", 8, "grid")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([ADDRESS], "SERVICE_NAME"),
        ([ADDRESS, ""], "--service-name is empty"),
        ([ADDRESS, "S", "-n", "0"], "0 is less than 1"),
        ([ADDRESS, "S", "-w", "n" * 2000], "--worker-name"),
    ],
)
def test_errors(words: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CLUSTER.parse(words, {})
