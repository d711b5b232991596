"""The three ports of a scheduler that was given none."""

from __future__ import annotations

import secrets
import socket

import pytest

from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError
from scaler_scheduler.ports import with_port


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:2345", "tcp://[::1]:2345", "ipc:///tmp/scheduler"])
def test_what_is_named_is_taken(text: str) -> None:
    assert with_port(Address.parse(text)) == Address.parse(text)


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_all_three_are_free(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = with_port(Address.parse("tcp://127.0.0.1:0"))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        # A connection's port is as good as taken: nobody can listen there.
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        first = client.getsockname()[1] - taken
        choices = iter((first, first, free.port))
        monkeypatch.setattr(secrets, "choice", lambda ports: next(choices))
        assert with_port(Address.parse("tcp://127.0.0.1:0")) == free
    assert next(choices, None) is None


def test_where_nobody_can_listen_it_is_said_why() -> None:
    with pytest.raises(
        AddressError, match=r"^no 3 free ports .* tcp://192\.0\.2\.1:0; .*192\.0\.2\.1:\d+: Cannot assign"
    ):
        with_port(Address.parse("tcp://192.0.2.1:0"))
