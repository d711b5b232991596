"""A wait ends with input, and says where it is."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from scaler_io.transport.input_poller import InputPoller

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    pairs = [socket.socketpair() for _ in range(3)]
    yield pairs
    for ends in pairs:
        for end in ends:
            end.close()


def test_the_descriptors_with_input_are_told_until_it_is_read(pairs: list[Pair]) -> None:
    ours = [ours for ours, _ in pairs]
    poller = InputPoller([end.fileno() for end in ours])
    assert poller.wait(0.0) == []
    for _, theirs in pairs[:2]:
        theirs.send(b"x")
    for _ in range(2):
        assert set(poller.wait(60.0)) == {ours[0].fileno(), ours[1].fileno()}
    ours[0].recv(1)
    assert poller.wait(60.0) == [ours[1].fileno()]


def test_a_short_wait_is_no_endless_one(pairs: list[Pair]) -> None:
    assert InputPoller([pairs[0][0].fileno()]).wait(1e-9) == []


def test_a_broken_connection_ends_a_wait(pairs: list[Pair]) -> None:
    pairs[0][1].close()
    assert InputPoller([pairs[0][0].fileno()]).wait(60.0) == [pairs[0][0].fileno()]
