"""Keys, roles and the text of their files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaler_io.security.keyring import (
    PEER_ROLES,
    Credentials,
    KeyFileError,
    KeyPair,
    KeyRole,
    Principal,
    checked_name,
    credentials_text,
    keyring_text,
    read_credentials,
    read_keyring,
)
from scaler_protocol.handshake import Role

PAIR = KeyPair(b"p" * 32, b"s" * 32)
KEY = st.binary(min_size=32, max_size=32)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
AUTHORIZABLE = st.sampled_from([role for role in KeyRole if role is not KeyRole.SERVER])


@given(st.sampled_from(list(KeyRole)), NAME, KEY, KEY, KEY)
def test_credentials_are_read_as_they_were_written(
    role: KeyRole, name: str, public: bytes, secret: bytes, server: bytes
) -> None:
    server = public if role is KeyRole.SERVER else server
    credentials = Credentials.of(role, name, KeyPair(public, secret), server)
    assert read_credentials(credentials_text(credentials)) == credentials


@given(st.lists(st.builds(Principal, KEY, AUTHORIZABLE, NAME), unique_by=(lambda one: one.key, lambda one: one.name)))
def test_a_keyring_is_read_as_it_was_written(keyring: list[Principal]) -> None:
    assert read_keyring(keyring_text(keyring)) == {holder.key: holder for holder in keyring}


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_keyring_that_is_cut_off_is_refused(count: int) -> None:
    text = keyring_text(Principal(bytes([number]) * 32, KeyRole.CLIENT, f"k{number}") for number in range(count))
    for end in range(len(text.rstrip())):
        with pytest.raises(KeyFileError):
            read_keyring(text[:end])


@given(st.integers(0, 400))
def test_no_cut_off_credentials_are_taken(length: int) -> None:
    text = credentials_text(Credentials.of(KeyRole.CLIENT, "ada", PAIR, b"v" * 32))
    if length < len(text.rstrip()):
        with pytest.raises(KeyFileError):
            read_credentials(text[:length])


def test_a_server_that_names_another_server_is_refused() -> None:
    with pytest.raises(KeyFileError, match="names another server's: copy the file again"):
        read_credentials(credentials_text(Credentials.of(KeyRole.SERVER, "server", PAIR, b"v" * 32)))


def test_neither_representations_nor_errors_show_a_secret() -> None:
    credentials = Credentials.of(KeyRole.CLIENT, "ada", PAIR, b"v" * 32)
    assert repr(PAIR.secret)[2:-1] not in repr(credentials) + repr(PAIR)
    secret = PAIR.secret.hex()
    for broken in (f'secret = "{secret}', f'secret = {secret}"', f'secret = "{secret}"\n', f'secret = "{secret}0"'):
        with pytest.raises(KeyFileError) as refused:
            read_credentials(broken)
        assert secret not in str(refused.value)


@pytest.mark.parametrize("name", ["", "-ada", "a" * 65, "a b", "../ada", "ada\n", "ä", 'a"b'])
def test_names_that_files_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(KeyFileError, match="no name of a key"):
        checked_name(name)


ENTRY = f'[[key]]\nrole = "client"\nname = "ada"\npublic = "{"0" * 64}"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ENTRY + ENTRY, "key ada is given twice"),
        (ENTRY.replace("client", "server"), "no other key has the role server"),
        (ENTRY.replace("client", "queen"), "role 'queen' is not one of server, worker, client, operator, monitor"),
        (ENTRY.replace("0" * 64, "0" * 63), "public is not 64 hexadecimal digits"),
        (ENTRY + 'other = "1"\n', "an entry has the keys role, name, public, and no others"),
        ('other = "1"\n' + ENTRY, "something else than the number of keys and tables"),
        ("key = 1\n", 'line 1 is neither \\[\\[key\\]\\] nor name = "text"'),
        ('[[key]]\nrole = "client"\nname = "ada"\npublic = 5\n', 'line 4 is neither .* name = "text"'),
        (ENTRY + 'name = "bea"\n', "line 5 gives a name again"),
        (ENTRY[:-3], "line 4 is neither .* may be cut off"),
    ],
)
def test_a_malformed_keyring_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(KeyFileError, match=reason):
        read_keyring(text)


def test_only_a_key_of_its_role_makes_a_peer() -> None:
    assert PEER_ROLES[KeyRole.CLIENT] == {Role.CLIENT}
    assert PEER_ROLES[KeyRole.OPERATOR] == {Role.OPERATOR}
    assert PEER_ROLES[KeyRole.WORKER] == {Role.AGENT, Role.MANAGER, Role.CLIENT}
    assert not PEER_ROLES[KeyRole.MONITOR]
    assert PEER_ROLES.keys() == set(KeyRole)
