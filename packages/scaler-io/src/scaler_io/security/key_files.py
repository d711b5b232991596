"""Files of keys: a directory of mode 0700 with files of mode 0600, which only their owner can read or replace.

A file is refused, and not read, if it is a symbolic link, has another owner or a second name, or if others may use it:
its content would be known to others, or chosen by them. A file is complete whenever it has its name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from scaler_io.security.keyring import (
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

KEYS_VARIABLE: Final = "SCALER_KEYS"
"""The environment variable that names the directory."""
INSECURE_VARIABLE: Final = "SCALER_INSECURE"
"""The environment variable that says to use no keys."""
AUTHORIZED: Final = "authorized.toml"
"""The list of accepted keys; only services read it."""
MADE: Final = (KeyRole.WORKER, KeyRole.CLIENT, KeyRole.OPERATOR, KeyRole.MONITOR)
"""Roles of the keys that `make_keys` authorizes, one of each."""
_HANDED: Final = "clients"
"""Directory of the credentials that are made for others."""
_CREDENTIAL_BYTES: Final = 4096
_KEYRING_BYTES: Final = 16 * 1024 * 1024
_OPEN: Final = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_BINARY"))

Understood = TypeVar("Understood")
Generate = Callable[[], KeyPair]
"""Makes a new key pair."""


def load_credentials(directory: Path, roles: Sequence[KeyRole]) -> Credentials:
    """The credentials of the first of these roles that the directory holds; raises KeyFileError."""
    check_directory(directory)
    for role in roles:
        path = directory / f"{role.value}.key"
        if os.path.lexists(path):
            found = _understood(path, read_credentials, _CREDENTIAL_BYTES)
            if found.holder.role is not role:
                kind = found.holder.role.value
                raise KeyFileError(f"{path}: the key in it has the role {kind}: name the file {kind}.key")
            return found
    names = " or ".join(f"{role.value}.key" for role in roles)
    raise KeyFileError(f"{directory} has no {names}: {_remedy(directory, roles)}")


def _remedy(directory: Path, roles: Sequence[KeyRole]) -> str:
    """What to do where none of these roles has a file."""
    if KeyRole.SERVER in roles:
        if any(directory.glob("*.key")):
            return f"name the services' directory; services on other hosts need copies of server.key and {AUTHORIZED}"
        return "`scaler keys init` makes the keys of a new cluster"
    kind = roles[0].value
    if os.path.lexists(directory / f"{KeyRole.SERVER.value}.key"):
        make = f"`scaler keys add-client NAME --role {kind} --keys {directory}`"
        return f"server.key is for services alone; {make} makes a file {kind}.key, in a directory of its own"
    return f"ask who runs the scheduler for a file {kind}.key; `scaler keys add-client NAME --role {kind}` makes one"


def key_directory(text: str) -> Path:
    """The absolute path of a directory of keys, which may begin with ~; raises ValueError."""
    return key_path(text).absolute()


def key_path(text: str) -> Path:
    """The same as it was given, for people to read."""
    if not text.strip() or "\0" in text:  # an empty path would be the working directory
        raise ValueError(f"{text!r} is not the path of a directory")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~user, and there is no such user
        raise ValueError(f"{text!r}: {error}") from None


def load_keyring(directory: Path) -> dict[bytes, Principal]:
    """The keys that services accept, besides their own; raises KeyFileError."""
    if not os.path.lexists(directory / AUTHORIZED):
        raise KeyFileError(
            f"{directory} has no {AUTHORIZED}: name the services' directory, which `scaler keys init` made"
        )
    return _understood(directory / AUTHORIZED, read_keyring, _KEYRING_BYTES)


def keyring_version(directory: Path) -> tuple[int, ...]:
    """Something that changes when the list of accepted keys does; empty if there is none."""
    try:
        found = os.lstat(directory / AUTHORIZED)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size


def make_keys(directory: Path, generate: Generate) -> list[Path]:
    """Make the keys of a new cluster, one per role; returns the files. Raises KeyFileError, FileExistsError."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700, parents=True)
    check_directory(directory)
    if taken := [path.name for path in directory.iterdir() if path.suffix == ".key" or path.name == AUTHORIZED]:
        raise KeyFileError(f"{directory} holds keys already, {taken[0]}: name a new directory")
    pair = generate()
    server = Credentials.of(KeyRole.SERVER, KeyRole.SERVER.value, pair, pair.public)
    made = [Credentials.of(role, role.value, generate(), pair.public) for role in MADE]
    create(directory / AUTHORIZED, keyring_text(each.holder for each in made))
    paths = []
    for each in (*made, server):  # the server's file last: without it no service starts
        paths.append(directory / f"{each.holder.role.value}.key")
        create(paths[-1], credentials_text(each))
    return paths


