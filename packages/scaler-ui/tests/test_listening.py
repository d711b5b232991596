"""Listening to a scheduler that exists only as what it publishes: how old what is shown may be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scaler_io.links.streams import HEADER
from scaler_io.transport.publishing import Publisher
from scaler_protocol.addresses import Address
from scaler_protocol.codec import encode
from scaler_protocol.messages import Message
from scaler_ui.listening import Listening
from scaler_ui.model.findings import findings
from support.waiting import wait_until

if TYPE_CHECKING:
    from conftest import Publications


class Clock:
    """Each reading is `step` later than the one before."""

    def __init__(self) -> None:
        self.now, self.step = 100.0, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher()
    made.bind(Address(path=str(tmp_path / "monitor")))
    with closing(made):
        yield made


def texts(listening: Listening) -> list[str]:
    return [finding.text for finding in findings(listening.model, listening.now)]


def look_until(listening: Listening, condition: Callable[[], bool]) -> None:
    def is_so() -> bool:
        listening.look()
        return condition()

    wait_until(is_so, "the message")


def test_a_monitor_that_is_behind_says_so_and_does_not_blame_the_scheduler(
    publisher: Publisher, publications: Publications, tmp_path: Path
) -> None:
    def say(number: int, message: Message) -> None:
        publisher.send([HEADER.pack(number, 0), *encode(message)])

    clock = Clock()
    with closing(Listening(Address(path=str(tmp_path / "monitor")), clock)) as listening:
        model = listening.model
        wait_until(publisher.joined, "the subscription")
        say(1, publications.status(snapshot=True))
        look_until(listening, lambda: model.status is not None)
        assert model.delays.longest == 0.0 and not any("behind" in text for text in texts(listening))
        clock.step = 4.0  # it takes long to read each message
        say(2, publications.status(at=1001.0))
        look_until(listening, lambda: model.status is not None and model.status.at == 1001.0)
        clock.step = 0.0
        assert 8.0 <= model.delays.longest <= 20.0 and not model.is_stale(listening.now)
        (text,) = [text for text in texts(listening) if "behind" in text]
        assert text.startswith("This monitor is behind: what it showed in the last minute was up to ")
        assert not any(each.startswith("The scheduler") for each in texts(listening))
        clock.now += 61.0
        listening.look()
        say(3, publications.status(at=1062.0))
        look_until(listening, lambda: model.status is not None and model.status.at == 1062.0)
        assert not any("behind" in each for each in texts(listening))


def test_lost_messages_are_told(publisher: Publisher, publications: Publications, tmp_path: Path) -> None:
    clock = Clock()
    with closing(Listening(Address(path=str(tmp_path / "monitor")), clock)) as listening:
        model = listening.model
        wait_until(publisher.joined, "the subscription")
        for number, snapshot in ((1, True), (3, False), (4, True)):
            publisher.send([HEADER.pack(number, 0), *encode(publications.status(snapshot=snapshot))])
        look_until(listening, lambda: bool(model.delays.losses))
        said = "Messages of the scheduler to this monitor were lost once lately: tasks that ended then are unknown."
        assert said in texts(listening)
        clock.now += 601.0
        assert said not in texts(listening)


def test_a_look_ends_while_more_arrives_and_the_next_ones_take_the_rest(
    publisher: Publisher, publications: Publications, tmp_path: Path
) -> None:
    clock = Clock()
    with closing(Listening(Address(path=str(tmp_path / "monitor")), clock)) as listening:
        model = listening.model
        wait_until(publisher.joined, "the subscription")
        listening.look()
        for number in range(1, 41):
            message = publications.status(at=1000.0 + number, snapshot=number == 1)
            publisher.send([HEADER.pack(number, 0), *encode(message)])
        clock.step = 0.1
        shown = [1000.0]

        def look() -> bool:
            listening.look()
            shown.append(model.status.at if model.status is not None else 1000.0)
            return shown[-1] == 1040.0

        wait_until(look, "the last message")
        assert max(after - before for before, after in itertools.pairwise(shown)) <= 8.0
        assert not listening.losses
        assert model.delays.longest > 3.0, "what is shown last has waited for the looks before"
