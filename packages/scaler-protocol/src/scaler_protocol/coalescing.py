"""Coalescing: how long outcomes wait for others while a scheduler is busy, and what hosts get to run meanwhile. Pure.

A message costs a scheduler as much as many outcomes in it, so a busy one handles more tasks per second if they come
together. An outcome that waits leaves its worker idle unless the host has another task queued. Hence two waits: a
longer one for hosts with tasks queued, and a short one for the others. The outcome of a session that has no other run
at the host has the short one, too: nothing would join it, and its caller probably waits for it. A busy scheduler gives
its hosts as many tasks ahead as end in the longer wait, and can recall them. What is more urgent waits behind these, so
there are no more, and none of long tasks. Tasks so short that hosts have queues anyway need neither.

For the same reason a busy scheduler fills one host after the other, instead of sending a few short tasks to each.

The longer wait grows with the square of the pressure: little while the scheduler keeps up, since callers may wait for
the outcome, and up to the length of the run when it does not, since outcomes and workers would then wait for longer.
"""

from __future__ import annotations

from typing import Final

RISE: Final = 0.3
FALL: Final = 0.05
"""How far what a service tells of its load goes, in a second, towards a higher or lower load that it has measured."""
BUSY_FROM: Final = 0.5
"""Up to this share of its time a scheduler is not busy."""
WAIT_SECONDS: Final = 0.02
WAIT_SHARE: Final = 0.02
"""The longest wait, also as a share of the run, on a host with nothing queued; for a scheduler that is always busy."""
QUEUED_WAIT_SECONDS: Final = 1.0
QUEUED_WAIT_SHARE: Final = 1.0
"""The same on a host with tasks queued."""
TOGETHER_SECONDS: Final = 0.02
MOST_TOGETHER: Final = 512
"""Work in seconds for each worker of a host that a scheduler that is always busy sends together, although other hosts
have less, and the most tasks of it: a host takes a few milliseconds to take that many in."""


def told_load(before: float, measured: float, seconds: float) -> float:
    """What a service tells of its load, which was `before`, when it has measured another one in the last seconds.

    Hosts hear it some seconds later, with a heartbeat, and what they do then takes effect after a run. With 1,000 hosts
    and runs of 1 s a load that is told as measured swings between 0.3 and 1, and 1 to 15 outcomes come in a message;
    with these values it stays at 0.75, and 4 outcomes (simulated, also with 4,000 hosts).
    """
    share = RISE if measured > before else FALL
    left: float = (1.0 - share) ** seconds
    return measured + (before - measured) * left


def pressure(busy: float) -> float:
    """How much too busy a scheduler is, from 0 to 1. `busy`: for which share of its time it works, as it tells."""
    return max(0.0, (busy - BUSY_FROM) / (1.0 - BUSY_FROM))


def wait_seconds(pressure: float, run_seconds: float, *, has_queued: bool) -> float:
    """How long the outcome of a run of this duration waits at most."""
    if has_queued:
        return pressure**2 * min(QUEUED_WAIT_SECONDS, QUEUED_WAIT_SHARE * run_seconds)
    return pressure * min(WAIT_SECONDS, WAIT_SHARE * run_seconds)


def tasks_ahead(pressure: float, run_seconds: float, workers: int) -> int:
    """How many tasks a host is given beyond one for each worker: as many as end while an outcome waits, no more."""
    return int(pressure**2 * min(QUEUED_WAIT_SECONDS / run_seconds, QUEUED_WAIT_SHARE) * workers)


def tasks_together(pressure: float, run_seconds: float, workers: int) -> int:
    """How many tasks a host is given together at least, if it has room, even if others get none."""
    if not pressure:
        return 0
    return int(min(pressure**2 * TOGETHER_SECONDS * workers / max(run_seconds, 1e-6), MOST_TOGETHER))


def most_ahead(pressure: float, workers: int) -> int:
    """The most that `tasks_ahead` returns, for any duration."""
    return int(pressure**2 * QUEUED_WAIT_SHARE * workers)
