"""FileSegments on real directories: in memory, on disk, on a tmpfs that is too small."""

from __future__ import annotations

import mmap
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scaler_io.objects.file_locks import PEERS
from scaler_protocol.errors import ObjectRefusedError, StorageFullError
from scaler_protocol.objects import SHARED_BYTES
from scaler_storage.engine.segments import Moved, Segment
from scaler_storage.files import FileSegments

DEADLINE = 30
MIB = 1024 * 1024
Mount = Callable[[int], Path]


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[FileSegments]:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    for folder in (memory, disk):
        folder.mkdir()
    made = FileSegments(memory, disk)
    yield made
    made.close()


def finished(segments: FileSegments) -> Moved:
    """What is finished next."""
    assert select.select([segments.fileno()], [], [], DEADLINE)[0]
    [moved] = segments.finished()
    return moved


def filled(segments: FileSegments, size: int) -> tuple[Segment, bytes]:
    segment, content = segments.allocate(size), os.urandom(size)
    for offset in range(0, size, MIB):
        segments.write(segment, offset, content[offset : offset + MIB])
    return segment, content


@pytest.mark.parametrize("size", [0, 100, SHARED_BYTES - 1, SHARED_BYTES, 9 * MIB + 5])
def test_bytes_go_to_disk_and_come_back(segments: FileSegments, tmp_path: Path, size: int) -> None:
    segment, content = filled(segments, size)
    assert bool(segment.name) == (size >= SHARED_BYTES)
    assert segments.read(segment, 0, size) == content
    assert segments.read(segment, size // 2, size // 4) == content[size // 2 :][: size // 4]
    segments.spill(1, segment, size)
    assert finished(segments) == Moved(1)
    segments.free(segment)
    other = segments.allocate(size)
    segments.load(1, other, size)
    assert finished(segments) == Moved(1)
    assert segments.read(other, 0, size) == content
    segments.forget(1)
    segments.forget(1)
    segments.free(other)
    assert not list((tmp_path / "disk").iterdir()) and sorted(os.listdir(tmp_path / "memory")) == ["peers", "token"]


def test_the_memory_is_reserved(segments: FileSegments, tmp_path: Path) -> None:
    segment = segments.allocate(5 * MIB)
    found = (tmp_path / "memory" / segment.name).stat()
    assert found.st_size == segment.capacity and found.st_blocks * 512 >= 5 * MIB
    assert found.st_mode & 0o777 == 0o600


def test_what_is_gone_is_an_error(segments: FileSegments, tmp_path: Path) -> None:
    segment, _ = filled(segments, SHARED_BYTES)
    segments.spill(1, segment, SHARED_BYTES + 1)
    assert "too short" in finished(segments).error
    segments.load(2, segment, SHARED_BYTES)
    assert "No such file" in finished(segments).error
    os.truncate(tmp_path / "memory" / segment.name, 10)
    with pytest.raises(OSError, match="too short"):
        segments.read(segment, 0, 100)
    segments.free(segment)
    with pytest.raises(OSError, match="No such file"):
        segments.read(segment, 0, 100)
    with pytest.raises(ObjectRefusedError, match="No such file"):
        segments.write(segment, 0, b"x")


def test_a_file_that_cannot_be_removed_is_told(
    segments: FileSegments, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment = segments.allocate(SHARED_BYTES)
    stuck = [tmp_path / "memory" / segment.name, tmp_path / "disk" / "spilled-1", tmp_path / "memory" / PEERS / "life"]
    stuck[0].unlink()
    for path in stuck:
        path.mkdir()  # no file, so it cannot be removed as one, whoever tries
    segments.free(segment)
    segments.forget(1)
    segments.forget_lock_file("life")
    assert segments.unlocked(["life"]) == {"life"}
    for path, text in zip(stuck, caplog.messages, strict=True):
        assert text.startswith(f"{path} cannot be removed: ")


def test_a_reader_keeps_what_is_freed(segments: FileSegments, tmp_path: Path) -> None:
    segment, content = filled(segments, SHARED_BYTES)
    with open(tmp_path / "memory" / segment.name, "rb") as file:
        mapped = mmap.mmap(file.fileno(), SHARED_BYTES, access=mmap.ACCESS_READ)
    segments.free(segment)
    assert mapped[:] == content


def test_a_memory_that_is_full_refuses_before_anybody_writes(mount: Mount) -> None:
    small_memory = mount(4)
    segments = FileSegments(small_memory, None)
    first = segments.allocate(3 * MIB)
    for _ in range(3):
        with pytest.raises(StorageFullError, match=f"segment directory {small_memory}: No space left on device"):
            segments.allocate(2 * MIB)
    assert sorted(os.listdir(small_memory)) == sorted([first.name, "peers", "token"])
    segments.free(first)
    assert segments.allocate(3 * MIB).name
    segments.close()


def test_a_big_object_without_room_is_refused_before_anybody_writes(mount: Mount) -> None:
    memory = mount(24)
    segments = FileSegments(memory, None)
    with pytest.raises(StorageFullError, match="No space left on device"):
        segments.allocate(32 * MIB)
    assert sorted(os.listdir(memory)) == ["peers", "token"]
    assert segments.allocate(20 * MIB).name
    segments.close()


def test_a_full_disk_is_told(mount: Mount, tmp_path: Path) -> None:
    small_memory = mount(4)
    segments = FileSegments(tmp_path, small_memory)
    segment, content = filled(segments, 6 * MIB)
    segments.spill(1, segment, 6 * MIB)
    moved = finished(segments)
    assert "No space left on device" in moved.error and moved.full
    segments.forget(1)
    assert segments.read(segment, 5 * MIB, 100) == content[5 * MIB :][:100]
    assert not os.listdir(small_memory)
    segments.close()
