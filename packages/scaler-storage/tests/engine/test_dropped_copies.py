"""Copies of objects that hosts need not keep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scaler_storage.engine import dropped_copies
from scaler_storage.engine.dropped_copies import ANY_VERSION, DroppedCopies

NAMES = [bytes([letter]) * 16 for letter in b"abcdef"]
KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> Iterator[DroppedCopies]:
    monkeypatch.setattr(dropped_copies, "DROPPED_LIMIT", 3)
    made = DroppedCopies()
    yield made
    made.check()


def test_the_sessions_of_a_key_share_a_budget(dropped: DroppedCopies) -> None:
    for name in NAMES[:2]:
        dropped.remember(1, KEY, name, 7)
    for name in NAMES:
        dropped.remember(2, KEY, name, 7)
    dropped.remember(3, OTHER, NAMES[0], 7)
    assert [dropped.has(1, name, 7) for name in NAMES[:2]] == [True, True]
    assert [name for name in NAMES if dropped.has(2, name, 7)] == [NAMES[-1]] and dropped.has(3, NAMES[0], 7)
    dropped.forget(1)
    for name in NAMES:
        dropped.remember(2, KEY, name, 7)
    assert [name for name in NAMES if dropped.has(2, name, 7)] == NAMES[-3:]


def test_any_version_stands_for_all_until_the_object_is_written_again(dropped: DroppedCopies) -> None:
    dropped.remember(1, KEY, NAMES[0], ANY_VERSION)
    dropped.remember(1, KEY, NAMES[0], 7)
    assert dropped.has(1, NAMES[0], 8) and not dropped.has(2, NAMES[0], 8)
    dropped.needed_again(1, NAMES[0])
    assert dropped.has(1, NAMES[0], 7) and not dropped.has(1, NAMES[0], 8)
    dropped.needed_again(2, NAMES[0])
    dropped.forget(2)
