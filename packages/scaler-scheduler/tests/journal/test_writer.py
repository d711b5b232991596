"""The thread that writes the journal: in order, beside others, through a full disk."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

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
        assert problems == ["the journal's disk is full"]
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
        wait_until(lambda: problems == ["the journal's disk is full", ""], "room again")
        writer.close(SECONDS)
