"""The environment variables that workers get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from scaler_worker.config import COMMAND, environment_variable
from scaler_worker.worker.environment import THREAD_VARIABLES, worker_environment

ONE = dict.fromkeys(THREAD_VARIABLES, "1")
TWO = dict.fromkeys(THREAD_VARIABLES, "2")


@pytest.mark.parametrize(
    ("words", "inherited", "threads"),
    [
        ((), {}, ONE),
        ((), {"OMP_NUM_THREADS": "4"}, {}),
        (("--threads-per-worker", "2"), {"MKL_NUM_THREADS": "4"}, TWO),
        (("--threads-per-worker", "0"), {}, {}),
        (("--env", "OMP_NUM_THREADS=3", "A=b=c"), {}, {**ONE, "OMP_NUM_THREADS": "3", "A": "b=c"}),
    ],
)
def test_libraries_start_one_thread_unless_somebody_wants_more(
    words: Sequence[str], inherited: Mapping[str, str], threads: Mapping[str, str]
) -> None:
    config = COMMAND.read(["tcp://127.0.0.1:1", "--insecure", *words], {})
    assert dict(worker_environment(config, inherited)) == {**threads, "SCALER_INSECURE": "1"}


@pytest.mark.parametrize("word", ["A", "=b", "1A=b", "A B=c"])
def test_what_is_no_variable_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="is not NAME=VALUE"):
        environment_variable(word)
