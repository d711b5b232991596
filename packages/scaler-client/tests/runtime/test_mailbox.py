"""Nothing that is handed over is lost, whoever is interrupted and whenever."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from scaler_client.runtime.mailbox import Handoff
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


class Crowd:
    """Threads that hand over pairs of their number and a count, and one that sleeps and takes."""

    def __init__(self) -> None:
        self.handoff: Handoff[tuple[int, int]] = Handoff()
        self.taken: list[tuple[int, int]] = []
        self.accepted: list[list[tuple[int, int]]] = [[] for _ in range(4)]
        self.sleeper = threading.Thread(target=self._sleep_and_take)
        self.submitters = [threading.Thread(target=self._submit, args=(number,)) for number in range(4)]
        for thread in (self.sleeper, *self.submitters):
            thread.start()

    def _sleep_and_take(self) -> None:
        handoff = self.handoff
        while not handoff.closed:
            self.taken.extend(handoff.take())
            if handoff.fall_asleep():
                select.select([handoff.fileno()], [], [])
                handoff.wake_up()
            handoff.drain()
        self.taken.extend(handoff.take())

    def _submit(self, number: int) -> None:
        for count in range(5000):
            try:
                self.handoff.put((number, count))
            except ClientQuitError:
                return
            self.accepted[number].append((number, count))

    def end(self) -> None:
        """Close, and see that what was accepted was taken, in order."""
        self.handoff.close(ClientQuitError())
        self.handoff.wake()
        for thread in (self.sleeper, *self.submitters):
            thread.join()
        self.handoff.free()
        for number, accepted in enumerate(self.accepted):
            taken = [entry for entry in self.taken if entry[0] == number]
            assert taken[: len(accepted)] == accepted


def test_threads_wake_a_sleeper_by_their_own_bytes() -> None:
    crowd = Crowd()
    for thread in crowd.submitters:
        thread.join()
    while len(crowd.taken) < 20_000:  # no close, no press
        pass
    crowd.end()


def test_a_close_at_any_moment() -> None:
    for _ in range(10):
        Crowd().end()
