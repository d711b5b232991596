"""Modules run as `python -m` runs them, but without those of the current directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaler_io.interpreters import WORKER_PATH, environment_of_workers, words_of


@pytest.mark.parametrize("variables", [{}, {"PYTHONSAFEPATH": "1"}], ids=["usual", "safe"])
def test_a_module_runs_as_main_and_imports_nothing_from_here(tmp_path: Path, variables: dict[str, str]) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "package").mkdir(parents=True)
    here.mkdir()
    for name in ("queue", "runpy", "shown"):
        (here / f"{name}.py").write_text("raise SystemExit('from here')\n", "utf-8")
    (there / "package" / "__main__.py").write_text("import queue, sys\nprint(__name__, sys.argv[1:])\n", "utf-8")
    done = subprocess.run(
        [sys.executable, *words_of("package"), "a", "-b"],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(there), **variables},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("__main__ ['a', '-b']\n", "")


def test_workers_search_the_current_directory_unless_it_is_said_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_PATH, raising=False)
    assert environment_of_workers()[WORKER_PATH] == os.getcwd()
    monkeypatch.setenv(WORKER_PATH, "/given")
    assert environment_of_workers()[WORKER_PATH] == "/given"
