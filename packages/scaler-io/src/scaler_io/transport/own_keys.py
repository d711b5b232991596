"""Which keys a connection uses: the given ones, or the user's own if only this host can connect, or none.

The user's own keys are made on first use, in a directory of mode 0700. All programs of this user on this host find it.
So a cluster on one host needs no setting, and does not admit other users of the host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scaler_io.private_files import is_private_directory, parent_fault
from scaler_io.security.key_files import INSECURE_VARIABLE, KEYS_VARIABLE, load_credentials, make_keys
from scaler_io.security.keyring import Credentials, KeyFileError, KeyRole
from scaler_io.transport.curve import check_pair, new_pair
from scaler_protocol.addresses import Address

RUNTIME_VARIABLE: Final = "XDG_RUNTIME_DIR"
"""The environment variable that names the user's runtime directory."""
_USERS: Final = Path("/run/user")
"""Where systemd makes a directory for each user who has logged in."""
_REMEDY: Final = "name a directory of keys with --keys, or use none with --insecure"


def key_place(address: Address, keys: Path | None, insecure: bool) -> Path | None:
    """The directory of the keys for connections to this address, or of a service at it; None if they use no keys.

    Raises ValueError for both `keys` and `insecure`, KeyFileError if the user's own keys cannot be made or used safely.
    """
    if keys is not None and insecure:
        unset = f"leave one out, and unset {KEYS_VARIABLE} or {INSECURE_VARIABLE}"
        raise ValueError(f"--keys {keys} and --insecure contradict each other: {unset}")
    if keys is not None or insecure or not address.is_local:
        return keys
    return own_keys()


def credentials_for(
    address: Address, keys: Path | None, insecure: bool, roles: Sequence[KeyRole]
) -> Credentials | None:
    """The key of the first of these roles in `key_place`; None without keys. Raises ValueError and KeyFileError."""
    place = key_place(address, keys, insecure)
    if place is None:
        return None
    credentials = load_credentials(place, roles)
    check_pair(place, credentials)
    return credentials


def local_socket(address: Address, keys: Path | None, insecure: bool) -> Path | None:
    """Where the service at this address also listens to programs of this user; None if it uses other keys, or none.

    Raises KeyFileError as `key_place` does.
    """
    if keys is not None or insecure or not address.is_local or (place := own_keys()) is None:
        return None
    from scaler_io.transport.local_sockets import socket_path

    return socket_path(place, address)


def own_keys() -> Path | None:
    """The directory of the user's own keys, made if there is none yet; None where services do not run.

    Raises KeyFileError if it cannot be made, or if another user could have made or read it.
    """
    if sys.platform != "linux":
        return None
    try:
        places = _places(os.getuid())
        found = next((place for place in places if os.path.lexists(place)), None) or _made(places[0])
        if not is_private_directory(found):
            raise KeyFileError(f"{found} is not a directory that this user alone can use: remove it, or {_REMEDY}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise KeyFileError(f"this user's own keys cannot be made: {where}{error.strerror}; {_REMEDY}") from None
    return found


def _places(user: int) -> list[Path]:
    """Where the user's own keys may be, the best place first.

    Programs that were not started in a login may find no variable, or be there before the runtime directory.
    """
    usual, named = _USERS / str(user), os.environ.get(RUNTIME_VARIABLE)
    if named and Path(named) != usual and _is_usable(Path(named)):
        return [Path(named, "scaler-keys")]
    places = [usual / "scaler-keys"] if _is_usable(usual) else []
    temporary = Path(tempfile.gettempdir())
    if not parent_fault(temporary):
        places.append(temporary / f"scaler-keys-{user}")
    if not places:
        raise KeyFileError(f"every user can replace what is in {temporary}: set {RUNTIME_VARIABLE}, or {_REMEDY}")
    return places


def _is_usable(directory: Path) -> bool:
    with contextlib.suppress(OSError):  # the variable may be another user's, as after `su`
        return directory.is_absolute() and is_private_directory(directory) and os.access(directory, os.W_OK)
    return False


def _made(place: Path) -> Path:
    """Make the keys elsewhere and give them their name at once: of several programs the first one's stay."""
    making = Path(tempfile.mkdtemp(prefix=".scaler-keys-", dir=place.parent))
    try:
        make_keys(making, new_pair)
        with contextlib.suppress(OSError):
            making.rename(place)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return place
