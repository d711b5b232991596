"""Programs that managers run, and what is shown when they fail."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from scaler_io.provisioning.provisioner import ProvisionerError
from scaler_worker.managers import programs
from scaler_worker.managers.programs import end_programs, output_of, run_program, shell_words
from support.processes import Watched
from support.waiting import wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_program_reads_its_input_and_answers() -> None:
    assert output_of(python("print(input() * 2)"), "ab\n") == "abab\n"


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (python("import sys; print('a\\n\\n b', file=sys.stderr); sys.exit(3)"), "a; b"),
        (python("import os; os._exit(3)"), "exit code 3"),
        (python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), "signal 9"),
        (["/no/such/program"], "/no/such/program is not installed on this host, or not in PATH"),
    ],
)
def test_failures_are_told_in_one_line(words: list[str], fault: str) -> None:
    with pytest.raises(ProvisionerError) as failed:
        output_of(words)
    assert str(failed.value).endswith(fault) and "\n" not in str(failed.value)


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PROGRAM_SECONDS", 0.1)
    with pytest.raises(ProvisionerError, match=r"has not answered for 0\.1 s"):
        output_of(python("import time; time.sleep(60)"))


def test_programs_under_way_are_ended_with_what_they_have_started(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/sleep; wait"
    call = threading.Thread(target=run_program, args=(["sh", "-c", script],))
    call.start()
    file = tmp_path / "sleep"
    wait_until(lambda: file.exists() and file.read_text(), "a program that has started another one")

    def has_ended() -> bool:
        end_programs()  # the thread may not have noted yet what it has started
        return not call.is_alive()

    with Watched([int(file.read_text())]) as watched:
        wait_until(has_ended, "the end of the call")
        assert watched.wait_gone(5) == []


def test_words_are_split_as_by_a_shell() -> None:
    assert shell_words("-o 'a b'") == ("-o", "a b")
    with pytest.raises(ValueError, match="no closing quotation"):
        shell_words("'a")
