"""The name of a client where none is given."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from scaler_client.client_name import client_name


@pytest.mark.parametrize(
    ("program", "shown"),
    [("/home/ann/train.py", "train.py"), ("/lib/tool/__main__.py", "tool"), ("-c", "python"), ("", "python")],
)
def test_user_host_script_and_process(monkeypatch: pytest.MonkeyPatch, program: str, shown: str) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    monkeypatch.setattr(sys, "argv", [program])
    assert client_name(None) == f"ann@{socket.gethostname()} {shown} {os.getpid()}"


def test_a_user_without_an_entry_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def getuser() -> str:
        raise KeyError("no entry")

    monkeypatch.setattr("getpass.getuser", getuser)
    assert client_name(None).partition("@")[0] == str(os.getuid())
