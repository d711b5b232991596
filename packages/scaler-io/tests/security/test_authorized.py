"""The list of accepted keys, as a service reads it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.key_files import add_key, load_credentials, make_keys, revoke_key
from scaler_io.security.keyring import KeyFileError, KeyRole
from scaler_io.transport.curve import new_pair


def test_the_list_follows_its_file(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    authorized = AuthorizedKeys(keys)
    before = authorized.keyring
    assert before[authorized.own.holder.key] == authorized.own.holder
    assert len(before) == 5
    authorized.reload()
    assert authorized.keyring is before, "an unchanged file is not read again"
    added = load_credentials(add_key(keys, "ada", KeyRole.CLIENT, new_pair), [KeyRole.CLIENT])
    authorized.reload()
    assert authorized.keyring[added.holder.key] == added.holder
    assert added.holder.key not in before
    revoke_key(keys, "ada")
    authorized.reload()
    assert authorized.keyring == before


@pytest.mark.parametrize("damage", ["missing", "torn", "open to others"])
def test_a_list_that_cannot_be_read_changes_nothing(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    authorized, listed = AuthorizedKeys(keys), keys / "authorized.toml"
    before = authorized.keyring
    if damage == "missing":
        listed.unlink()
    elif damage == "torn":
        listed.write_text("[[key")
    else:
        listed.write_text(listed.read_text() + "\n")
        listed.chmod(0o644)
    authorized.reload()
    authorized.reload()
    assert authorized.keyring is before
    assert caplog.text.count("the former one stays valid") == 1
    with pytest.raises(KeyFileError):
        AuthorizedKeys(keys)
    if damage == "open to others":
        listed.chmod(0o600)
        authorized.reload()
        assert authorized.keyring is not before, "the mode alone was wrong, as the error had said"
        read = authorized.keyring
        authorized.reload()
        assert authorized.keyring is read
