"""Nothing that is handed over is lost, whoever is interrupted and whenever."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from scaler_client.runtime.mailbox import Mailbox
from scaler_protocol.errors import ClientQuitError


@pytest.fixture
def mailbox() -> Iterator[Mailbox[int]]:
    mailbox: Mailbox[int] = Mailbox()
    yield mailbox
    mailbox.close(ClientQuitError())
    mailbox.free()


def has_byte(mailbox: Mailbox[int]) -> bool:
    return bool(select.select([mailbox.fileno()], [], [], 0)[0])


def test_entries_come_in_order_and_a_byte_only_to_a_sleeper(mailbox: Mailbox[int]) -> None:
    for entry in range(3):
        mailbox.put(entry)
    assert not has_byte(mailbox)
    assert not mailbox.fall_asleep()  # there is something to take
    assert mailbox.take() == [0, 1, 2] and mailbox.take() == []
    assert mailbox.fall_asleep()
    mailbox.put(3)
    assert has_byte(mailbox)
    mailbox.wake_up()
    mailbox.drain()
    assert not has_byte(mailbox) and mailbox.take() == [3]


def test_a_thread_about_to_block_cuts_a_pause_short(mailbox: Mailbox[int]) -> None:
    mailbox.flush()
    assert not has_byte(mailbox)
    mailbox.put(1)
    mailbox.flush()
    assert has_byte(mailbox)


def test_an_interrupt_between_entry_and_byte_loses_nothing(
    mailbox: Mailbox[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mailbox.fall_asleep()
    with monkeypatch.context() as patch:

        def interrupt() -> None:
            raise KeyboardInterrupt

        patch.setattr(mailbox, "wake", interrupt)
        with pytest.raises(KeyboardInterrupt):
            mailbox.put(1)
    assert not has_byte(mailbox)
    mailbox.put(2)  # the flag is still up
    assert has_byte(mailbox)
    mailbox.drain()
    mailbox.flush()  # and so would anybody be who waits for 1
    assert has_byte(mailbox) and mailbox.take() == [1, 2]


def test_one_unread_byte_is_enough(mailbox: Mailbox[int], monkeypatch: pytest.MonkeyPatch) -> None:
    wake, wakes = mailbox.wake, 0

    def count() -> None:
        nonlocal wakes
        wakes += 1
        wake()

    monkeypatch.setattr(mailbox, "wake", count)
    assert mailbox.fall_asleep()
    for entry in range(3):
        mailbox.put(entry)
        mailbox.flush()
    assert wakes == 1 and has_byte(mailbox)
    mailbox.wake_up()
    mailbox.drain()
    assert mailbox.take() == [0, 1, 2]
    mailbox.put(3)  # the thread may pause now
    mailbox.flush()
    assert wakes == 2 and has_byte(mailbox)


def test_more_bytes_than_the_pipe_holds_are_no_error(mailbox: Mailbox[int]) -> None:
    for _ in range(1_000_000):
        mailbox.wake()
    mailbox.drain()
    assert not has_byte(mailbox)


def test_after_close_each_entry_is_taken_or_refused(mailbox: Mailbox[int]) -> None:
    mailbox.put(1)
    mailbox.close(ClientQuitError("over"))
    with pytest.raises(ClientQuitError, match="over"):
        mailbox.put(2)
    with pytest.raises(ClientQuitError):
        mailbox.check()
    assert mailbox.closed and 1 in mailbox.take()


class Crowd:
    """Threads that hand over pairs of their number and a count, and one that sleeps and takes."""

    def __init__(self) -> None:
        self.mailbox: Mailbox[tuple[int, int]] = Mailbox()
        self.taken: list[tuple[int, int]] = []
        self.accepted: list[list[tuple[int, int]]] = [[] for _ in range(4)]
        self.sleeper = threading.Thread(target=self._sleep_and_take)
        self.submitters = [threading.Thread(target=self._submit, args=(number,)) for number in range(4)]
        for thread in (self.sleeper, *self.submitters):
            thread.start()

    def _sleep_and_take(self) -> None:
        mailbox = self.mailbox
        while not mailbox.closed:
            self.taken.extend(mailbox.take())
            if mailbox.fall_asleep():
                select.select([mailbox.fileno()], [], [])
                mailbox.wake_up()
            mailbox.drain()
        self.taken.extend(mailbox.take())

    def _submit(self, number: int) -> None:
        for count in range(5000):
            try:
                self.mailbox.put((number, count))
            except ClientQuitError:
                return
            self.accepted[number].append((number, count))

    def end(self) -> None:
        """Close, and see that what was accepted was taken, in order."""
        self.mailbox.close(ClientQuitError())
        self.mailbox.wake()
        for thread in (self.sleeper, *self.submitters):
            thread.join()
        self.mailbox.free()
        for number, accepted in enumerate(self.accepted):
            taken = [entry for entry in self.taken if entry[0] == number]
            assert taken[: len(accepted)] == accepted


def test_threads_wake_a_sleeper_by_their_own_bytes() -> None:
    crowd = Crowd()
    for thread in crowd.submitters:
        thread.join()
    while len(crowd.taken) < 20_000:  # no close, no flush
        pass
    crowd.end()


def test_a_close_at_any_moment() -> None:
    for _ in range(10):
        Crowd().end()
