"""What agent and workers share, whatever tasks write into it."""

from __future__ import annotations

import os

import pytest

from scaler_worker.ipc.shared_state import SharedState

STORAGE, TOKEN = "tcp://10.0.0.1:2346", b"token"


def of_worker(shared: SharedState) -> SharedState:
    return SharedState(os.dup(shared.descriptor), shared.count)


@pytest.mark.parametrize("word", [0, 1, 2**64 - 1])
def test_what_a_task_overwrites_stays_known_to_the_agent_and_is_right_for_the_next_worker(word: int) -> None:
    shared = SharedState.create(2)
    worker, secret = of_worker(shared), shared.secret
    shared.follow(7, STORAGE, TOKEN)
    for at in range(len(worker._view)):
        worker._view[at] = word
    assert (shared.storage, shared.token) == (STORAGE, TOKEN)
    shared.restore()
    assert (worker.scheduler, worker.storage, worker.token, worker.secret) == (7, STORAGE, TOKEN, secret)
    worker._view[2 * len(worker.cells(0))] = word
    shared.follow(8, "tcp://10.0.0.2:2346")
    assert (worker.scheduler, worker.storage, worker.token) == (8, "tcp://10.0.0.2:2346", b"")


def test_nothing_is_announced_before_the_first_connection() -> None:
    shared = SharedState.create(1)
    shared.restore()
    worker = of_worker(shared)
    assert (worker.scheduler, worker.storage, worker.token) == (0, "", b"")
    assert worker.secret == shared.secret != bytes(16)
