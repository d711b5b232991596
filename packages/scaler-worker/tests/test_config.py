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
