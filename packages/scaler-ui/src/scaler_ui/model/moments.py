"""The cluster at one moment, and what happened between two of them. Pure."""

from __future__ import annotations

from scaler_protocol.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """The cluster at one status: tasks that had ended, tasks now by where they are, cores and bytes of all workers.

    Of the `timed` tasks whose ends were heard, `latency` is the sum of seconds from submission to end.
    """

    at: float
    ended: int
    waiting: int
    queued: int
    running: int
    cpu: float
    rss: int
    timed: int
    latency: float


def mean_latency(before: Moment, moment: Moment) -> float | None:
    """Mean seconds from submission to end of the tasks that ended between the samples; None if there are none."""
    timed = moment.timed - before.timed
    return (moment.latency - before.latency) / timed if timed > 0 else None
