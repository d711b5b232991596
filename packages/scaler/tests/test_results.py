"""`scaler results`: what it makes of what tasks have left, without running their code. With a cluster: tests."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from scaler_io.service.options import UsageError
from scaler_launch import results
from scaler_launch.results import LONGEST, as_line, rows, session_name, show
from scaler_protocol.addresses import Address
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import session_key
from scaler_protocol.messages import Encoding, Status
from scaler_protocol.objects import Reference
from scaler_protocol.payloads import Payloads
from scaler_protocol.sessions import ListTasks, TaskList


class Evil:
    """Unpickling it would raise."""

    def __reduce__(self) -> Any:
        return int, ("code of the result was run",)


def row(payload: bytes, status: int = Status.VALUE, encoding: int = Encoding.PICKLE, *, stored: bool = False) -> Any:
    piece = TaskList(
        1,
        tasks=(0xAB,),
        labels=("total",),
        functions=("math:sqrt",),
        states=(3,),
        statuses=(status,),
        encodings=(encoding,),
        ages=(1.25,),
        claimed=(False,),
        results=Payloads([payload]),
        stored=(0,) if stored else (),
    )
    [only] = rows(piece)
    return only


@pytest.mark.parametrize(
    ("given", "came"),
    [
        (row(pickle.dumps({"a": [1, 2.5, "x"]})), {"result": "{'a': [1, 2.5, 'x']}"}),
        (row(pickle.dumps(Evil())), {"result": "<builtins.int, 64 bytes>"}),
        (row(b"\x80garbage"), {"result": "<8 bytes>"}),
        (row(b'{"a": 1}', encoding=Encoding.JSON), {"result": {"a": 1}}),
        (row(b"{", encoding=Encoding.JSON), {"result": "1 bytes that are not JSON"}),
        (row(b"parts", encoding=Encoding.PARTS), {"bytes": 5}),
        (row(Reference(b"o" * 16, 50_000).pack(), stored=True), {"stored_bytes": 50_000}),
        (row(describe(WorkerDiedError("killed")), Status.FAILED), {"error": "killed"}),
        (row(b"", Status.CANCELLED), {}),
        (
            row(pickle.dumps((KeyError("k"), "Traceback (most recent call last):\n  x\nKeyError: 'k'")), Status.RAISED),
            {"error": "KeyError: 'k'"},
        ),
    ],
)
def test_outcomes_are_shown_and_no_code_is_run(given: dict[str, Any], came: dict[str, Any]) -> None:
    assert {key: given[key] for key in given if key not in ("task", "name", "function", "state", "age_seconds")} == came


def test_a_line_is_short_and_printable() -> None:
    assert as_line(row(pickle.dumps(7))) == "ab succeeded math:sqrt total result 7"
    assert len(as_line({**row(b""), "name": "n" * 1000})) == LONGEST + 1
    assert "\x1b" not in as_line({**row(b""), "name": "\x1b[31m"})


def test_a_session_has_a_name() -> None:
    with pytest.raises(ValueError, match="not the name of a session"):
        session_name(" ")


@pytest.mark.parametrize("content", [b"hush", b"hush\n", b"hush\r\n"])
def test_a_session_is_proved_by_the_secret_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    asked: list[ListTasks] = []

    def fetch(address: Address, credentials: object, question: ListTasks, seconds: float) -> list[TaskList]:
        asked.append(question)
        return []

    monkeypatch.setattr(results, "fetch", fetch)
    file = tmp_path / "secret"
    file.write_bytes(content)
    words = ["tcp://127.0.0.1:1", "nightly", "--insecure", "--session-secret-file", str(file)]
    assert show(words) == 0
    assert [question.key for question in asked] == [session_key("nightly", b"hush")]
    file.write_bytes(b"\n")
    with pytest.raises(UsageError, match=f"--session-secret-file: {file} is empty"):
        show(words)
    file.unlink()
    with pytest.raises(UsageError, match=f"--session-secret-file: {file}: No such file"):
        show(words)