def add_key(directory: Path, name: str, role: KeyRole, generate: Generate) -> Path:
    """Authorize a new key; returns the directory with its file, to be given to its holder. Raises KeyFileError."""
    server = load_credentials(directory, [KeyRole.SERVER])
    with _locked(directory):
        keyring = load_keyring(directory)
        if any(holder.name == checked_name(name) for holder in keyring.values()):
            raise KeyFileError(f"there is a key {name} already: choose another name, or revoke it first")
        made = Credentials.of(role, name, generate(), server.server)
        handed = directory / _HANDED / name
        for path in (handed.parent, handed):
            path.mkdir(mode=0o700, exist_ok=True)
            check_directory(path)
        create(handed / f"{role.value}.key", credentials_text(made))
        replace(directory / AUTHORIZED, keyring_text([*keyring.values(), made.holder]))
    return handed


def revoke_key(directory: Path, name: str) -> Principal:
    """Accept a key no longer, and remove its file if it is here; returns its holder. Raises KeyFileError."""
    check_directory(directory)
    with _locked(directory):
        keyring = load_keyring(directory)
        holder = next((holder for holder in keyring.values() if holder.name == name), None)
        if holder is None:
            names = ", ".join(holder.name for holder in keyring.values())
            raise KeyFileError(f"{directory} has no key {name!r}; it has {names or 'none'}")
        replace(directory / AUTHORIZED, keyring_text(other for other in keyring.values() if other is not holder))
        for path in _files_of(directory, holder):
            with contextlib.suppress(FileNotFoundError, KeyFileError):
                if _understood(path, read_credentials, _CREDENTIAL_BYTES).holder == holder:
                    path.unlink()
        with contextlib.suppress(OSError):  # something else is in it
            (directory / _HANDED / holder.name).rmdir()
    return holder


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One process at a time changes the list: another one would write back what it has read before."""
    if sys.platform == "win32":  # services, and their lists, are on Linux
        yield
        return
    import fcntl

    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _files_of(directory: Path, holder: Principal) -> Iterable[Path]:
    file = f"{holder.role.value}.key"
    return directory / file, directory / _HANDED / holder.name / file


def check_directory(path: Path) -> None:
    """Raise KeyFileError unless this is a directory that only its owner, who is this user, can use."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise KeyFileError(f"the directory of keys {path}: {error.strerror}; name the one with the keys") from None
    if not stat.S_ISDIR(found.st_mode):
        raise KeyFileError(f"{path} is no directory: name the directory of the keys")
    _check_owner(path, found)


def read_private(path: Path, limit: int) -> str:
    """The text of a file that only this user can use, of at most `limit` bytes; raises KeyFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise KeyFileError(f"{path} is a symbolic link: copy the file itself") from None
        raise KeyFileError(f"{path}: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise KeyFileError(f"{path} is no file: copy the file itself")
        _check_owner(path, found)
        if found.st_nlink != 1:
            raise KeyFileError(f"{path} has {found.st_nlink} names, and may be changed by another one: copy it")
        if len(read := os.read(descriptor, limit + 1)) > limit:
            raise KeyFileError(f"{path} has more than {limit:,} bytes: copy the file again")
    finally:
        os.close(descriptor)
    try:
        return read.decode("utf-8")
    except UnicodeDecodeError:
        raise KeyFileError(f"{path} is no text: copy the file again") from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    if sys.platform == "win32":
        return  # access there follows the lists of the user's profile
    if found.st_uid != os.getuid():
        raise KeyFileError(f"{path} belongs to user {found.st_uid}, not to {os.getuid()}: copy it as this user")
    if others := stat.S_IMODE(found.st_mode) & 0o077:
        raise KeyFileError(f"{path} can be used by others, mode {others:03o}: chmod go= {path}")


def create(path: Path, text: str) -> None:
    """Make a file of mode 0600; it has its name only when it is complete. Raises FileExistsError."""
    written = _written(path, text)
    try:
        os.link(written, path)
    finally:
        written.unlink()


def replace(path: Path, text: str) -> None:
    """Replace a file by a new one of mode 0600; readers find the old or the new one."""
    _written(path, text).replace(path)


def _written(path: Path, text: str) -> Path:
    """A complete file beside `path`, under another name."""
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(descriptor)
    except BaseException as error:
        beside.unlink()
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    return beside


def _understood(path: Path, understand: Callable[[str], Understood], limit: int) -> Understood:
    text = read_private(path, limit)
    try:
        return understand(text)
    except KeyFileError as error:
        raise KeyFileError(f"{path}: {error}") from None
