"""The file of a journal: committed or not at all, for one scheduler, damaged, on a full disk."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from scaler_scheduler.journal.file import BALLAST_BYTES, JournalError, JournalFile
from scaler_scheduler.journal.records import Batch, RecordKind, Row
from support.mounts import fill, small_memory

WRITE_AND_DIE = """
import os, sys
from pathlib import Path
from scaler_scheduler.journal.file import JournalFile
from scaler_scheduler.journal.records import Batch, RecordKind, Row
JournalFile(Path(sys.argv[1]), "normal").write(Batch([Row(1, RecordKind.SUBMIT, 99, b"body")], []))
os._exit(0)
"""


def row(number: int, size: int = 100) -> Row:
    return Row(number, RecordKind.SUBMIT, 99, random.Random(number).randbytes(size))


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_rows_come_back_in_order(tmp_path: Path, sync: str) -> None:
    journal = JournalFile(tmp_path / "journal", sync)
    journal.write(Batch([row(number) for number in (3, 1, 2)], []))
    journal.write(Batch([row(number) for number in range(4, 1000)], [1, 500]))
    journal.write(Batch([row(2, size=7)], list(range(600, 1000))))
    journal.close()
    journal = JournalFile(tmp_path / "journal", sync)
    expected = [row(2, size=7), *(row(number) for number in range(3, 600) if number != 500)]
    assert list(journal.rows()) == expected
    journal.close()


def test_it_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = JournalFile(path, "normal")
    for first in range(0, 1000, 100):
        journal.write(Batch([row(number, 10_000) for number in range(first, first + 100)], []))
    journal.checkpoint()
    before = path.stat().st_size
    journal.write(Batch([], list(range(1000))))
    for _ in range(3):
        journal.checkpoint()
    assert path.stat().st_size < before / 10
    journal.close()


def test_one_scheduler_has_it(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be opened: No such file or directory; make its directory first"):
        JournalFile(tmp_path / "nowhere" / "journal", "normal")
    journal = JournalFile(tmp_path / "journal", "normal")
    with pytest.raises(JournalError, match="in use by another scheduler"):
        JournalFile(tmp_path / "journal", "normal")
    journal.close()
    JournalFile(tmp_path / "journal", "normal").close()


def test_what_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    text, database = tmp_path / "text", tmp_path / "database"
    text.write_text("Dear diary, " * 1000)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE other(x)")
    connection.close()
    for path, said in ((text, "file is not a database"), (database, "of another program"), (tmp_path, "cannot be")):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(JournalError, match=said):
            JournalFile(path, "normal")
        assert not path.is_file() or path.read_bytes() == before


@pytest.mark.parametrize("how", ["cut", "flipped", "garbage"])
def test_a_damaged_log_leaves_an_exact_prefix(tmp_path: Path, how: str) -> None:
    """A killed scheduler's log, damaged at many places: what comes back is what was committed up to there."""
    path, log = tmp_path / "journal", tmp_path / "journal-wal"
    journal = JournalFile(path, "normal")
    for number in range(1, 60):
        journal.write(Batch([row(number, 300)], []))
    saved, whole = path.read_bytes(), log.read_bytes()
    draw = random.Random(how)
    lengths = set()
    for trial in range(60):
        folder = tmp_path / str(trial)
        folder.mkdir()
        at = draw.randrange(len(whole))
        damaged = {
            "cut": whole[:at],
            "flipped": whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :],
            "garbage": whole[:at] + draw.randbytes(len(whole) - at),
        }[how]
        (folder / "journal").write_bytes(saved)
        (folder / "journal-wal").write_bytes(damaged)
        found = JournalFile(folder / "journal", "normal")
        numbers = [each.number for each in found.rows()]
        assert numbers == list(range(1, len(numbers) + 1))
        lengths.add(len(numbers))
        found.close()
        shutil.rmtree(folder)
    assert len(lengths) > 10, "it was damaged at many places"
    journal.close()


def test_a_damaged_row_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = JournalFile(path, "normal")
    journal.write(Batch([row(1, 2000), row(2, 2000), row(3, 2000)], []))
    journal.close()
    whole = path.read_bytes()
    at = whole.index(row(2, 2000).body)
    path.write_bytes(whole[:at] + b"\0" + whole[at + 1 :])
    journal = JournalFile(path, "normal")
    assert [each.number for each in journal.rows()] == [1, 3]
    assert journal.damaged == 1
    journal.close()


def test_the_journal_of_a_killed_scheduler_is_read_from_a_full_disk(tmp_path: Path) -> None:
    with small_memory(tmp_path, 4):
        subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "journal")], check=True)
        fill(tmp_path / "filler")
        journal = JournalFile(tmp_path / "journal", "normal")
        assert list(journal.rows()) == [Row(1, RecordKind.SUBMIT, 99, b"body")]
        with pytest.raises(sqlite3.OperationalError, match="full"):
            journal.write(Batch([row(2, 10_000)], []))
        journal.close()
        with pytest.raises(JournalError, match="another cannot be opened: the disk is full: make room, or name"):
            JournalFile(tmp_path / "another", "normal")


def test_a_full_disk_changes_nothing_and_the_ballast_helps(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_memory(folder, 32):
        journal = JournalFile(folder / "journal", "normal")
        assert journal.take_ballast()
        written = 0
        with pytest.raises(sqlite3.OperationalError, match="full"):
            while True:
                journal.write(Batch([row(written + 1, 100_000), row(written + 2, 100_000)], []))
                written += 2
        assert [each.number for each in journal.rows()] == list(range(1, written + 1))
        journal.drop_ballast()
        journal.write(Batch([row(written + 1, 100_000)], [1]))
        journal.write(Batch([], list(range(2, written))))
        for _ in range(8):
            journal.checkpoint()
        assert journal.take_ballast(), "there is room again"
        assert [each.number for each in journal.rows()] == [written, written + 1]
        journal.close()
        assert (folder / "journal-ballast").stat().st_size == BALLAST_BYTES


def test_links_lead_to_one_journal(tmp_path: Path) -> None:
    """Also one that leads nowhere yet; all files are beside the one that it leads to."""
    link, target = tmp_path / "link", tmp_path / "disk" / "journal"
    target.parent.mkdir()
    link.symlink_to(target)
    journal = JournalFile(link, "normal")
    assert journal.take_ballast()
    for path in (link, target):
        with pytest.raises(JournalError, match=f"journal {target} is in use by another scheduler"):
            JournalFile(path, "normal")
    journal.close()
    assert [path.name for path in tmp_path.iterdir() if path != target.parent] == ["link"]
    assert {path.name for path in target.parent.iterdir()} == {"journal", "journal-ballast"}
