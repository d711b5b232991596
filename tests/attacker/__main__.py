"""Runs all attacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from attacker.attacks import ATTACKS, Target
from scaler_io.security.key_files import load_credentials
from scaler_io.security.keyring import CLIENT_KEYS
from scaler_protocol.addresses import Address


def main() -> None:
    """Attack, and print what came of it."""
    address, session, task, *keys = sys.argv[1:]
    credentials = load_credentials(Path(keys[0]), CLIENT_KEYS) if keys else None
    target = Target(Address.parse(address), credentials, int(session), int(task))
    print(json.dumps({name: attack(target) for name, attack in ATTACKS.items()}))


if __name__ == "__main__":
    main()
