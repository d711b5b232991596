"""The client inside a task loses its agent in an orderly way."""

from __future__ import annotations

import socket

import pytest

from scaler_io.links.events import LinkLost
from scaler_protocol.messages import Shutdown
from scaler_worker.worker.agent_transport import AgentTransport


@pytest.mark.parametrize("unread", [False, True])
def test_an_agent_that_has_exited_is_lost(unread: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = AgentTransport(ours)
        if unread:
            transport.send(Shutdown())
            transport.flush(0.0)
        theirs.close()
        assert transport.turn(0.0) == [LinkLost("the agent has exited: no connection")]
        assert transport.turn(0.0) == [], "it is told once"
