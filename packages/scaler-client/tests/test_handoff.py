"""Nothing that is handed over is lost, whoever is interrupted and whenever."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from scaler_client.handoff import Handoff
from scaler_protocol.errors import ClientQuitError


@pytest.fixture
def handoff() -> Iterator[Handoff[int]]:
    handoff: Handoff[int] = Handoff()
    yield handoff
    handoff.close(ClientQuitError())
    handoff.free()


def has_byte(handoff: Handoff[int]) -> bool:
    return bool(select.select([handoff.fileno()], [], [], 0)[0])


def test_entries_come_in_order_and_a_byte_only_to_a_sleeper(handoff: Handoff[int]) -> None:
    for entry in range(3):
        handoff.put(entry)
    assert not has_byte(handoff)
    assert not handoff.fall_asleep()  # there is something to take
    assert handoff.take() == [0, 1, 2] and handoff.take() == []
    assert handoff.fall_asleep()
    handoff.put(3)
    assert has_byte(handoff)
    handoff.wake_up()
    handoff.drain()
    assert not has_byte(handoff) and handoff.take() == [3]


def test_a_thread_about_to_block_cuts_a_pause_short(handoff: Handoff[int]) -> None:
    handoff.press()
    assert not has_byte(handoff)
    handoff.put(1)
    handoff.press()
    assert has_byte(handoff)


def test_an_interrupt_between_entry_and_byte_loses_nothing(
    handoff: Handoff[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert handoff.fall_asleep()
    with monkeypatch.context() as patch:

        def interrupt() -> None:
            raise KeyboardInterrupt

        patch.setattr(handoff, "wake", interrupt)
        with pytest.raises(KeyboardInterrupt):
            handoff.put(1)
    assert not has_byte(handoff)
    handoff.put(2)  # the flag is still up
    assert has_byte(handoff)
    handoff.drain()
    handoff.press()  # and so would anybody be who waits for 1
    assert has_byte(handoff) and handoff.take() == [1, 2]


def test_more_bytes_than_the_pipe_holds_are_no_error(handoff: Handoff[int]) -> None:
    for _ in range(1_000_000):
        handoff.wake()
    handoff.drain()
    assert not has_byte(handoff)


def test_after_close_each_entry_is_taken_or_refused(handoff: Handoff[int]) -> None:
    handoff.put(1)
    handoff.close(ClientQuitError("over"))
    with pytest.raises(ClientQuitError, match="over"):
        handoff.put(2)
    with pytest.raises(ClientQuitError):
        handoff.check()
    assert handoff.closed and 1 in handoff.take()


def test_threads_and_a_sleeper() -> None:
    """The real thing: the sleeper blocks for ever unless somebody wakes it, and closes at a random moment."""
    for closes in (False, True):
        handoff: Handoff[tuple[int, int]] = Handoff()
        taken: list[tuple[int, int]] = []
        accepted: list[list[tuple[int, int]]] = [[] for _ in range(4)]

        def sleep_and_take(handoff: Handoff[tuple[int, int]] = handoff, taken: list[tuple[int, int]] = taken) -> None:
            while not handoff.closed:
                taken.extend(handoff.take())
                if handoff.fall_asleep():
                    select.select([handoff.fileno()], [], [])
                    handoff.wake_up()
                handoff.drain()
            taken.extend(handoff.take())

        def submit(
            number: int,
            handoff: Handoff[tuple[int, int]] = handoff,
            accepted: list[list[tuple[int, int]]] = accepted,
        ) -> None:
            for count in range(5000):
                try:
                    handoff.put((number, count))
                except ClientQuitError:
                    return
                accepted[number].append((number, count))

        sleeper = threading.Thread(target=sleep_and_take)
        submitters = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        for thread in (sleeper, *submitters):
            thread.start()
        if not closes:
            for thread in submitters:
                thread.join()
            while len(taken) < 20_000:  # no close, no press: only their own bytes
                pass
        handoff.close(ClientQuitError())
        handoff.wake()
        for thread in (sleeper, *submitters):
            thread.join()
        handoff.free()
        for number in range(4):
            mine = [entry for entry in taken if entry[0] == number]
            assert mine[: len(accepted[number])] == accepted[number]
