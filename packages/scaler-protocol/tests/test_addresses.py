"""Addresses."""

from __future__ import annotations

import pytest

from scaler_protocol.addresses import Address
from scaler_protocol.errors import AddressError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:2345", Address("127.0.0.1", 2345)),
        ("tcp://scheduler.example.com:0", Address("scheduler.example.com", 0)),
        ("tcp://*:65535", Address("*", 65535)),
        ("tcp://[::1]:2345", Address("::1", 2345)),
        ("tcp://[fe80::1%eth0]:2345", Address("fe80::1%eth0", 2345)),
        ("ipc:///run/user/scaler", Address(path="/run/user/scaler")),
        ("ipc://relative path", Address(path="relative path")),
    ],
)
def test_there_and_back(text: str, address: Address) -> None:
    assert Address.parse(text) == address and str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://host:port",
        "tcp://host:-1",
        "tcp://host:65536",
        "tcp://host:99999999999999999999",
        "tcp://host:\u0662\u0663",
        "tcp://::1:2345",
        "tcp://[host]:2345",
        "tcp://[]:2345",
        "tcp://host:1/path",
        "tcp://host:1 ",
        "udp://host:1",
        "ipc://",
        "127.0.0.1:2345",
    ],
)
def test_anything_else_is_refused_and_named(text: str) -> None:
    with pytest.raises(AddressError, match="write tcp://host:port") as raised:
        Address.parse(text)
    assert repr(text) in str(raised.value)


def test_nobody_is_reached_at_port_0() -> None:
    for text in ("tcp://127.0.0.1:1", "ipc:///tmp/x"):
        assert Address.parse_peer(text) == Address.parse(text)
    with pytest.raises(AddressError, match=r"'tcp://host:0': cannot connect to port 0; name the port"):
        Address.parse_peer("tcp://host:0")


def test_addresses_that_only_listeners_can_have_are_refused_at_once() -> None:
    with pytest.raises(AddressError, match=r"'tcp://\*:2345': cannot connect to \*.*; name the host"):
        Address.parse_peer("tcp://*:2345")
    with pytest.raises(AddressError, match="its path has 108 bytes, and that of a socket has at most 107"):
        Address.parse_peer(f"ipc:///{'x' * 107}")
    assert Address.parse_peer(f"ipc:///{'x' * 106}").path


def test_services_stand_beside_each_other() -> None:
    assert Address.parse("tcp://[::1]:10").beside(2) == Address("::1", 12)
    assert str(Address(path="/run/s").beside(1)) == "ipc:///run/s.1"
    with pytest.raises(AddressError, match="no port 65536"):
        Address("h", 65535).beside(1)


@pytest.mark.parametrize(
    ("text", "local", "numeric"),
    [
        ("tcp://127.0.0.1:1", True, True),
        ("tcp://127.9.9.9:1", True, True),
        ("tcp://[::1]:1", True, True),
        ("tcp://localhost:1", True, False),
        ("tcp://LocalHost:1", True, False),
        ("ipc:///x", True, True),
        ("tcp://0.0.0.0:1", False, True),
        ("tcp://[::]:1", False, True),
        ("tcp://*:1", False, False),
        ("tcp://10.0.0.1:1", False, True),
        ("tcp://localhost.example.com:1", False, False),
    ],
)
def test_who_can_reach_it(text: str, local: bool, numeric: bool) -> None:
    address = Address.parse(text)
    assert (address.is_local, address.is_numeric) == (local, numeric)


def test_an_address_with_a_port_above_the_last_one_says_which_that_is() -> None:
    with pytest.raises(AddressError, match=r"'tcp://host:99999': the last port is 65,535; write tcp://host:port"):
        Address.parse("tcp://host:99999")
