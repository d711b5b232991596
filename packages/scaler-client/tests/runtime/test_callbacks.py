"""Users' code has a thread of its own, which is there before any of it is due."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scaler_client.api.client import Client
from scaler_client.runtime.callbacks import Callbacks

SECONDS = 10.0


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_work_is_done_in_order_by_one_thread() -> None:
    callbacks, gate, seen = Callbacks(), threading.Barrier(2), list[tuple[int, int, int]]()
    callbacks.start()

    def add(who: int) -> None:
        gate.wait(SECONDS)
        for number in range(100):
            callbacks.add(lambda number=number: seen.append((who, number, threading.get_ident())))  # type: ignore[misc]

    threads = [threading.Thread(target=add, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    callbacks.stop()
    callbacks._thread.join(SECONDS)
    assert not callbacks._thread.is_alive() and len({ident for _, _, ident in seen}) == 1
    assert all([number for each, number, _ in seen if each == who] == list(range(100)) for who in range(2))


def test_what_is_added_after_the_end_is_done_at_once(caplog: pytest.LogCaptureFixture) -> None:
    callbacks, seen = Callbacks(), list[int]()
    callbacks.start()
    callbacks.stop()
    callbacks._thread.join(SECONDS)
    callbacks.add(lambda: 1 // 0)
    callbacks.add(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()] and "ZeroDivisionError" in caplog.text


def refuse_threads(patched: pytest.MonkeyPatch, name: str = "scaler-") -> None:
    """As at the limit of processes, or, from Python 3.12 on, while the interpreter ends."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    patched.setattr(threading.Thread, "start", refuse)


def test_a_client_that_has_called_nobody_back_needs_no_new_thread_for_it(
    client: Client, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.paused = True
    futures = [client.submit(abs, -number) for number in range(3)]
    refuse_threads(monkeypatch)
    called = [threading.Event() for _ in futures]
    for future, event in zip(futures, called, strict=True):
        future.add_done_callback(lambda done, event=event: event.set())  # type: ignore[misc]
    cluster.go_on()
    assert [future.result(SECONDS) for future in futures] == [0, 1, 2]
    assert all(event.wait(SECONDS) for event in called)


@pytest.mark.parametrize("name", ["scaler-callbacks", "scaler-io"])
def test_who_can_have_no_thread_is_told_and_nothing_is_left(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = running()
    refuse_threads(monkeypatch, name)
    with pytest.raises(RuntimeError, match="can't start"):
        Client(cluster.address)
    for thread in threading.enumerate():
        if thread.name == "scaler-callbacks" and thread.name not in before:
            thread.join(SECONDS)
    assert running() == before
