"""History: what is remembered for monitors that subscribe late."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scaler_protocol.codec import decode, encode
from scaler_protocol.messages import AgentStatus
from scaler_protocol.monitoring import MonitorHistory
from scaler_scheduler.core.history import FIGURE_SECONDS, SharedRing

if TYPE_CHECKING:
    from conftest import SchedulerDriver


def test_who_has_more_loses_its_oldest_first() -> None:
    ring: SharedRing[tuple[str, int]] = SharedRing(10, 1000)
    for number in range(4):
        ring.add("few", ("few", number), 10)
    for number in range(100):
        ring.add("many", ("many", number), 10)
    assert list(ring) == [*(("few", number) for number in range(4)), *(("many", number) for number in range(94, 100))]
    for number in range(100):
        ring.add("third", ("third", number), 10)
    assert sorted(Counter(owner for owner, _ in ring).values()) == [3, 3, 4]


def test_bytes_are_bounded_and_a_long_entry_goes_alone() -> None:
    ring: SharedRing[int] = SharedRing(10, 1000)
    for number in range(50):
        ring.add("one", number, 400)
    assert list(ring) == [48, 49]
    ring.add("one", 50, 2000)
    assert list(ring) == []
    ring.add("two", 51, 1)
    assert list(ring) == [51]


def test_figures_can_be_sent_whatever_agents_report(driver: SchedulerDriver) -> None:
    agent, most, zeros = driver.agent(workers=2), 2**64 - 1, (0, 0)
    columns = {"names": ("a", "b"), "cpus": (1e9, 1e9), "rsses": (most, most)}
    columns |= dict.fromkeys(("pids", "states", "runs", "queues"), zeros)
    driver.feed(agent, AgentStatus(**columns))  # type: ignore[arg-type]
    driver.later(FIGURE_SECONDS)
    written = decode([bytes(frame) for frame in encode(driver.core.state.event_log.history.message(0.0))])
    assert isinstance(written, MonitorHistory) and written.figure_rsses[-1] == most
