"""That storage is full is said once, and then once a minute with a count, however it changes meanwhile."""

from __future__ import annotations

from scaler_storage.engine.fullness import REPEAT_SECONDS, Fullness


class Lines:
    """What an operator reads."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.fullness = Fullness(lambda level, text: self.texts.append(text))

    def refuse(self, count: int, now: float) -> None:
        for _ in range(count):
            self.fullness.settle(now)
            self.fullness.refused("no room", now)


REMEDY = "see --memory-limit and --spill-directory"
FIRST = f"storage is full: no room; {REMEDY}"


def test_the_first_refusal_is_told_and_the_others_are_counted() -> None:
    lines = Lines()
    assert lines.fullness.due() is None
    lines.refuse(10, 5.0)
    assert lines.texts == [FIRST]
    due = lines.fullness.due()
    assert due == 5.0 + REPEAT_SECONDS
    lines.fullness.settle(due)
    more = f"storage is full: refused 9 more objects in 60 s, the last: no room; {REMEDY}"
    assert lines.texts == [FIRST, more]
    assert lines.fullness.due() == due + REPEAT_SECONDS


def test_those_of_the_last_ten_minutes_are_counted() -> None:
    lines = Lines()
    lines.refuse(3, 5.0)
    lines.refuse(2, 70.0)
    assert lines.fullness.lately(80.0) == 5
    assert (lines.fullness.lately(606.0), lines.fullness.lately(671.0)) == (2, 0)
    for minute in range(100):
        lines.refuse(1, 1000.0 + 60 * minute)
    assert lines.fullness.lately(1000.0 + 60 * 99) == 10


def test_a_minute_without_refusals_is_the_end() -> None:
    lines = Lines()
    lines.refuse(1, 0.0)
    lines.fullness.settle(REPEAT_SECONDS)
    assert lines.texts == [FIRST] and lines.fullness.due() is None
    lines.refuse(2, 2 * REPEAT_SECONDS)
    assert lines.texts == [FIRST, FIRST]
