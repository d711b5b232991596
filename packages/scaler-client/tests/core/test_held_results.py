"""What a client says of the long results that came with messages."""

from __future__ import annotations

from typing import Any

import pytest

from scaler_client.core.core import ClientCore
from scaler_client.core.effects import Transmit
from scaler_client.core.held_results import FREED_BYTES, LongResult
from scaler_client.core.records import CallBlock, CallGroup, Deliver
from scaler_io.links.events import LinkDown, LinkUp
from scaler_protocol.handshake import INLINE_LIMIT, Welcome
from scaler_protocol.messages import Done, Group, Release, Status
from scaler_protocol.payloads import Payloads

LONG = bytes(INLINE_LIMIT + 1)
MANY = FREED_BYTES // len(LONG) + 2


def core_of(*, has_credit: bool) -> ClientCore:
    core = ClientCore("tcp://127.0.0.1:2345", has_credit=has_credit)
    core.handle(LinkUp(Welcome(1), resumed=False), 0.0)
    core.settle(0.0)
    return core


def come(core: ClientCore, *results: bytes, now: float = 0.0) -> list[bytes]:
    """Outcomes arrive: what is delivered."""
    count = len(results)
    core.handle(Done(range(1, count + 1), [Status.VALUE] * count, Payloads(results)), now)
    (delivered,) = [effect for effect in core.settle(now) if isinstance(effect, Deliver)]
    return list(delivered.results)


def sent(core: ClientCore, now: float) -> list[Any]:
    return [effect.message for effect in core.settle(now) if isinstance(effect, Transmit)]


@pytest.mark.parametrize("has_credit", [True, False])
def test_a_release_says_what_was_let_go_of(has_credit: bool) -> None:
    core = core_of(has_credit=has_credit)
    results = come(core, LONG, bytes(INLINE_LIMIT), LONG)
    assert results == [LONG, bytes(INLINE_LIMIT), LONG]
    assert [type(each) is LongResult for each in results] == [has_credit, False, has_credit]
    del results[0]
    assert sent(core, 1.0) == [Release([1, 2, 3], has_credit * len(LONG))]
    results.clear()
    come(core, b"short", now=2.0)
    assert sent(core, 3.0) == [Release([1], has_credit * len(LONG))]


def test_much_is_said_although_there_is_nothing_to_release() -> None:
    core = core_of(has_credit=True)
    results = come(core, *[LONG] * MANY)
    assert sent(core, 1.0) == [Release(list(range(1, MANY + 1)))]
    view = memoryview(results.pop())
    results.pop()
    assert sent(core, 2.0) == [], "little"
    results.clear()
    assert sent(core, 3.0) == [Release((), (MANY - 1) * len(LONG))], "a value may use the bytes of its result"
    del view
    assert sent(core, 4.0) == []


def test_a_map_lets_go_of_its_results_at_once() -> None:
    core = core_of(has_credit=True)
    block = CallBlock(1, CallGroup(Group(b"f"), (), bytes, bytes), [b"call"] * 3, lambda: None)
    for task, result in enumerate(come(core, LONG, b"short", LONG), 1):
        block.take(task, Status.VALUE, result)
    assert block.is_long and block.results == [LONG, b"short", LONG]
    assert sent(core, 1.0) == [Release([1, 2, 3], 2 * len(LONG))]


def test_another_scheduler_is_not_told_of_results_of_the_one_before() -> None:
    core = core_of(has_credit=True)
    results = come(core, *[LONG] * MANY)
    sent(core, 1.0)
    core.handle(LinkDown("lost"), 1.0)
    core.handle(LinkUp(Welcome(2), resumed=False), 1.0)
    sent(core, 1.0)
    results.clear()
    assert sent(core, 2.0) == []
