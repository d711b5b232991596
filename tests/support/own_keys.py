"""Keys that the clusters of this test run accept from peers that tests create."""

from __future__ import annotations

from scaler_io.security.authorized import AuthorizedKeys
from scaler_io.security.key_files import load_credentials
from scaler_io.security.keyring import Credentials, KeyRole
from scaler_io.transport.own_keys import own_keys

MONITOR, CLIENT, WORKER, OPERATOR = KeyRole.MONITOR, KeyRole.CLIENT, KeyRole.WORKER, KeyRole.OPERATOR


def accepted() -> AuthorizedKeys:
    """The keys of this user, for a service that a test starts."""
    place = own_keys()
    assert place is not None
    return AuthorizedKeys(place)


def own(role: KeyRole) -> Credentials:
    """The key of this user for a role."""
    place = own_keys()
    assert place is not None
    return load_credentials(place, [role])
