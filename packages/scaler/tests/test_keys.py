"""The command `scaler keys`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scaler_io.security.key_files import load_credentials, load_keyring
from scaler_io.security.keyring import KeyFileError, KeyRole
from scaler_launch.__main__ import run


def test_keys_are_made_listed_added_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    assert run(["keys", "init", str(keys)]) == 0
    said = capsys.readouterr().out
    assert f"{keys}/server.key" in said
    assert f"--keys {keys}" in said
    server = load_credentials(keys, [KeyRole.SERVER])

    assert run(["keys", "add-client", "ada", "--keys", str(keys)]) == 0
    handed = keys / "clients" / "ada"
    assert str(handed) in capsys.readouterr().out
    added = load_credentials(handed, [KeyRole.CLIENT])
    assert added.server == server.holder.key
    assert run(["keys", "add-client", "rack-7", "--role", "worker", "--keys", str(keys)]) == 0
    assert load_credentials(keys / "clients" / "rack-7", [KeyRole.WORKER]).holder.name == "rack-7"

    capsys.readouterr()
    assert run(["keys", "list", "--keys", str(keys)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in listed] == [
        ["worker", "worker"], ["client", "client"], ["operator", "operator"], ["monitor", "monitor"],
        ["client", "ada"], ["worker", "rack-7"],
    ]  # fmt: skip
    assert added.holder.key.hex() in listed[4]
    assert added.secret.hex() not in "".join(listed)

    assert run(["keys", "revoke", "ada", "--keys", str(keys)]) == 0
    assert "ada (client) is accepted no longer" in capsys.readouterr().out
    assert added.holder.key not in load_keyring(keys)


def test_the_directory_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["keys", "init", str(tmp_path / "keys")])
    monkeypatch.setenv("SCALER_KEYS", str(tmp_path / "keys"))
    assert run(["keys", "list"]) == 0
    assert "worker" in capsys.readouterr().out


def test_wrong_use_is_refused_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    with pytest.raises(ValueError, match="did you mean `scaler keys list`"):
        run(["keys", "lst"])
    with pytest.raises(KeyFileError, match="No such file"):
        run(["keys", "add-client", "ada", "--keys", str(keys)])
    run(["keys", "init", str(keys)])
    with pytest.raises(KeyFileError, match="holds keys already"):
        run(["keys", "init", str(keys)])
    with pytest.raises(KeyFileError, match="no name of a key"):
        run(["keys", "add-client", "../ada", "--keys", str(keys)])
    with pytest.raises(SystemExit):
        run(["keys", "add-client", "ada", "--role", "server", "--keys", str(keys)])
    assert "'server' is not one of worker, client, operator, monitor" in capsys.readouterr().err


def test_an_error_is_one_line_and_the_help_names_all_commands(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scaler_launch", "keys"]
    wrong = subprocess.run(
        [*command, "list", "--keys", str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("scaler: ")
    assert wrong.stderr.count("\n") == 1
    shown = subprocess.run([*command, "-h"], capture_output=True, text=True, check=True, timeout=60)
    for word in ("init", "add-client", "list", "revoke"):
        assert f"scaler keys {word}" in shown.stdout
