"""Files and directories that no other user can forge."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler_io.private_files import parent_fault


@pytest.mark.parametrize(("mode", "fault"), [(0o777, True), (0o1777, False), (0o775, False), (0o700, False)])
def test_a_directory_that_every_user_may_write_needs_a_sticky_bit(mode: int, fault: bool, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    assert bool(parent_fault(place)) == fault
