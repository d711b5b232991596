"""Programs that are forked for tests are like those that are started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.gates import SECONDS
from support.processes import command_line
from support.warm_programs import IMPORTED, WarmProgram


@pytest.mark.parametrize("module", IMPORTED)
def test_one_that_is_told_nonsense_says_the_same_and_ends_alike(module: str, tmp_path: Path) -> None:
    words = ["tcp://127.0.0.1:1", "--nonsense", "two words"]
    started = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    with (tmp_path / "said").open("wb") as output:
        forked = WarmProgram(module, words, os.environ, output.fileno())
        shown = command_line(forked.pid)
    assert not shown or shown.rstrip().endswith(f"-m {module} {' '.join(words)}")
    assert forked.wait(SECONDS) == started.returncode == 2
    assert (tmp_path / "said").read_text() == started.stderr
