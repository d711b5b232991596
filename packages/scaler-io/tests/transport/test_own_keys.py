"""The user's own keys: where they are, who makes them, and when connections use them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from scaler_io.security.key_files import load_credentials, make_keys
from scaler_io.security.keyring import CLIENT_KEYS, KeyFileError, KeyRole, credentials_text
from scaler_io.transport import own_keys as module
from scaler_io.transport.curve import new_pair
from scaler_io.transport.own_keys import credentials_for, key_place, own_keys
from scaler_protocol.addresses import Address

LOCAL, FAR = Address.parse("tcp://127.0.0.1:2345"), Address.parse("tcp://10.0.0.5:2345")
DEADLINE = 60


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This user's runtime directory, and another directory of temporary files."""
    place = tmp_path / "users" / str(os.getuid())
    place.parent.mkdir()
    place.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.setattr(module, "_USERS", tmp_path / "users")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return place


def test_keys_are_made_once_and_found_again(runtime: Path) -> None:
    made = own_keys()
    assert made == runtime / "scaler-keys"
    assert own_keys() == made
    assert {path.name for path in made.iterdir()} == {
        "authorized.toml", "client.key", "monitor.key", "operator.key", "server.key", "worker.key",
    }  # fmt: skip
    assert [path.name for path in runtime.iterdir()] == ["scaler-keys"]
    first = load_credentials(made, [KeyRole.CLIENT])
    assert credentials_for(LOCAL, None, False, CLIENT_KEYS) == first


def test_a_public_key_of_another_secret_is_refused_with_the_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    path = keys / "client.key"
    credentials = load_credentials(keys, [KeyRole.CLIENT])
    path.write_text(credentials_text(replace(credentials, secret=new_pair().secret)))
    with pytest.raises(KeyFileError, match=rf"{path}: its public and its secret key are no pair: copy the file again"):
        credentials_for(FAR, keys, False, CLIENT_KEYS)
    path.write_text(credentials_text(credentials))
    assert credentials_for(FAR, keys, False, CLIENT_KEYS) == credentials


def test_programs_that_start_at_once_use_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    script = (
        "import sys; from scaler_io.transport.own_keys import own_keys; print('ready', flush=True); sys.stdin.read();"
        "print((own_keys() / 'server.key').read_text())"
    )
    programs = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for program in programs:
        assert program.stdout is not None and program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.close()
        program.stdin = None
    found = {program.communicate(timeout=DEADLINE)[0] for program in programs}
    assert found == {(runtime / "scaler-keys" / "server.key").read_text("utf-8") + "\n"}
    assert [path.name for path in runtime.iterdir()] == ["scaler-keys"]


def test_they_are_for_addresses_that_only_this_host_can_reach(runtime: Path, tmp_path: Path) -> None:
    assert key_place(FAR, None, False) is None
    assert key_place(LOCAL, None, True) is None
    assert key_place(LOCAL, tmp_path, False) == tmp_path == key_place(FAR, tmp_path, False)
    assert not list(runtime.iterdir())
    for text in ("tcp://localhost:1", "tcp://127.5.5.5:1", "tcp://[::1]:1", "ipc:///tmp/socket"):
        assert key_place(Address.parse(text), None, False) == runtime / "scaler-keys"


def test_keys_and_insecure_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contradict each other: leave one out, and unset SCALER_KEYS or SCALER_INSEC"):
        key_place(LOCAL, tmp_path, True)


def test_without_a_runtime_directory_they_are_among_temporary_files(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    runtime.rmdir()
    place = tmp_path / "temporary" / f"scaler-keys-{os.getuid()}"
    assert own_keys() == place
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))  # as in a later login of the same user
    assert own_keys() == place


def test_a_program_without_the_variable_finds_the_runtime_directory(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = own_keys()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert own_keys() == made == runtime / "scaler-keys"


@pytest.mark.parametrize("unusable", ["another user's", "relative", "missing", "open to all"])
def test_a_runtime_directory_that_is_not_ours_alone_is_not_used(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unusable: str
) -> None:
    runtime.rmdir()
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    named = {"relative": "runtime", "missing": str(tmp_path / "gone"), "another user's": "/proc/1"}
    monkeypatch.setenv("XDG_RUNTIME_DIR", named.get(unusable, str(runtime)))
    if unusable == "open to all":
        runtime.chmod(0o755)
    assert own_keys() == tmp_path / "temporary" / f"scaler-keys-{os.getuid()}"


@pytest.mark.parametrize("trap", ["link", "file", "open"])
def test_a_directory_that_another_user_may_have_made_is_refused(runtime: Path, tmp_path: Path, trap: str) -> None:
    place = runtime / "scaler-keys"
    if trap == "link":
        make_keys(tmp_path / "other", new_pair)
        place.symlink_to(tmp_path / "other")
    elif trap == "file":
        place.touch(0o600)
    else:
        place.mkdir()
        place.chmod(0o755)
    with pytest.raises(KeyFileError, match=r"scaler-keys is not a directory that this user alone can use: remove it, "):
        own_keys()


def test_where_nothing_is_safe_the_remedy_is_named(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    runtime.rmdir()
    (tmp_path / "temporary").chmod(0o777)
    with pytest.raises(KeyFileError, match="set XDG_RUNTIME_DIR, or name a directory of keys with --keys, or use none"):
        own_keys()


def test_where_nothing_can_be_written_the_place_is_named(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    runtime.rmdir()
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    with pytest.raises(KeyFileError, match=r"own keys cannot be made: /proc/.*; name a directory of keys with --keys"):
        own_keys()


def test_clients_on_systems_without_services_use_none(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert key_place(LOCAL, None, False) is None
