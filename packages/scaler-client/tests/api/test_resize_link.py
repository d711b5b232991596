"""How a program asks the agent of its local cluster for workers."""

from __future__ import annotations

import pytest

from scaler_client.api.resize_link import ResizeLink


def test_an_answer_counts_for_its_own_request_only() -> None:
    link = ResizeLink()
    assert not link.resize(4, 0.01)
    link.theirs.sendall(b"1\n")  # late
    assert not link.resize(4, 0.01)
    link.theirs.sendall(b"2\n3")
    assert not link.resize(2, 0.0)
    link.theirs.sendall(b"\n4\n")
    assert link.resize(0, 20)
    assert link.theirs.recv(100) == b"1 4\n2 4\n3 2\n4 0\n"
    link.close()


def test_an_agent_that_has_ended_is_an_error() -> None:
    link = ResizeLink()
    link.theirs.close()
    with pytest.raises(ConnectionError):
        link.resize(1, 20)
    link.close()
