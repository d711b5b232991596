"""The history across restarts, and what befalls its file."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scaler_protocol.messages import Status
from scaler_protocol.monitoring import EventKind, TaskStep
from scaler_protocol.profiles import Profile
from scaler_ui.history.file import IN_USE, HistoryFile
from scaler_ui.history.keeper import HistoryKeeper
from scaler_ui.model import failures, views
from scaler_ui.model.addresses import PageRequest
from scaler_ui.model.kept import Kept, KeptTask
from scaler_ui.model.model import MonitorModel
from scaler_ui.model.workload_views import kept_sentences, minute_lines
from scaler_ui.model.workloads import Workload
from support.mounts import fill, small_memory
from support.waiting import wait_until

if TYPE_CHECKING:
    from conftest import Publications

DAY = 86_400.0
HIGH = 2**63 + 12
"""The id of a task of a nested session: numbers of SQLite are signed."""
ALL = PageRequest(order="since")


@contextmanager
def keeping(path: Path, model: MonitorModel, days: int = 7) -> Iterator[HistoryKeeper]:
    keeper = HistoryKeeper(HistoryFile(path, days), model)
    yield keeper
    keeper.close()


def worked(publications: Publications, model: MonitorModel) -> None:
    """One task succeeds, one raises, one is cancelled; two minutes pass."""
    model.take(publications.status(at=6000.0, incarnation=5), 1.0)
    model.take(publications.groups((1, "jobs:price", 7, 0, "", "")), 1.0)
    model.take(publications.batch(TaskStep.WAITING, 1, HIGH, 2, 3, time=6000.0), 1.0)
    model.take(publications.batch(TaskStep.ASSIGNED, 1, HIGH, 2, time=6001.0), 1.0)
    moved = Profile(1500, 900, 2_000_000, 77, 0, 1, fetch_us=30, store_us=40).packed()
    model.take(publications.batch(TaskStep.ENDED, 1, HIGH, time=6002.0, profiles=moved), 1.0)
    text: dict[str, Any] = {
        "text_numbers": (1,), "text_times": (6003.0,), "text_levels": (40,), "text_kinds": (EventKind.FAILURE,),
        "text_tasks": (2,), "text_subjects": ("",), "texts": ("Traceback (most recent call last):\nValueError: no",),
    }  # fmt: skip
    model.take(publications.batch(TaskStep.ENDED, 1, 2, time=6003.0, statuses=bytes([Status.RAISED]), **text), 1.0)
    model.take(publications.batch(TaskStep.CANCELLED, 0, 3, time=6004.0), 1.0)
    for at in (6030.0, 6070.0):
        model.take(publications.status(at=at, incarnation=5), 1.0)


def everything(model: MonitorModel) -> list[object]:
    """What pages show of the past."""
    return [
        views.tasks(model, ALL).rows,
        [(row.id, row.fetch, row.store) for row in map(model.tasks.row, range(len(model.tasks)))],
        failures.failure_groups(model, PageRequest(order="last")).rows,
        views.functions(model, PageRequest(order="calls")).rows,
        list(model.workloads.rows.values()),
        list(model.minutes.rows),
        dict(model.faults),
    ]


def test_pages_show_after_a_restart_what_was_before(publications: Publications, tmp_path: Path) -> None:
    path, before, after = tmp_path / "history.db", MonitorModel(), MonitorModel()
    with keeping(path, before) as keeper:
        worked(publications, before)
        keeper.turn()
        assert kept_sentences(keeper.state) == (f"Kept for 7 days in {path}.", False)
    assert sys.platform == "win32" or path.stat().st_mode & 0o777 == 0o600
    assert len(before.tasks) == 3 and len(before.minutes.rows) == 1
    with keeping(path, after):
        assert everything(after) == everything(before)
        worked(publications, after)  # numbers and ids go on where they were
        assert len(after.tasks) == 6 and after.functions["jobs:price"].count == 6
        assert [(each.number, each.tasks) for each in after.workloads.rows.values()] == [(1, 6)]
    again = MonitorModel()
    with keeping(path, again):
        assert len(again.tasks) == 6 and [each.tasks for each in again.workloads.rows.values()] == [6]
        assert again.hosts[again.tasks.agent(0)] == "vm"


def test_a_killed_process_leaves_what_it_has_written(publications: Publications, tmp_path: Path) -> None:
    path, left, model = tmp_path / "history.db", tmp_path / "left", MonitorModel()
    left.mkdir()
    with keeping(path, model) as keeper:
        worked(publications, model)
        keeper.turn()
        wait_until(lambda: keeper.is_idle, "it is written")
        for file in tmp_path.glob("history.db*"):
            shutil.copy(file, left)  # as it is at this moment
    assert len(kept_in(left / "history.db").tasks) == 3


def test_work_goes_on_while_it_is_written(publications: Publications, tmp_path: Path) -> None:
    path, model, rounds = tmp_path / "history.db", MonitorModel(), 300
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the history's thread is interrupted everywhere
    try:
        with keeping(path, model) as keeper:
            model.take(publications.groups((1, "jobs:price", 7, 0, "", "")), 1.0)
            for number in range(rounds):  # each counts in a bucket of its own, on an hour's workload
                took = Profile(round(1.05 ** (number + 1)), 1, 1, 77, 0, 1).packed()
                model.take(publications.batch(TaskStep.ENDED, 1, number, time=6000.0, profiles=took), 1.0)
                keeper.turn()
            keeper.close()
            assert keeper.is_idle and not keeper.state.fault and not keeper.state.left_out
    finally:
        sys.setswitchinterval(before)
    kept = kept_in(path)
    assert [each.task for each in kept.tasks] == list(range(rounds))
    assert kept.workloads == list(model.workloads.rows.values()) and kept.workloads[0].runs.count == rounds


def test_a_client_whose_name_comes_later_is_kept_with_it(publications: Publications, tmp_path: Path) -> None:
    path, model = tmp_path / "history.db", MonitorModel()
    with keeping(path, model) as keeper:
        model.take(publications.groups((1, "f", 77, 0, "", "")), 1.0)
        model.take(publications.batch(TaskStep.WAITING, 1, 5), 1.0)
        model.take(publications.batch(TaskStep.ENDED, 1, 5), 1.0)
        keeper.turn()
        model.take(publications.status(client_sessions=(77, 8), client_names=("nightly", "")), 1.0)
        keeper.turn()
    with keeping(path, MonitorModel()) as keeper:
        keeper.close()
        with closing(sqlite3.connect(path)) as opened:
            assert opened.execute("SELECT name FROM clients").fetchall() == [("nightly",)]


def turned(keeper: HistoryKeeper) -> HistoryKeeper:
    keeper.turn()
    return keeper


def kept_in(path: Path) -> Kept:
    file = HistoryFile(path, 7)
    file.open()
    kept = file.load()
    file.close()
    return kept


def task(number: int, ended: float) -> KeptTask:
    return KeptTask(number, "f", 1, 0, "vm:1", "vm", 7, 0, 1, ended, ended, ended, 10, 10, 10, 4, 5)


def test_numbers_that_sqlite_cannot_hold_are_kept_as_its_greatest(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history.db", 7)
    file.write(Kept([task(HIGH, 1000.0)._replace(memory=2**64 - 1)]))
    assert file.load().tasks == [task(HIGH, 1000.0)._replace(memory=2**63 - 1)]
    file.close()


def test_the_file_is_bounded_by_days_and_by_rows(tmp_path: Path) -> None:
    file = HistoryFile(tmp_path / "history.db", days=2, tasks=10)
    file.write(Kept([task(number, 1000.0) for number in range(5)], at=1000.0))
    assert len(file.load().tasks) == 5
    file.write(Kept([task(number, 1000.0 + 3 * DAY) for number in range(5, 8)], at=1000.0 + 3 * DAY))
    assert [each.task for each in file.load().tasks] == [5, 6, 7]
    file.write(Kept([task(number, 1000.0 + 3 * DAY) for number in range(100)], at=1000.0 + 3 * DAY))
    assert [each.task for each in file.load().tasks] == list(range(90, 100))
    file.write(Kept(at=1000.0 + 9 * DAY))
    assert file.load().tasks == [], "when all is too old"
    file.close()


def test_a_clock_that_jumps_loses_nothing(publications: Publications, tmp_path: Path) -> None:
    path, model, now = tmp_path / "history.db", MonitorModel(), datetime.now(timezone.utc).timestamp() // 60 * 60
    with keeping(path, model) as keeper:
        model.take(publications.groups((1, "jobs:price", 7, 0, "", "")), 1.0)
        for first, shift in ((1, -2 * DAY), (3, 20 * DAY), (5, 0.0)):  # the scheduler's clock is ahead for a while
            for at in (0.0, 50.0, 60.0):
                model.take(publications.status(at=now + shift + at, incarnation=5), 1.0)
            model.take(publications.batch(TaskStep.WAITING, 1, first, first + 1, time=now + shift), 1.0)
            model.take(publications.batch(TaskStep.ENDED, 1, first, first + 1, time=now + shift + 1), 1.0)
            wait_until(lambda: turned(keeper).is_idle, "it is written")
    kept = kept_in(path)
    assert [each.task for each in kept.tasks] == [1, 2, 3, 4, 5, 6]
    assert [each.tasks for each in kept.workloads] == [2, 2, 2], "calls after a break"
    assert [minute.at for minute in kept.minutes] == [now - 2 * DAY, now, now + 20 * DAY]
    assert kept.minutes == list(model.minutes.rows)
    assert [value for _, value in minute_lines(model, 7)["cpu"]].count(None) == 1, "what is in the future is not drawn"


@pytest.mark.parametrize("name", [":memory:", "file:history.db", "history.db?mode=memory"])
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names of files")
def test_a_name_that_sqlite_would_take_for_something_else_is_a_file(
    publications: Publications, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = MonitorModel()
    with keeping(Path(name), model):
        worked(publications, model)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with keeping(Path(name), again := MonitorModel()):
        assert len(again.tasks) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@pytest.mark.parametrize("target", ["real.db", "nowhere.db", "link.db"])
def test_a_symbolic_link_is_not_followed_and_called_so(tmp_path: Path, target: str) -> None:
    (tmp_path / "real.db").touch(0o600)
    (link := tmp_path / "link.db").symlink_to(target)
    with keeping(link, MonitorModel()) as keeper:
        assert "it is a symbolic link: name the file that it leads to" in kept_sentences(keeper.state)[0]


def test_a_file_of_another_program_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text, database = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("do not lose me" * 100, "utf-8")
    with closing(sqlite3.connect(database)) as opened:
        opened.executescript("CREATE TABLE tasks (mine); INSERT INTO tasks VALUES (1)")
    for path in (text, database, tmp_path):
        os.chmod(path, 0o700 if path == tmp_path else 0o600)
        before = None if path == tmp_path else path.read_bytes()
        caplog.clear()
        with keeping(path, MonitorModel()) as keeper:
            said, is_bad = kept_sentences(keeper.state)
            assert is_bad and said.startswith("Nothing is kept now, which is tried again every few seconds: ")
            assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert before is None or path.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "other.db"]


@pytest.mark.parametrize("damage", ["torn", "overwritten", "odd values"])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begins(
    publications: Publications, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, model = tmp_path / "history.db", MonitorModel()
    file = HistoryFile(path, 7)
    file.write(Kept([task(number, 1000.0) for number in range(2000)]))
    file.close()
    if damage == "odd values":
        with sqlite3.connect(path) as database:
            database.execute("UPDATE tasks SET session = 'x' WHERE number = 7")
        database.close()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: 3 * 4096] + (b"" if damage == "torn" else b"\xff" * (len(content) - 3 * 4096)))
    with keeping(path, model) as keeper:
        worked(publications, model)
        keeper.turn()
        moved = tmp_path / "history.db.damaged"
        assert f"An earlier file was damaged: it is now {moved}." in kept_sentences(keeper.state)[0]
        [warning] = [record.getMessage() for record in caplog.records]
        assert warning.startswith(f"the history {path} was damaged: it is now {moved}, and a new one begins: ")
    with keeping(path, MonitorModel()) as keeper:
        assert not kept_sentences(keeper.state)[1]
    assert moved.stat().st_size > 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files that are open")
def test_a_file_that_is_removed_or_cut_off_while_it_is_in_use(
    publications: Publications, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, model = tmp_path / "history.db", MonitorModel()
    harms: list[Callable[[], object]] = [path.unlink, lambda: os.truncate(path, 0), lambda: path.rename(tmp_path / "x")]
    with keeping(path, model) as keeper:
        for number, harm in enumerate(harms):
            model.take(publications.batch(TaskStep.ENDED, 1, 10 + number), 1.0)
            wait_until(lambda: turned(keeper).is_idle, "what is known is written")
            harm()
            model.take(publications.batch(TaskStep.ENDED, 1, 20 + number), 1.0)
            wait_until(lambda: turned(keeper).is_idle and not keeper.state.fault, "a new file has begun")
            assert path.exists()
    assert [each.task for each in kept_in(path).tasks] == [22]
    said = [record.getMessage() for record in caplog.records]
    assert said[0].endswith(f"{path}: it was removed while it was in use")
    assert said[1] == f"the history is kept again: {path}" and len(said) == 5
    assert said[2].endswith("and a new one begins: it was cut off while it was in use")


def test_a_file_that_another_scaler_ui_has_is_waited_for(publications: Publications, tmp_path: Path) -> None:
    path, model = tmp_path / "history.db", MonitorModel()
    first = HistoryFile(path, 7)
    first.write(Kept([task(1, 1000.0)]))
    with keeping(path, model) as keeper:
        assert keeper.state.fault == IN_USE
        worked(publications, model)
        first.close()
        wait_until(lambda: not turned(keeper).state.fault, "the file is had")
    assert [each.task for each in kept_in(path).tasks] == [1, HIGH, 2, 3]


def test_workloads_of_a_file_that_comes_late_are_not_replaced(publications: Publications, tmp_path: Path) -> None:
    path, model = tmp_path / "history.db", MonitorModel()
    first = HistoryFile(path, 7)
    night = Workload(1, "jobs:night", 9, 10.0, 20.0, {0: 500})
    first.write(Kept(workloads=[night]))
    with keeping(path, model) as keeper:
        first.close()
        worked(publications, model)
        wait_until(lambda: not turned(keeper).state.fault and keeper.is_idle, "the file is had")
        said, is_bad = kept_sentences(keeper.state)
        assert is_bad and said.endswith("it is kept, and shown when scaler_ui starts again.")
        model.take(publications.batch(TaskStep.ENDED, 1, 5, time=6005.0), 1.0)  # its workload is written again
        model.take(publications.groups((2, "jobs:other", 7, 0, "", "")), 1.0)
        model.take(publications.batch(TaskStep.WAITING, 2, 6, time=6006.0), 1.0)
        model.take(publications.batch(TaskStep.ENDED, 1, 6, time=6006.0), 1.0)
    again = MonitorModel()
    with keeping(path, again) as keeper:
        assert not kept_sentences(keeper.state)[1] and again.workloads.rows[1] == night
        new = {each.number: (each.function, each.tasks) for each in list(again.workloads.rows.values())[1:]}
    assert new == {each.number + 1: (each.function, each.tasks) for each in model.workloads.rows.values()}
    assert len(new) > 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps files that are open")
def test_a_log_that_is_removed_while_it_is_in_use_loses_nothing(publications: Publications, tmp_path: Path) -> None:
    path, left, model = tmp_path / "history.db", tmp_path / "left", MonitorModel()
    left.mkdir()
    with keeping(path, model) as keeper:
        for number in (1, 2, 3):
            model.take(publications.batch(TaskStep.ENDED, 1, number), 1.0)
            wait_until(lambda: turned(keeper).is_idle and not keeper.state.fault, "it is written")
            path.with_name("history.db-wal").unlink(missing_ok=number != 3)
        model.take(publications.batch(TaskStep.ENDED, 1, 4), 1.0)
        wait_until(lambda: turned(keeper).is_idle and not keeper.state.fault, "it is written")
        for file in tmp_path.glob("history.db*"):
            shutil.copy(file, left)  # as a killed process would leave it
    assert [each.task for each in kept_in(left / "history.db").tasks] == [1, 2, 3, 4]


@pytest.mark.skipif(sys.platform != "linux", reason="it needs /dev/full and mount points")
def test_a_full_disk_leaves_the_pages_alive_and_nothing_is_lost_when_there_is_room(
    publications: Publications, tmp_path: Path
) -> None:
    filler, path, model = tmp_path / "filler", tmp_path / "history.db", MonitorModel()
    with small_memory(tmp_path, 1), keeping(path, model) as keeper:
        fill(filler)
        model.take(publications.groups((1, "f", 7, 0, "", "")), 1.0)
        many = range(10, 5010)
        model.take(publications.batch(TaskStep.ENDED, 1, *many), 1.0)
        wait_until(lambda: bool(turned(keeper).state.fault), "the disk is found full")
        assert "full: make room on its disk" in keeper.state.fault and kept_sentences(keeper.state)[1]
        filler.unlink()
        wait_until(lambda: not turned(keeper).state.fault, "there is room again")
        keeper.close()
        assert [each.task for each in kept_in(path).tasks] == [*many]


def test_memory_that_is_short_for_a_while_loses_nothing(
    publications: Publications, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, model, write = tmp_path / "history.db", MonitorModel(), HistoryFile.write

    def without_memory(file: HistoryFile, kept: Kept) -> None:
        raise MemoryError

    monkeypatch.setattr(HistoryFile, "write", without_memory)
    with keeping(path, model) as keeper:
        worked(publications, model)
        wait_until(lambda: bool(turned(keeper).state.fault), "memory is short")
        assert keeper.state.fault == "there is too little memory: raise the limit of scaler_ui, or end other programs"
        monkeypatch.setattr(HistoryFile, "write", write)
        wait_until(lambda: not turned(keeper).state.fault, "there is memory again")
    assert len(kept_in(path).tasks) == 3


def test_a_folder_that_appears_later_gets_the_history(publications: Publications, tmp_path: Path) -> None:
    path, model = tmp_path / "later" / "history.db", MonitorModel()
    with keeping(path, model) as keeper:
        assert keeper.state.fault == "No such file or directory: make its folder, or name another file"
        worked(publications, model)
        path.parent.mkdir()
        wait_until(lambda: not turned(keeper).state.fault, "the file is made")
    assert len(kept_in(path).tasks) == 3


def test_what_a_dead_disk_cannot_take_is_left_out_and_counted(
    publications: Publications, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scaler_ui.history.keeper.UNWRITTEN_ROWS", 10)
    path, model = tmp_path / "nowhere" / "history.db", MonitorModel()
    with keeping(path, model) as keeper:
        for first in range(0, 100, 5):
            model.take(publications.batch(TaskStep.ENDED, 1, *range(first, first + 5)), 1.0)
            keeper.turn()
        assert 80 < keeper.state.left_out <= 130
        assert "rows were left out" in kept_sentences(keeper.state)[0]
