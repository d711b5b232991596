"""TurnLoop on real loops: when turns are taken, and that none is lost."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator

import pytest

from scaler_io.service.event_loops import run
from scaler_io.service.turn_loop import TurnLoop


class ScriptedShell:
    """Each turn returns the next due time, relative to its own, or raises it; `left` is input that is left."""

    def __init__(self, *dues: float | Exception, left: int = 0) -> None:
        self.turns: list[float] = []
        self.asked = 0
        self.left = left
        self._dues: Iterator[float | Exception] = iter(dues)

    def turn(self, now: float) -> float:
        self.turns.append(now)
        due = next(self._dues, math.inf)
        if isinstance(due, Exception):
            raise due
        return now + due

    def readable(self) -> bool:
        self.asked += 1
        self.left -= 1
        return self.left >= 0


@pytest.fixture(params=["builtin", "uvloop"])
def loop_kind(request: pytest.FixtureRequest) -> str:
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    return str(request.param)


def drive(shell: ScriptedShell, turns: int, kind: str, begin: Callable[[TurnLoop], object] = TurnLoop.now) -> None:
    """Run until so many turns were taken, and then for a few rounds more."""

    async def main() -> None:
        loop = TurnLoop(shell)
        begin(loop)
        deadline = time.monotonic() + 20
        while len(shell.turns) < turns:
            assert time.monotonic() < deadline, shell.turns
            await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        loop.close()
        loop.now()
        loop.soon()
        await asyncio.sleep(0)

    run(main, kind)


class AlarmShell(ScriptedShell):
    """Is due 20 ms after its first turn; turns that come before, since loops round delays, are not counted."""

    def turn(self, now: float) -> float:
        if self.turns and now < self.turns[0] + 0.02:
            return self.turns[0] + 0.02
        super().turn(now)
        return self.turns[0] + 0.02 if len(self.turns) == 1 else math.inf


def test_a_turn_is_taken_when_it_is_due(loop_kind: str) -> None:
    shell = AlarmShell()
    drive(shell, 2, loop_kind)
    assert len(shell.turns) == 2 and shell.turns[1] >= shell.turns[0] + 0.02


def test_turns_follow_at_once_while_input_is_left(loop_kind: str) -> None:
    shell = ScriptedShell(left=4)
    drive(shell, 5, loop_kind)
    assert len(shell.turns) == shell.asked == 5


def test_several_requests_make_one_turn(loop_kind: str) -> None:
    shell = ScriptedShell()

    def ask(loop: TurnLoop) -> None:
        for _ in range(3):
            loop.soon()

    drive(shell, 1, loop_kind, ask)
    assert len(shell.turns) == 1


def test_a_turn_at_once_answers_an_earlier_request(loop_kind: str) -> None:
    shell = ScriptedShell()

    def ask(loop: TurnLoop) -> None:
        loop.soon()
        loop.now()

    drive(shell, 1, loop_kind, ask)
    assert len(shell.turns) == 1


def test_the_earlier_time_counts(loop_kind: str) -> None:
    shell = ScriptedShell(30.0, 0.0)

    def ask(loop: TurnLoop) -> None:
        loop.now()
        loop.now()

    drive(shell, 3, loop_kind, ask)
    assert shell.turns[-1] < shell.turns[0] + 20


def test_after_a_turn_that_fails_input_is_looked_for_and_turns_go_on(loop_kind: str) -> None:
    shell = ScriptedShell(ValueError("on purpose"), left=1)
    reported: list[dict[str, object]] = []

    def begin(loop: TurnLoop) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        loop.soon()

    drive(shell, 2, loop_kind, begin)
    assert len(shell.turns) == 2 and [str(context["exception"]) for context in reported] == ["on purpose"]


class AnsweringShell(ScriptedShell):
    """Has the peer take the next turn, so many times."""

    def __init__(self, name: str, order: list[str], answers: int) -> None:
        super().__init__()
        self.name, self.order, self.answers = name, order, answers
        self.peer: TurnLoop | None = None
        self.fails = False

    def turn(self, now: float) -> float:
        self.order.append(self.name)
        if self.peer is not None and self.answers:
            self.answers -= 1
            self.peer.next()
            self.order.append(f"{self.name} ends")
        if self.fails:
            raise ValueError("on purpose")
        return super().turn(now)


def answering(kind: str, answers: tuple[int, int], *, fails: bool = False) -> list[str]:
    """The order of turns, and of rounds of the loop, if the first of two shells takes one."""
    order: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: order.append(str(context["exception"])))
        shells = [AnsweringShell(name, order, count) for name, count in zip("ab", answers, strict=True)]
        first, second = (TurnLoop(shell) for shell in shells)
        shells[0].peer, shells[1].peer, shells[0].fails = second, first, fails
        first.soon()
        for number in range(6):
            await asyncio.sleep(0)
            order.append(str(number))
        first.close()
        second.close()

    run(main, kind)
    return order[: order.index("5")]


def test_a_turn_that_another_one_asks_for_follows_without_a_round_of_the_loop(loop_kind: str) -> None:
    order = answering(loop_kind, (1, 0))
    assert [each for each in order if not each.isdigit()] == ["a", "a ends", "b"]
    assert order.index("b") == order.index("a ends") + 1


def test_shells_that_answer_each_other_let_the_loop_go_on(loop_kind: str) -> None:
    order = answering(loop_kind, (100, 100))
    turns = ["a", "a ends", "b", "b ends"]
    at = order.index("a")
    assert order[at : at + 4] == turns and order[at + 4].isdigit()
    assert order[at + 5 : at + 9] == turns


def test_a_turn_follows_one_that_fails(loop_kind: str) -> None:
    order = answering(loop_kind, (1, 0), fails=True)
    assert [each for each in order if not each.isdigit()] == ["a", "a ends", "b", "on purpose"]


def test_the_next_turn_is_taken_soon_if_nobody_takes_one(loop_kind: str) -> None:
    shell = ScriptedShell()

    def ask(loop: TurnLoop) -> None:
        loop.next()
        loop.next()
        assert not shell.turns

    drive(shell, 1, loop_kind, ask)
    assert len(shell.turns) == 1


def test_a_turn_may_take_one_of_another_shell(loop_kind: str) -> None:
    """As the link of a relay does: both go on, and what is asked for next follows the turn around."""
    inner, outer, third = ScriptedShell(0.01), ScriptedShell(0.01), ScriptedShell()

    async def main() -> None:
        within, last = TurnLoop(inner), TurnLoop(third)

        class Around:
            readable = outer.readable

            def turn(self, now: float) -> float:
                if not outer.turns:
                    within.now()
                    last.next()
                    assert third.turns == []
                return outer.turn(now)

        around = TurnLoop(Around())
        around.now()
        assert (len(inner.turns), len(outer.turns), len(third.turns)) == (1, 1, 1)
        deadline = time.monotonic() + 20
        while len(inner.turns) < 2 or len(outer.turns) < 2:
            assert time.monotonic() < deadline, (inner.turns, outer.turns)
            await asyncio.sleep(0.001)
        for loop in (within, around, last):
            loop.close()

    run(main, loop_kind)
