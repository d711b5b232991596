"""Everything fails at random while tasks of every kind run: each ends as it should, and nothing is left.

A red seed prints what was done and who waits for what. `make test` runs ten small seeds, `make chaos` 200 big ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.chaos.trial import Size, Trial

SMALL = Size(
    agents=2,
    workers=2,
    tasks={"anonymous": 150, "named": 80, "graphs": 40, "nested": 4},
    window=60,
    strikes=7,
    pause_seconds=0.25,
    longest_seconds=0.6,
    end_seconds=40,
)
LARGE = Size(
    agents=3,
    workers=2,
    tasks={"anonymous": 11_000, "named": 5_000, "graphs": 3_900, "nested": 100},
    window=600,
    strikes=80,
    pause_seconds=1.2,
    longest_seconds=4.0,
    end_seconds=240,
)


@pytest.mark.parametrize("seed", range(10))
def test_everything_fails_and_every_task_ends_right(tmp_path: Path, seed: int) -> None:
    print(Trial(tmp_path, seed, SMALL).run())


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_everything_fails_for_a_minute_and_20_000_tasks_end_right(tmp_path: Path, seed: int) -> None:
    print(Trial(tmp_path, seed, LARGE).run())
