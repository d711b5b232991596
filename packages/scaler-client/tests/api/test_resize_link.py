"""How a program asks the agent of its local cluster for workers."""

from __future__ import annotations

import threading

import pytest

from scaler_client.api.resize_link import ResizeLink


def always() -> bool:
    return True


def test_an_answer_counts_for_its_own_request_only() -> None:
    link = ResizeLink()
    assert not link.resize(4, 0.01, always)
    link.theirs.sendall(b"1\n")  # late
    assert not link.resize(4, 0.01, always)
    link.theirs.sendall(b"2\n3")
    assert not link.resize(2, 0.0, always)
    link.theirs.sendall(b"\n4\n")
    assert link.resize(0, 20, always)
    assert link.theirs.recv(100) == b"1 4\n2 4\n3 2\n4 0\n"
    link.close()


def test_an_agent_that_has_ended_is_an_error() -> None:
    link = ResizeLink()
    link.theirs.close()
    with pytest.raises(ConnectionError):
        link.resize(1, 20, always)
    link.close()


def test_who_waits_gives_way_when_another_number_is_wanted() -> None:
    link, looked, wanted = ResizeLink(), threading.Semaphore(0), [True]

    def is_wanted() -> bool:
        looked.release()
        return wanted[0]

    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(link.resize(1, 60, is_wanted)))
    waiting.start()
    link.wake()
    assert looked.acquire(timeout=20)
    assert not results, "it is still wanted"
    wanted[0] = False
    link.wake()
    waiting.join(20)
    assert results == [False]
    link.theirs.sendall(b"2\n")
    assert link.resize(3, 20, always)
    link.close()
    link.wake()
