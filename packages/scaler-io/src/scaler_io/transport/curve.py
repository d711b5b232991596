"""CURVE: keys that sockets prove to each other, and the handler that ZeroMQ asks whether a key is accepted."""

from __future__ import annotations

import zmq
from zmq.utils import z85

from scaler_io.security.keyring import KeyPair


def new_pair() -> KeyPair:
    """A new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(z85.decode(public), z85.decode(secret))
