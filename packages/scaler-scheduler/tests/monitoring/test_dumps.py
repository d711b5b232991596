"""How a dump is written: as text, and into files."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from scaler_scheduler.monitoring.dumps import FILES_KEPT, as_text, directory_of, remove_oldest


def test_a_line_for_each_row() -> None:
    dump = {
        "scheduler": {"address": "a", "uptime": 1.5},
        "agents": {"left_out": 3, "rows": [{"name": "x"}, {"name": "é\ud800"}]},
        "lanes": {"left_out": 0, "rows": []},
    }
    text = as_text(dump)
    assert json.loads(text) == dump
    assert text.decode("ascii").splitlines() == [
        "{",
        '"scheduler": {"address": "a", "uptime": 1.5},',
        '"agents": {"left_out": 3, "rows": [',
        '{"name": "x"},',
        '{"name": "\\u00e9\\ud800"}',
        "]},",
        '"lanes": {"left_out": 0, "rows": []}',
        "}",
    ]


def test_files_are_beside_the_first_log_file(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "scheduler.log"
    log.parent.mkdir()
    log.touch()
    link = tmp_path / "link"
    link.symlink_to(log)
    assert directory_of(["/dev/null", str(log)]) == directory_of([str(link)]) == log.parent
    assert directory_of(["/dev/null"]) == directory_of([]) == Path(tempfile.gettempdir())


def test_the_newest_files_are_kept(tmp_path: Path) -> None:
    names = [f"scaler-dump-2345-20260101T00000{number}.json" for number in range(FILES_KEPT + 3)]
    others = ["scaler-dump-2399-20250101T000000.json", "scaler-dump-2345-notes.txt"]
    for name in (*names, *others):
        (tmp_path / name).touch()
    remove_oldest(tmp_path, "scaler-dump-2345-")
    assert {path.name for path in tmp_path.iterdir()} == {*names[3:], *others}


def test_a_scheduler_without_dumps_does_not_pay_for_them() -> None:
    code = (
        "import scaler_scheduler.service.shell, sys; print({'importlib.metadata', 'email', 'zipfile'} & {*sys.modules})"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
