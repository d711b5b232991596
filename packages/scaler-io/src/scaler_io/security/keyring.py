"""Keyring: the keys of a cluster, their roles, and the text of the files that hold them. Pure, no IO.

A *credential* file holds one secret: a key pair with its role and name, and the public key of the cluster's services.
The *keyring* lists the public keys that services accept. The role of a peer follows from its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import Final

from scaler_protocol.errors import ScalerError
from scaler_protocol.handshake import Role
from scaler_protocol.lazy_dataclass import dataclass

KEY_BYTES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_IGNORED: Final = re.compile(r"\s*(#.*)?")
_COUNT: Final = re.compile(r"^keys = (\d{1,7})$", re.MULTILINE)
_TABLE: Final = re.compile(r"\s*\[\[key\]\]\s*(?:#.*)?")
_VALUE: Final = re.compile(r"""\s*(\w+)\s*=\s*"([^"\\]*)"\s*(?:#.*)?""")
_HEX: Final = re.compile(f"[0-9a-f]{{{2 * KEY_BYTES}}}")


class KeyFileError(ScalerError, ValueError):
    """A file of keys is missing, unsafe or malformed."""


class KeyRole(str, Enum):
    """The role of a key."""

    SERVER = "server"
    """The scheduler, or an object storage server."""
    WORKER = "worker"
    """An agent with its workers, or a worker manager."""
    CLIENT = "client"
    OPERATOR = "operator"
    """Gives orders: cancels tasks, drains workers. It also monitors."""
    MONITOR = "monitor"
    """Subscribes to the scheduler's status and events."""


PEER_ROLES: Final[Mapping[KeyRole, frozenset[int]]] = {
    KeyRole.SERVER: frozenset({Role.CLIENT, Role.AGENT, Role.OPERATOR, Role.MANAGER}),
    KeyRole.WORKER: frozenset({Role.AGENT, Role.MANAGER, Role.CLIENT}),  # a client inside a task
    KeyRole.CLIENT: frozenset({Role.CLIENT}),
    KeyRole.OPERATOR: frozenset({Role.OPERATOR}),
    KeyRole.MONITOR: frozenset(),
}
"""The roles that a peer's Hello may name, by the role of its key."""
LINK_KEYS: Final = frozenset({KeyRole.SERVER, KeyRole.WORKER, KeyRole.CLIENT, KeyRole.OPERATOR})
"""Roles of keys that may connect to the scheduler and to object storage."""
MONITOR_KEYS: Final = frozenset({KeyRole.SERVER, KeyRole.OPERATOR, KeyRole.MONITOR})
"""Roles of keys that may subscribe to the scheduler's status and events."""

WORKER_KEYS: Final = (KeyRole.WORKER,)
CLIENT_KEYS: Final = (KeyRole.CLIENT, *WORKER_KEYS)
OPERATOR_KEYS: Final = (KeyRole.OPERATOR,)
READER_KEYS: Final = (*OPERATOR_KEYS, KeyRole.CLIENT)
SUBSCRIBER_KEYS: Final = (KeyRole.MONITOR, *OPERATOR_KEYS)
"""The keys with which agents and managers, clients, operators, readers of results and monitors connect: the first whose
file there is. None of them uses the services' key, which proves every role."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The holder of a key, as services know it."""

    key: bytes
    role: KeyRole
    name: str


ANYONE: Final = Principal(b"", KeyRole.SERVER, "")
"""The peer of a service that uses no keys, or of its own process: any role is allowed."""
NOBODY: Final = Principal(b"", KeyRole.MONITOR, "")
"""The holder of a key that is accepted no longer: no role is allowed."""
Keyring = Mapping[bytes, Principal]
"""The accepted public keys, 32 bytes each, and their holders."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, 32 bytes each."""

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials to connect: the own keys of a process, and the public key of the cluster's services."""

    holder: Principal
    secret: bytes = field(repr=False)
    server: bytes

    @classmethod
    def of(cls, role: KeyRole, name: str, pair: KeyPair, server: bytes) -> Credentials:
        """Credentials with a new pair; raises KeyFileError for a name that files cannot hold."""
        return cls(Principal(pair.public, role, checked_name(name)), pair.secret, server)


def checked_name(name: str) -> str:
    """The name itself; raises KeyFileError unless it can be the name of a key."""
    if _NAME.fullmatch(name) is None:
        raise KeyFileError(f"{name!r} is no name of a key: 1 to 64 letters, digits, dots, dashes, underscores")
    return name


