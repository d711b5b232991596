"""Settings of `scaler_cluster` that can not be kept are refused with what is wrong."""

from __future__ import annotations

import pytest

from scaler_worker.config import COMMAND


@pytest.mark.parametrize(
    ("names", "what"), [("one", "1 names for 2 workers"), ("one," + "w" * 257, "257 bytes, not a text of at most 256")]
)
def test_names_of_workers(names: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        COMMAND.read(["tcp://127.0.0.1:1", "-n", "2", "--worker-names", names])
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["1", "20MiB", "33554431"])
def test_a_memory_limit_that_no_worker_can_keep(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        COMMAND.read(["tcp://127.0.0.1:1", "--memory-limit-per-worker", limit])
    assert "less than a worker needs without a task; give at least 32 MiB, or 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("-hc", "license"), "'license': give a quantity of at least 1, like license=2"),
        (("-hc", "license=0"), "'license=0': give a quantity of at least 1"),
        (("-hc", "license=2", "-pwc", "license"), "license is in --per-worker-capabilities, too"),
    ],
)
def test_quantities_that_a_host_can_not_have(
    words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        COMMAND.read(["tcp://127.0.0.1:1", *words])
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--gpus", "2,x"), "'x' is no GPU: give auto, or numbers and UUIDs as nvidia-smi shows them, like 0,1"),
        (("--gpus", "0", "-pwc", "gpu=1"), "leave gpu out of capabilities"),
        (("--gpus", "0", "-hc", "gpu=1"), "leave gpu out of capabilities"),
        (("--gpus", "0", "--env", "CUDA_VISIBLE_DEVICES=1"), "leave CUDA_VISIBLE_DEVICES out of --env"),
    ],
)
def test_gpus_that_workers_can_not_have(words: tuple[str, ...], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        COMMAND.read(["tcp://127.0.0.1:1", *words])
    assert what in capsys.readouterr().err
