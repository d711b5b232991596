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