def credentials_text(credentials: Credentials) -> str:
    """The text of a credential file."""
    holder = credentials.holder
    return (
        "# A secret key of Scaler: whoever can read it acts in this role. Do not print, send or commit it.\n"
        f'role = "{holder.role.value}"\nname = "{holder.name}"\npublic = "{holder.key.hex()}"\n'
        f'secret = "{credentials.secret.hex()}"\nserver = "{credentials.server.hex()}"\n'
    )


def read_credentials(text: str) -> Credentials:
    """Credentials from the text of their file; raises KeyFileError, which never quotes the text."""
    fields, others = _tables(text)
    _check_fields(fields, ("role", "name", "public", "secret", "server"))
    if others:
        raise KeyFileError("it holds [[key]]: this is a list of keys, not a secret key")
    credentials = Credentials(_principal(fields), _key(fields, "secret"), _key(fields, "server"))
    if credentials.holder.role is KeyRole.SERVER and credentials.server != credentials.holder.key:
        raise KeyFileError("the key of a server names another server's: copy the file again")
    return credentials


def keyring_text(keyring: Iterable[Principal]) -> str:
    """The text of the file that lists accepted keys."""
    holders = list(keyring)
    entries = (
        f'\n[[key]]\nrole = "{holder.role.value}"\nname = "{holder.name}"\npublic = "{holder.key.hex()}"\n'
        for holder in holders
    )
    head = "# Public keys that services accept. They read this file again when it changes.\n"
    return f"{head}keys = {len(holders)}\n{''.join(entries)}"


def read_keyring(text: str) -> dict[bytes, Principal]:
    """The accepted keys from the text of their file; raises KeyFileError for a malformed one.

    The number of keys shows whether the file is whole: whoever copies it over the old one cuts that off first.
    """
    first, entries = _tables(_COUNT.sub("", text, count=1))
    if first:
        raise KeyFileError("it holds something else than the number of keys and tables [[key]]")
    count = _COUNT.search(text)
    if count is None and not entries:
        raise KeyFileError("it is empty; a list without keys says keys = 0")
    if count is not None and int(count[1]) != len(entries):
        raise KeyFileError(f"it has {len(entries)} keys and says keys = {count[1]}; it may be cut off")
    keyring: dict[bytes, Principal] = {}
    names = set[str]()
    for entry in entries:
        _check_fields(entry, ("role", "name", "public"))
        holder = _principal(entry)
        if holder.role is KeyRole.SERVER:
            raise KeyFileError(f"key {holder.name}: services accept their own key, no other key has the role server")
        if holder.key in keyring or holder.name in names:
            raise KeyFileError(f"key {holder.name} is given twice")
        names.add(holder.name)
        keyring[holder.key] = holder
    return keyring


def _tables(text: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The fields before the first [[key]], and each [[key]] table. Errors quote no text, which may be a secret.

    This is the part of TOML that these files need. The library for all of it takes longer to load than the rest of
    what a client does with keys.
    """
    first: dict[str, str] = {}
    tables: list[dict[str, str]] = []
    table = first
    for number, line in enumerate(text.splitlines(), 1):
        if _IGNORED.fullmatch(line):
            continue
        if _TABLE.fullmatch(line):
            table = {}
            tables.append(table)
            continue
        found = _VALUE.fullmatch(line)
        if found is None:
            raise KeyFileError(f'line {number} is neither [[key]] nor name = "text"; the file may be cut off')
        name, value = found.groups()
        if name in table:
            raise KeyFileError(f"line {number} gives a name again")
        table[name] = value
    return first, tables


def _check_fields(table: Mapping[str, str], names: tuple[str, ...]) -> None:
    if table.keys() != set(names):
        raise KeyFileError(f"an entry has the keys {', '.join(names)}, and no others")


def _principal(fields: Mapping[str, str]) -> Principal:
    name = checked_name(fields["name"])
    try:
        role = KeyRole(fields["role"])
    except ValueError:
        words = ", ".join(role.value for role in KeyRole)
        raise KeyFileError(f"key {name}: role {fields['role'][:64]!r} is not one of {words}") from None
    return Principal(_key(fields, "public"), role, name)


def _key(fields: Mapping[str, str], name: str) -> bytes:
    if _HEX.fullmatch(fields[name]) is None:
        raise KeyFileError(f"{name} is not {2 * KEY_BYTES} hexadecimal digits")
    return bytes.fromhex(fields[name])
