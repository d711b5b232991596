"""The thread that writes the journal: in order, beside others, through a full disk."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest

from scaler_scheduler.journal.file import JournalFile
from scaler_scheduler.journal.records import Batch, RecordKind, Row
from scaler_scheduler.journal.writer import JournalWriter
from support.mounts import small_memory
from support.waiting import wait_until

SECONDS = 20.0


def batch(number: int, size: int = 100) -> Batch:
    return Batch([Row(number, RecordKind.SUBMIT, 99, b"x" * size)], [])


def test_tickets_are_told_when_their_rows_are_on_disk(tmp_path: Path) -> None:
    told: SimpleQueue[int] = SimpleQueue()
    writer = JournalWriter(JournalFile(tmp_path / "journal", "normal"), told.put, lambda problem: None)
    for number in range(1, 201):
        writer.put(number, batch(number))
    last = 0
    while last < 200:
        last, before = told.get(timeout=SECONDS), last
        assert last > before
    for number in range(201, 301):
        writer.put(number, batch(number))
    writer.close(SECONDS)
    journal = JournalFile(tmp_path / "journal", "normal")
    assert [row.number for row in journal.rows()] == list(range(1, 301))
    journal.close()


def test_a_full_disk_is_told_and_ends(tmp_path: Path) -> None:
    """The reserved room takes what comes next; then the writer waits, and goes on when there is room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_memory(folder, 32):
        told: SimpleQueue[int] = SimpleQueue()
        problems: list[str] = []
        writer = JournalWriter(JournalFile(folder / "journal", "normal"), told.put, problems.append)
        wait_until(lambda: (folder / "journal-ballast").exists(), "reserved room")
        filler = folder / "filler"
        filler.write_bytes(bytes(15_000_000))
        number = 0
        while not problems:
            number += 1
            writer.put(number, batch(number, 100_000))
            assert told.get(timeout=SECONDS) == number, "the reserved room is used"
        full = f"the journal's disk is full: 24 MiB must be free for {folder}/journal"
        assert problems == [full]
        with (folder / "more").open("wb", buffering=0) as more:
            try:
                while more.write(bytes(4096)):
                    pass
            except OSError:
                pass
        number += 1
        writer.put(number, batch(number, 4_000_000))
        assert told.empty()
        filler.unlink()
        (folder / "more").unlink()
        assert told.get(timeout=SECONDS) == number
        wait_until(lambda: problems == [full, ""], "room again")
        writer.close(SECONDS)


@pytest.mark.parametrize("comes_next", [False, True])
def test_a_file_that_was_removed_or_replaced_is_told(tmp_path: Path, comes_next: bool) -> None:
    """What was accepted goes on; when the file is back, so does new work."""
    told: SimpleQueue[int] = SimpleQueue()
    problems: SimpleQueue[str] = SimpleQueue()
    path, aside = tmp_path / "journal", tmp_path / "aside"
    writer = JournalWriter(JournalFile(path, "normal"), told.put, problems.put)
    writer.put(1, batch(1))
    assert told.get(timeout=SECONDS) == 1
    path.rename(aside)
    if comes_next:
        path.write_bytes(b"")
    writer.put(2, batch(2))
    assert told.get(timeout=SECONDS) == 2
    gone = f"the journal {path} was removed or replaced: restart the scheduler, which makes a new one"
    assert problems.get(timeout=SECONDS) == gone
    aside.rename(path)
    assert problems.get(timeout=SECONDS) == ""
    writer.put(3, batch(3))
    assert told.get(timeout=SECONDS) == 3 and writer.close(SECONDS)
