"""What a Symphony task executes, in a process that has cloudpickle and not Scaler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from scaler_worker.symphony import host_call
from scaler_worker.symphony.host_call import Answer
from scaler_worker.symphony.remote_call import read_answer, task_input


def executed(function: Any, *args: Any, **kwargs: Any) -> Answer:
    """As a service does it."""
    fn, *arguments = cloudpickle.loads(task_input(function, args, kwargs))
    return read_answer(cloudpickle.dumps(fn(*arguments)))


def test_arguments_and_keywords() -> None:
    answer = executed(sorted, [2, 3, 1], reverse=True)
    assert answer.ending == host_call.RETURNED and cloudpickle.loads(answer.body) == [3, 2, 1]
    assert answer.duration_us >= 0 and answer.pid > 0


def _raise(error: BaseException) -> None:
    raise error


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not this one")


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ValueError("no"), host_call.RAISED),
        (SystemExit(2), host_call.EXITED),
    ],
)
def test_exceptions(error: BaseException, ending: str) -> None:
    assert executed(_raise, error).ending == ending


def test_what_cannot_be_sent_back() -> None:
    assert executed(lambda: _raise(Unpicklable())).ending == host_call.ERROR_NOT_SENT
    answer = executed(lambda: (value for value in "ab"))
    assert answer.ending == host_call.RESULT_NOT_SENT and answer.text.startswith("generator, which cannot be sent")


def test_hosts_need_not_have_scaler(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(task_input(pow, (2, 5), {}))
    program = f"""
import sys
class NoScaler:
    def find_spec(self, name, *others):
        if name.startswith("scaler"):
            raise ImportError(name)
sys.meta_path.insert(0, NoScaler())
import cloudpickle
fn, *args = cloudpickle.loads(open({str(path)!r}, "rb").read())
sys.stdout.buffer.write(cloudpickle.dumps(fn(*args)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert cloudpickle.loads(read_answer(done.stdout).body) == 32


def test_another_output_is_an_error() -> None:
    with pytest.raises(ValueError, match="not the pickled result"):
        read_answer(cloudpickle.dumps(3))
