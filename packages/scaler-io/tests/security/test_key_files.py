"""Files of keys: who may own and use them, and what is refused."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scaler_io.security import key_files
from scaler_io.security.key_files import (
    AUTHORIZED,
    add_key,
    keyring_version,
    load_credentials,
    load_keyring,
    make_keys,
    read_private,
    revoke_key,
)
from scaler_io.security.keyring import (
    CLIENT_KEYS,
    OPERATOR_KEYS,
    READER_KEYS,
    SUBSCRIBER_KEYS,
    WORKER_KEYS,
    KeyFileError,
    KeyPair,
    KeyRole,
)

_numbers = itertools.count(1)


def generate() -> KeyPair:
    number = next(_numbers)
    return KeyPair(number.to_bytes(32, "big"), (1 << 200 | number).to_bytes(32, "big"))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    make_keys(made, generate)
    return made


def test_a_new_cluster_has_one_file_per_role_which_nobody_else_can_use(keys: Path) -> None:
    assert sorted(path.name for path in keys.iterdir()) == [
        "authorized.toml", "client.key", "monitor.key", "operator.key", "server.key", "worker.key",
    ]  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.iterdir()} == {0o600}
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    server = load_credentials(keys, [KeyRole.SERVER])
    keyring = load_keyring(keys)
    for role in (KeyRole.WORKER, KeyRole.CLIENT, KeyRole.OPERATOR, KeyRole.MONITOR):
        made = load_credentials(keys, [role])
        assert made.server == server.holder.key
        assert keyring[made.holder.key] == made.holder
    assert server.holder.key not in keyring


def test_keys_are_never_overwritten(keys: Path) -> None:
    before = (keys / "server.key").read_bytes()
    with pytest.raises(KeyFileError, match="holds keys already"):
        make_keys(keys, generate)
    with pytest.raises(FileExistsError):
        key_files.create(keys / "server.key", "other")
    assert (keys / "server.key").read_bytes() == before
    assert len(list(keys.iterdir())) == 6, "a temporary file is left"


def test_the_first_role_that_the_directory_holds_is_taken(keys: Path) -> None:
    (keys / "monitor.key").unlink()
    assert load_credentials(keys, SUBSCRIBER_KEYS).holder.role is KeyRole.OPERATOR


@pytest.mark.parametrize("roles", [WORKER_KEYS, CLIENT_KEYS, OPERATOR_KEYS, READER_KEYS, SUBSCRIBER_KEYS])
def test_nobody_but_services_uses_the_services_key(keys: Path, roles: Sequence[KeyRole]) -> None:
    """Not even in its directory, where the key of a role is missing as soon as it was revoked."""
    for role in roles:
        revoke_key(keys, role.value)
    make = f"scaler keys add-client NAME --role {roles[0].value} --keys {keys}"
    with pytest.raises(KeyFileError, match=f"has no .*: server.key is for services alone; `{make}`"):
        load_credentials(keys, roles)


def test_where_no_key_is_its_remedy_is_named(keys: Path, tmp_path: Path) -> None:
    handed = add_key(keys, "ada", KeyRole.CLIENT, generate)
    services = f"{handed} has no server.key: name the services' directory; services on other hosts need copies of "
    services += "server.key and authorized.toml"
    with pytest.raises(KeyFileError, match=services):
        add_key(handed, "bob", KeyRole.CLIENT, generate)
    with pytest.raises(KeyFileError, match=r"has no authorized\.toml.* name the services' directory"):
        load_keyring(handed)
    with pytest.raises(KeyFileError, match=r"has no operator\.key: ask who runs the scheduler for a file"):
        load_credentials(handed, OPERATOR_KEYS)
    (new := tmp_path / "new").mkdir(mode=0o700)
    with pytest.raises(KeyFileError, match=r"has no server\.key: `scaler keys init` makes the keys of a new cluster"):
        load_credentials(new, [KeyRole.SERVER])


def test_a_file_of_another_role_is_refused(keys: Path) -> None:
    (keys / "client.key").replace(keys / "operator.key")
    with pytest.raises(KeyFileError, match=r"the key in it has the role client: name the file client\.key"):
        load_credentials(keys, [KeyRole.OPERATOR])


def test_keys_are_added_and_revoked_by_name(keys: Path) -> None:
    before = keyring_version(keys)
    handed = add_key(keys, "ada", KeyRole.CLIENT, generate)
    assert keyring_version(keys) != before
    assert handed == keys / "clients" / "ada"
    assert stat.S_IMODE(handed.stat().st_mode) == 0o700
    given = load_credentials(handed, [KeyRole.CLIENT])
    assert load_keyring(keys)[given.holder.key].name == "ada"
    assert given.server == load_credentials(keys, [KeyRole.CLIENT]).server
    with pytest.raises(KeyFileError, match="there is a key ada already"):
        add_key(keys, "ada", KeyRole.WORKER, generate)

    assert revoke_key(keys, "ada") == given.holder
    assert given.holder.key not in load_keyring(keys)
    assert not handed.exists()
    with pytest.raises(KeyFileError, match="has no key 'ada'; it has worker, client, operator, monitor"):
        revoke_key(keys, "ada")
    add_key(keys, "ada", KeyRole.CLIENT, generate)


def test_keys_that_are_added_and_revoked_at_the_same_time_are(keys: Path) -> None:
    names, gone = [f"new-{number}" for number in range(8)], [f"old-{number}" for number in range(4)]
    for name in gone:
        add_key(keys, name, KeyRole.CLIENT, generate)
    with ThreadPoolExecutor(12) as pool:
        changes: list[Future[Any]] = [
            *(pool.submit(add_key, keys, name, KeyRole.CLIENT, generate) for name in names),
            *(pool.submit(revoke_key, keys, name) for name in gone),
        ]
        for change in changes:
            change.result()
    listed = {holder.name for holder in load_keyring(keys).values()}
    assert listed == {*names, "worker", "client", "operator", "monitor"}


def test_the_key_of_a_role_is_replaced_while_both_are_valid(keys: Path) -> None:
    handed = add_key(keys, "worker-2", KeyRole.WORKER, generate)
    old = load_credentials(keys, [KeyRole.WORKER]).holder
    new = load_credentials(handed, [KeyRole.WORKER]).holder
    assert {old.key, new.key} <= load_keyring(keys).keys()
    (handed / "worker.key").replace(keys / "worker.key")
    revoke_key(keys, "worker")
    assert load_credentials(keys, [KeyRole.WORKER]).holder == new, "the file holds the new key, not the revoked one"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(keys: Path, mode: int) -> None:
    (keys / "client.key").chmod(mode)
    with pytest.raises(KeyFileError, match=rf"can be used by others, mode {mode & 0o77:03o}: chmod go="):
        load_credentials(keys, [KeyRole.CLIENT])
    (keys / AUTHORIZED).chmod(mode)
    with pytest.raises(KeyFileError, match="can be used by others"):
        load_keyring(keys)


def test_a_directory_that_others_can_use_is_refused(keys: Path) -> None:
    keys.chmod(0o750)
    with pytest.raises(KeyFileError, match="can be used by others, mode 050"):
        load_credentials(keys, [KeyRole.CLIENT])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_files_of_other_users_are_refused(keys: Path) -> None:
    os.chown(keys / "client.key", 65534, -1)
    with pytest.raises(KeyFileError, match="belongs to user 65534, not to 0"):
        load_credentials(keys, [KeyRole.CLIENT])
    os.chown(keys, 65534, -1)
    with pytest.raises(KeyFileError, match="belongs to user 65534"):
        load_credentials(keys, [KeyRole.WORKER])


def test_links_pipes_and_directories_are_refused(keys: Path) -> None:
    key = keys / "client.key"
    other = keys / "other"
    key.rename(other)
    key.symlink_to(other)
    with pytest.raises(KeyFileError, match=r"client\.key is a symbolic link: copy the file itself"):
        load_credentials(keys, [KeyRole.CLIENT])
    key.unlink()
    key.hardlink_to(other)
    with pytest.raises(KeyFileError, match="has 2 names"):
        load_credentials(keys, [KeyRole.CLIENT])
    key.unlink()
    os.mkfifo(key, 0o600)
    with pytest.raises(KeyFileError, match="is no file"):
        load_credentials(keys, [KeyRole.CLIENT])
    key.unlink()
    key.mkdir()
    with pytest.raises(KeyFileError, match="is no file"):
        load_credentials(keys, [KeyRole.CLIENT])


def test_a_directory_that_is_missing_or_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        load_credentials(tmp_path / "nowhere", [KeyRole.CLIENT])
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="is no directory"):
        load_credentials(tmp_path / "file", [KeyRole.CLIENT])
    with pytest.raises(KeyFileError, match=r"has no authorized\.toml: name the services' directory"):
        load_keyring(tmp_path)
    assert keyring_version(tmp_path) == ()


def test_a_file_that_is_torn_too_long_or_no_text_is_refused(keys: Path) -> None:
    key = keys / "client.key"
    whole = key.read_bytes()
    key.write_bytes(whole[:-20])
    with pytest.raises(KeyFileError, match=r"client\.key: line 6 is neither .*; the file may be cut off"):
        load_credentials(keys, [KeyRole.CLIENT])
    key.write_bytes(b"")
    with pytest.raises(KeyFileError, match="an entry has the keys"):
        load_credentials(keys, [KeyRole.CLIENT])
    key.write_bytes(whole + b"#" * 4096)
    with pytest.raises(KeyFileError, match="more than 4,096 bytes"):
        load_credentials(keys, [KeyRole.CLIENT])
    key.write_bytes(b"\xff")
    with pytest.raises(KeyFileError, match="is no text"):
        read_private(key, 100)


def test_a_failed_write_leaves_nothing(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    before = sorted(keys.iterdir())
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{keys / AUTHORIZED}'"):
        key_files.replace(keys / AUTHORIZED, "")
    assert sorted(keys.iterdir()) == before
    assert len(load_keyring(keys)) == 4
