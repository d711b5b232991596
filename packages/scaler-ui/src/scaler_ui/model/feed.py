"""Feed: decodes published frames into messages for the model, and subscribes again after a gap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

from scaler_io.links.streams import HEADER
from scaler_io.transport.endpoint import TURN_MESSAGES
from scaler_protocol.byte_planes import from_planes, record_count
from scaler_protocol.capabilities import parse_capabilities
from scaler_protocol.codec import decode
from scaler_protocol.errors import CapabilityError, MalformedMessageError
from scaler_protocol.limits import MOMENT
from scaler_protocol.messages import Status
from scaler_protocol.monitoring import (
    PACKED_BATCH,
    PACKED_ID,
    MonitorMessage,
    MonitorStatus,
    TaskEvents,
    TaskStep,
    completed,
)
from scaler_protocol.profiles import PROFILE, has_endless_run
from scaler_protocol.safe_text import escaped_message

_IDS: Final = 2**64
FIRST_PAUSE: Final = 0.1
"""Seconds between the first two subscriptions; each time it is twice as long, up to LONGEST_PAUSE."""
LONGEST_PAUSE: Final = 4.0
CALM_SECONDS: Final = 30.0
"""After so long without need for another subscription the pauses begin anew."""


class Subscription(Protocol):
    """The source of published frames."""

    def receive(self, limit: int) -> list[list[bytes]]:
        """The frames of up to `limit` messages that have arrived."""

    def subscribe_again(self) -> None:
        """Subscribe again, so that the publisher sends a snapshot."""


class Feed:
    """The numbered messages of one subscription, beginning with the first snapshot."""

    def __init__(self, subscription: Subscription) -> None:
        self.gaps = 0
        self.malformed = 0
        self._subscription = subscription
        self._expected = 0
        """The next sequence number; 0 until a snapshot has begun."""
        self._status: MonitorStatus | None = None
        """The last one."""
        self._is_renewing = False
        """Whether it must subscribe again."""
        self._pause, self._renewable_at = FIRST_PAUSE, -math.inf

    def take(self, now: float, limit: int = TURN_MESSAGES) -> list[MonitorMessage]:
        """Up to `limit` messages that have arrived, in order. `now` is any monotonic clock in seconds."""
        taken = []
        for frames in self._subscription.receive(limit):
            message = self._read(frames)
            if message is not None:
                taken.append(message)
        if self._is_renewing and now >= self._renewable_at:
            self._renew(now)
        return taken

    def _renew(self, now: float) -> None:
        """Subscribe again. A snapshot costs the scheduler much, so that one which is faulty is not asked at once."""
        is_calm = now > self._renewable_at + CALM_SECONDS
        self._pause = FIRST_PAUSE if is_calm else min(2 * self._pause, LONGEST_PAUSE)
        self._is_renewing, self._renewable_at = False, now + self._pause
        self._subscription.subscribe_again()

    def _read(self, frames: Sequence[bytes]) -> MonitorMessage | None:
        try:
            number = HEADER.unpack(frames[0])[0] if frames and len(frames[0]) == HEADER.size else 0
            message = decode(frames[1:])
        except MalformedMessageError:
            self.malformed += 1
            return None
        if not isinstance(message, MonitorMessage) or not _is_sound(message):
            self.malformed += 1
            return None
        message = escaped_message(message)
        if isinstance(message, MonitorStatus) and message.snapshot:
            self._expected, self._status, self._is_renewing = number, None, False
        if number != self._expected:
            if self._expected:
                self.gaps += 1
                self._begin_again()
            return None
        self._expected += 1
        return self._completed(message) if isinstance(message, MonitorStatus) else message

    def _completed(self, status: MonitorStatus) -> MonitorStatus | None:
        self._status = completed(status, self._status)
        agents = {*self._status.worker_agents, *self._status.unlisted_agents} if self._status else set()
        if not agents <= set(status.agents):
            self._status = None
        if self._status is None:
            self.malformed += 1
            self._begin_again()
        return self._status

    def _begin_again(self) -> None:
        self._expected, self._is_renewing = 0, True


def _is_sound(message: MonitorMessage) -> bool:
    """Whether what the codec does not check is right: capabilities, and that columns of a TaskEvents agree."""
    if isinstance(message, MonitorStatus):
        written = *message.agent_capabilities, *message.offer_capabilities, *message.waiting_capabilities
        return _are_capabilities(written)
    if not isinstance(message, TaskEvents):
        return True
    found = list(PACKED_BATCH.iter_unpack(from_planes(message.batches, PACKED_BATCH.size)))
    assigned = [size for step, _, size, _ in found if step == TaskStep.ASSIGNED]
    ended = sum(size for step, _, size, _ in found if step in (TaskStep.ENDED, TaskStep.AGAIN))
    return (
        _are_capabilities(message.group_capabilities)
        and record_count(message.tasks) == sum(size for _, _, size, _ in found)
        and record_count(message.runs) == len(assigned)
        and all(first + size <= _IDS for size, (first,) in zip(assigned, _runs(message), strict=True))
        and record_count(message.statuses) == record_count(message.profiles) == ended
        and not has_endless_run(from_planes(message.profiles, PROFILE.size))
        and record_count(message.edges) == sum(message.edge_counts)
        and max(from_planes(message.statuses, 1), default=0) <= Status.LOST
        and all(step <= TaskStep.AGAIN and MOMENT.fits(message.since + after / 1e6) for step, _, _, after in found)
    )


def _runs(events: TaskEvents) -> Iterator[tuple[int]]:
    return PACKED_ID.iter_unpack(from_planes(events.runs, PACKED_ID.size))


def _are_capabilities(written: Iterable[str]) -> bool:
    try:
        for text in set(written):
            parse_capabilities(text)
    except CapabilityError:
        return False
    return True
