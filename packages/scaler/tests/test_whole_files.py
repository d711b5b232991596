"""Files that are written wholly or not at all."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scaler_launch.whole_files import write_whole


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file may grow beyond so many bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_part_of_a_new_file(tmp_path: Path) -> None:
    with room_for(100), pytest.raises(OSError, match="File too large"):
        write_whole(tmp_path / "new", b"x" * 1000, replace=False)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_an_older_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    write_whole(path, b"older")
    with room_for(100), pytest.raises(OSError, match="File too large"):
        write_whole(path, b"x" * 1000)
    assert path.read_bytes() == b"older" and list(tmp_path.iterdir()) == [path]
    write_whole(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(tmp_path / "none" / "dump.json", b"x")
    assert str(raised.value).endswith(f"No such file or directory: '{tmp_path}/none/dump.json'")


def test_a_file_is_not_replaced_unless_it_may_be_and_a_device_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        write_whole(path, b"x", replace=False)
    assert path.read_bytes() == b"mine"
    write_whole(Path("/dev/null"), b"x")
