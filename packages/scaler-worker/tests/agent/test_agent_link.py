"""AgentLink over a dialer that a test plays: when it is asked, what is watched, what is logged."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scaler_io.links.events import LinkDown, LinkUp
from scaler_io.links.uplink import LinkState
from scaler_protocol.handshake import Goodbye, Welcome
from scaler_protocol.messages import Recall
from scaler_worker.agent.agent_link import UNSENT_LIMIT, AgentLink
from scaler_worker.ipc.shared_state import SharedState

WELCOME = Welcome(7, storage_address="tcp://127.0.0.1:2346")


class ScriptedDialer:
    """Returns these events, one list per turn; each connection is a pipe."""

    def __init__(self) -> None:
        self.due = math.inf
        self.sent: list[Any] = []
        self.uplink: Any = SimpleNamespace(
            epoch=0, state=LinkState.DOWN, kept_bytes=0, due=lambda: self.due, send=self.sent.append
        )
        self.arrivals: list[list[Any]] = []
        self.turns: list[float] = []
        self.pipes: list[tuple[int, int]] = []
        self.flushes = 0
        self.closed = False
        self.address = "tcp://nowhere"

    def connect(self) -> None:
        self.pipes.append(os.pipe())
        self.uplink.epoch += 1
        self.uplink.state = LinkState.UP

    def turn(self, now: float) -> list[Any]:
        self.turns.append(now)
        return self.arrivals.pop(0) if self.arrivals else []

    def flush(self, now: float) -> list[Any]:
        self.flushes += 1
        return []

    def readable(self) -> bool:
        return bool(self.arrivals)

    def call_on_arrival(self, arrived: Callable[[], object]) -> None:
        self.arrived = arrived

    def filenos(self) -> tuple[int, ...]:
        return tuple(reading for reading, _ in self.pipes[-1:])

    def close(self) -> None:
        self.closed = True
        for pipe in self.pipes:
            for descriptor in pipe:
                os.close(descriptor)


def link_of(dialer: Any, turns: list[str]) -> tuple[AgentLink, SharedState]:
    shared = SharedState.create(1)
    taken: Any = SimpleNamespace(now=lambda: turns.append("turn"), next=lambda: turns.append("next"))
    return AgentLink(dialer, shared, taken), shared


def test_the_socket_is_asked_only_when_something_is_due_or_readable() -> None:
    async def main() -> None:
        dialer, turns = ScriptedDialer(), list[str]()
        link, _ = link_of(dialer, turns)
        dialer.connect()
        assert link.receive(1.0) == [] and dialer.turns == [1.0]
        assert link.due() == math.inf
        link.receive(2.0)
        assert dialer.turns == [1.0]
        os.write(dialer.pipes[-1][1], b"x")
        while not turns:
            await asyncio.sleep(0)
        link.receive(3.0)
        assert dialer.turns == [1.0, 3.0] and not link.readable()
        dialer.arrivals = [[Recall(1)]]
        assert link.readable() and link.receive(4.0) == [Recall(1)]
        dialer.due = 5.0
        link.due()
        link.receive(4.5)
        link.receive(5.0)
        assert dialer.turns == [1.0, 3.0, 4.0, 5.0]
        link.close(6.0, None)

    asyncio.run(main())


def test_what_arrives_without_a_descriptor_is_received_with_the_next_turn() -> None:
    async def main() -> None:
        dialer, turns = ScriptedDialer(), list[str]()
        link, _ = link_of(dialer, turns)
        link.receive(1.0)
        link.due()
        dialer.arrivals = [[Recall(1)]]
        assert link.receive(2.0) == [] and turns == []
        dialer.arrived()
        assert turns == ["next"] and link.receive(3.0) == [Recall(1)]
        link.close(4.0, None)

    asyncio.run(main())


def test_a_new_connection_is_watched_in_place_of_the_old_one() -> None:
    async def main() -> None:
        dialer, turns = ScriptedDialer(), list[str]()
        link, _ = link_of(dialer, turns)
        for _ in range(2):
            dialer.connect()
            dialer.due = 0.0
            link.due()
            link.receive(1.0)
        os.write(dialer.pipes[0][1], b"x")
        for _ in range(5):
            await asyncio.sleep(0)
        assert turns == []
        os.write(dialer.pipes[1][1], b"x")
        while not turns:
            await asyncio.sleep(0)
        link.close(1.0, None)
        assert dialer.closed

    asyncio.run(main())


def test_connections_are_announced_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        dialer = ScriptedDialer()
        link, shared = link_of(dialer, [])
        dialer.due = 0.0
        dialer.arrivals = [[LinkDown("no route")], [LinkUp(WELCOME, False)], [LinkDown("gone")], [LinkDown("gone")]]
        link.receive(1.0)
        assert not link.connected.is_set()
        for _ in range(3):
            link.receive(1.0)
        assert link.connected.is_set()
        assert (shared.scheduler, shared.storage) == (7, "tcp://127.0.0.1:2346")
        link.close(1.0, None)

    caplog.set_level(logging.INFO, logger="scaler")
    asyncio.run(main())
    assert caplog.messages == [
        "ClusterProcess: connected to the scheduler at tcp://nowhere",
        "ClusterProcess: the connection to the scheduler at tcp://nowhere is lost (gone); reconnecting",
    ]


def test_it_is_congested_while_much_is_unsent() -> None:
    async def main() -> None:
        dialer = ScriptedDialer()
        link, _ = link_of(dialer, [])
        dialer.uplink.kept_bytes = UNSENT_LIMIT
        assert not link.is_congested and not link.is_up
        dialer.uplink.kept_bytes += 1
        dialer.connect()
        assert link.is_congested and link.is_up
        link.close(1.0, None)

    asyncio.run(main())


@pytest.mark.parametrize("farewell", [Goodbye("the agent stops"), None])
def test_goodbye_is_said_if_it_is_given(farewell: Goodbye | None) -> None:
    async def main() -> None:
        dialer = ScriptedDialer()
        link, _ = link_of(dialer, [])
        link.send(Recall(1))
        link.close(1.0, farewell)
        assert dialer.sent == [Recall(1), *[farewell] * (farewell is not None)]
        assert dialer.flushes == (farewell is not None) and dialer.closed

    asyncio.run(main())
