"""AuthorizedKeys: the keys that a service accepts, as its directory lists them now."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from scaler_io.security.key_files import AUTHORIZED, keyring_version, load_credentials, load_keyring
from scaler_io.security.keyring import KeyFileError, Keyring, KeyRole, Principal
from scaler_protocol.plurals import counted

LOGGER: Final = logging.getLogger("scaler")


class AuthorizedKeys:
    """A service's own keys, and the keyring that it accepts. Raises KeyFileError if it cannot be read at first.

    `keyring` is another object after each change. A list that cannot be read is logged, and the last one stays valid.
    """

    def __init__(self, directory: Path) -> None:
        self.own = load_credentials(directory, [KeyRole.SERVER])
        self._directory = directory
        self._version = keyring_version(directory)
        self._fault = ""
        """Why the list could not be read the last time."""
        self.keyring: Keyring = self._load()

    def _load(self) -> Keyring:
        return {**load_keyring(self._directory), self.own.holder.key: self.own.holder}

    def accepts(self, holder: Principal) -> bool:
        """Whether this key is listed now, with this role."""
        return self.keyring.get(holder.key) == holder

    def reload(self) -> None:
        """Read the list again if its file has changed, or could not be read: its mode may have been mended since."""
        version = keyring_version(self._directory)
        if version == self._version and not self._fault:
            return
        self._version = version
        try:
            self.keyring = self._load()
        except KeyFileError as error:
            if str(error) != self._fault:
                LOGGER.error("the list of keys is not read, and the former one stays valid: %s", error)
            self._fault = str(error)
        else:
            self._fault = ""
            listed = counted(len(self.keyring) - 1, "key")  # without its own
            LOGGER.info("%s is read again: it lists %s", self._directory / AUTHORIZED, listed)
