"""The kinds of worker managers, by name."""

from __future__ import annotations

import sys

import pytest

from scaler_worker.managers import main as program
from scaler_worker.managers.main import KINDS, kind_named


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_command_and_runs(kind: str) -> None:
    module = kind_named(kind)
    assert module.COMMAND.program == f"scaler_worker_manager {kind}" and callable(module.run)


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("baremetal", "did you mean baremetal_native?"),
        ("oci_raw", "Oracle Cloud is not supported"),
        ("oci_hpc", "Oracle Cloud is not supported"),
        ("x", "kinds are baremetal_native"),
    ],
)
def test_other_kinds_are_refused_with_the_remedy(kind: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        kind_named(kind)


def test_help_lists_the_kinds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["scaler_worker_manager", "--help"])
    with pytest.raises(SystemExit) as ended:
        program._run()
    assert ended.value.code == 0 and "kinds: baremetal_native" in capsys.readouterr().out
