"""Files and directories that no other user can forge."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from scaler_io.private_files import open_private, parent_fault


@pytest.mark.parametrize(("mode", "fault"), [(0o777, True), (0o1777, False), (0o775, False), (0o700, False)])
def test_a_directory_that_every_user_may_write_needs_a_sticky_bit(mode: int, fault: bool, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    assert bool(parent_fault(place)) == fault


@pytest.mark.skipif(sys.platform == "win32", reason="there are no modes")
def test_why_a_file_is_not_private_is_told(tmp_path: Path) -> None:
    plain, second, fifo, link = (tmp_path / name for name in ("plain", "second", "fifo", "link"))
    plain.touch(0o644)
    link.symlink_to(plain)
    os.mkfifo(fifo, 0o600)

    def fault(path: Path) -> str:
        with pytest.raises(PermissionError) as raised:
            open_private(path, os.O_RDONLY)
        return str(raised.value.strerror)

    assert fault(plain) == "other users can use it (mode 644): chmod 600"
    assert fault(fifo) == "it is no regular file"
    assert fault(link) == "it is a symbolic link: name the file that it leads to"
    plain.chmod(0o600)
    os.close(open_private(plain, os.O_RDONLY))
    second.hardlink_to(plain)
    assert fault(plain) == "it has a second name (a hard link)"
