"""HostProfile: the profile of this host, added up from what its workers sample. Pure.

Workers end a profile by themselves, at its time; one that does not answer, or has died, is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Final

from scaler_protocol.limits import STACK, shortened
from scaler_protocol.operations import ProfilePart, TakeProfile
from scaler_protocol.stack_counts import most_frequent
from scaler_worker.agent.core.events import AgentEffect, SendToScheduler, TakeSamples
from scaler_worker.agent.core.records import WorkerRecord
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc.frames import SamplesTaken
from scaler_worker.ipc.stacks import frame_text, read_stacks

PATIENCE_SECONDS: Final = 3.0
"""How long workers may take to answer after the end."""
SAMPLED_BYTES: Final = 2**18
"""Bytes of samples that one worker may send."""


class HostProfile:
    """The profile that is taken, if there is one; a new one replaces it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.due = math.inf
        """When the answer is sent although workers have not answered; infinity if no profile is taken."""
        self._asked: TakeProfile | None = None
        self._until = 0
        """The end, in nanoseconds of the clock of host and core; it tells profiles from each other."""
        self._texts: dict[int, bytes] = {}
        """What workers have sent that have not answered completely, by number."""
        self._counts: Counter[str] = Counter()
        self._answered = 0

    def take(self, asked: TakeProfile, now: float) -> list[AgentEffect]:
        """Have the workers sample."""
        numbers = [worker.number for worker in self._workers if worker.pid]
        self._asked, self._until = asked, round(1e9 * (now + asked.seconds))
        self.due = self._until / 1e9 + PATIENCE_SECONDS
        self._texts = dict.fromkeys(numbers, b"")
        self._counts, self._answered = Counter(), 0
        return [TakeSamples(number, self._until) for number in numbers]

    def sampled(self, worker: WorkerRecord, event: SamplesTaken, now: float) -> None:
        """A worker has sent samples; those of another profile, and what is too much, are ignored."""
        text = self._texts.get(worker.number)
        if text is None or self._asked is None or event.until != self._until:
            return
        self._texts[worker.number] = text = (text + event.text)[:SAMPLED_BYTES]
        if event.is_last:
            del self._texts[worker.number]
            self._answered += 1
            function = frame_text(self._asked.function)
            for stack, count in read_stacks(text):
                if not function or stack.partition(";")[0] == function:
                    self._counts[shortened(stack, STACK)] += count

    def forget(self, worker: WorkerRecord) -> None:
        """A worker has died."""
        self._texts.pop(worker.number, None)

    def drop(self) -> None:
        """Nobody waits for the profile any more."""
        self._asked, self._texts, self.due = None, {}, math.inf

    def settle(self, now: float) -> list[AgentEffect]:
        """The answer to the scheduler, when it is complete."""
        asked = self._asked
        if asked is None or (self._texts and now < self.due):
            return []
        self.drop()
        return [SendToScheduler(self._part(asked))]

    def _part(self, asked: TakeProfile) -> ProfilePart:
        """The most frequent stacks, as far as there is room, and how many samples the others have together."""
        stacks = most_frequent(self._counts, asked.limit)
        return ProfilePart(asked.request, list(stacks), list(stacks.values()), self._answered)
