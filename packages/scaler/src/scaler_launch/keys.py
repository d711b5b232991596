"""`scaler keys`: makes the keys of a cluster, and says which ones its services accept."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from scaler_io.security.key_files import MADE, add_key, key_path, load_keyring, make_keys, revoke_key
from scaler_io.security.keyring import KeyRole
from scaler_io.service.cli import Command
from scaler_io.service.options import Option, one_of
from scaler_protocol.lazy_dataclass import dataclass

HELP: Final = """\
usage: scaler keys init DIR                             make the keys of a new cluster, one file per role
       scaler keys add-client NAME --keys DIR           make a further key, to be given to a person or a host:
                                                        a client's, unless --role names another role
       scaler keys list --keys DIR                      show which keys are accepted
       scaler keys revoke NAME --keys DIR               accept a key no longer, and close its connections

Services that run with --keys DIR read the list again when it changes."""
_KEYS: Final = Option(
    ("--keys",), "the directory of the cluster's keys", key_path, environment="SCALER_KEYS", metavar="DIRECTORY"
)


@dataclass(frozen=True, slots=True)
class InitOptions:
    """The command line of `scaler keys init`."""

    directory: Path


@dataclass(frozen=True, slots=True)
class AddOptions:
    """The command line of `scaler keys add-client`."""

    name: str
    role: KeyRole
    keys: Path


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The command line of `scaler keys list`."""

    keys: Path


@dataclass(frozen=True, slots=True)
class RevokeOptions:
    """The command line of `scaler keys revoke`."""

    name: str
    keys: Path


def _role(text: str) -> KeyRole:
    return KeyRole(one_of(*(role.value for role in MADE))(text))


INIT: Final = Command(
    program="scaler keys init",
    description="Make the keys of a new cluster.",
    section="keys",
    config=InitOptions,
    options=(Option(("directory",), "a new directory, or an empty one", key_path),),
    example="scaler keys init ~/.scaler/keys",
)
ADD: Final = Command(
    program="scaler keys add-client",
    description="Make a further key, for a client or another role.",
    section="keys",
    config=AddOptions,
    options=(
        Option(("name",), "what the key is called, in the list and in logs"),
        Option(
            ("--role",),
            "what its holder is",
            _role,
            default=KeyRole.CLIENT,
            metavar="|".join(role.value for role in MADE),
        ),
        _KEYS,
    ),
    example="scaler keys add-client ada --keys ~/.scaler/keys",
)
LIST: Final = Command(
    program="scaler keys list",
    description="Show which keys the cluster's services accept.",
    section="keys",
    config=ListOptions,
    options=(_KEYS,),
    example="scaler keys list --keys ~/.scaler/keys",
)
REVOKE: Final = Command(
    program="scaler keys revoke",
    description="Accept a key no longer, and close its connections.",
    section="keys",
    config=RevokeOptions,
    options=(Option(("name",), "what the key is called in the list"), _KEYS),
    example="scaler keys revoke ada --keys ~/.scaler/keys",
)


def run(words: Sequence[str]) -> int:
    """Run `scaler keys` with these words; returns the exit code. Raises ValueError, OSError."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0 if words else 2
    commands: Mapping[str, Callable[[Sequence[str]], None]] = {
        "init": _init,
        "add-client": _add,
        "list": _list,
        "revoke": _revoke,
    }
    command = commands.get(words[0])
    if command is None:
        near = difflib.get_close_matches(words[0], commands, n=1)
        hint = f"did you mean `scaler keys {near[0]}`?" if near else "`scaler keys -h` shows the commands"
        raise ValueError(f"unknown command {words[0]!r}; {hint}")
    command(words[1:])
    return 0


def _init(words: Sequence[str]) -> None:
    from scaler_io.transport.curve import new_pair

    directory = INIT.read(words).directory
    for path in make_keys(directory, new_pair):
        print(path)
    print(
        f"Start services with --keys {directory}, or with SCALER_KEYS={directory}.\n"
        "Give each host and each person only the files of their role, never server.key."
    )


def _add(words: Sequence[str]) -> None:
    from scaler_io.transport.curve import new_pair

    options = ADD.read(words)
    handed = add_key(options.keys, options.name, options.role, new_pair)
    print(f"{handed} is what {options.name} needs: copy it to the other host securely (scp), and remove it here")


def _list(words: Sequence[str]) -> None:
    for holder in load_keyring(LIST.read(words).keys).values():
        print(f"{holder.role.value:<9} {holder.name:<24} {holder.key.hex()}")


def _revoke(words: Sequence[str]) -> None:
    options = REVOKE.read(words)
    holder = revoke_key(options.keys, options.name)
    print(f"the key {holder.name} ({holder.role.value}) is accepted no longer")
