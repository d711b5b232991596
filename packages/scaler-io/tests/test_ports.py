"""Three free ports in a row."""

from __future__ import annotations

import socket

import pytest

from scaler_io import ports
from scaler_io.ports import free_port, is_free


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_three_in_a_row_are_free(host: str) -> None:
    port = free_port(host)
    assert all(is_free(port + offset, host) for offset in range(3))


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_where_one_of_them_is_a_connections_there_are_others(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port = client.getsockname()[1]
        assert not is_free(port)
        choices = iter(range(3))
        monkeypatch.setattr(ports, "_PRIVATE_PORTS", (port - taken, port - taken, free))
        monkeypatch.setattr(ports, "random_below", lambda limit: next(choices))
        assert free_port() == free
    assert next(choices, None) is None


def test_where_nobody_can_listen_it_is_said_why() -> None:
    with pytest.raises(OSError, match=r"^no 3 free ports in a row: Cannot assign requested address$"):
        free_port("192.0.2.1")


def test_what_is_no_port_is_not_free() -> None:
    assert not is_free(65_536)
