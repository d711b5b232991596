"""Errors: their names, their tree, and how they travel."""

from __future__ import annotations

import copy
import inspect
import json
import pickle

import pytest

from scaler_protocol import errors
from scaler_protocol.errors import ScalerError, WorkerDiedError, describe, restore

ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ScalerError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_travels(kind: type[ScalerError]) -> None:
    error = kind("what went wrong", host="here", count=3, nothing=None)
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error), restore(describe(error))):
        assert type(copied) is kind and str(copied) == "what went wrong"
        assert copied.details == {"host": "here", "count": 3, "nothing": None}


@pytest.mark.parametrize("kind", ERRORS)
def test_the_docstring_is_the_default_message(kind: type[ScalerError]) -> None:
    assert str(kind()) == kind.__doc__ and "\n" not in str(kind())


def test_the_tree_is_in_the_module_docstring() -> None:
    doc = errors.__doc__ or ""
    for kind in ERRORS:
        also = [base.__name__ for base in kind.__bases__ if not issubclass(base, ScalerError)]
        line = f"{kind.__name__} ({', '.join(also)})" if also and kind is not ScalerError else kind.__name__
        assert any(entry.lstrip("│├└─ ") == line for entry in doc.splitlines()), line


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.TaskTimeoutError, TimeoutError),
        (errors.SchedulerLostError, ConnectionError),
        (errors.HandshakeRefusedError, ConnectionError),
        (errors.ObjectNotFoundError, KeyError),
        (errors.AddressError, ValueError),
        (errors.MalformedMessageError, ValueError),
    ],
)
def test_caught_by_the_words_of_the_standard_library(kind: type[ScalerError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("x")


def test_what_is_described_is_plain_json() -> None:
    error = WorkerDiedError("killed by SIGSEGV", path=pytest, memory=1)
    described = json.loads(describe(error))
    assert described["error"] == "WorkerDiedError" and described["message"] == "killed by SIGSEGV"
    assert described["details"]["memory"] == 1 and isinstance(described["details"]["path"], str)


def test_a_loss_names_the_run_that_has_met_it() -> None:
    for error in (errors.ObjectNotFoundError("ab is gone", size=1), errors.StorageLostError("no answer", size=1)):
        named = restore(errors.of_run(describe(error), 7))
        assert type(named) is type(error) and str(named) == str(error) and named.details == {"size": 1, "run": 7}
    for payload in (describe(errors.StorageFullError("it is full")), b"no description", bytes(24)):
        assert errors.of_run(payload, 7) == payload


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"1",
        b"null",
        b"{}",
        b'{"error": "ScalerError"}',
        b'{"error": "ScalerError", "message": "m", "details": 1}',
        b'{"error": "ScalerError", "message": "m", "details": [1]}',
        b'{"error": "ScalerError", "message": "m", "details": [[1, 2]]}',
        b"[" * 100_000,
    ],
)
def test_an_unreadable_payload_becomes_a_scaler_error(payload: bytes) -> None:
    error = restore(payload)
    assert type(error) is ScalerError and "cannot be read" in str(error)


def test_of_an_unknown_name_it_is_a_scaler_error() -> None:
    error = restore(b'{"error": ["Newer"], "message": 7, "details": {"message": "x", "host": "h"}}')
    assert type(error) is ScalerError and str(error) == "7" and error.details == {"host": "h"}


def test_details_may_have_any_names() -> None:
    details = {"self": 1, "kind": 2, "runs": 3, "": 4}
    error = restore(json.dumps({"error": "WorkerDiedError", "message": "m", "details": details}).encode())
    assert type(error) is WorkerDiedError and error.details == details
    assert pickle.loads(pickle.dumps(error)).details == details
