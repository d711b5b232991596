"""OutcomeBatch: outcomes for one owner, collected in a turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from scaler_protocol.messages import MESSAGE_IDS, MESSAGE_LIMIT, Done
from scaler_protocol.payloads import Payloads
from scaler_scheduler.core.task_states import Outcome


class OutcomeBatch:
    """Outcomes for one owner, collected from messages that could not be forwarded unchanged."""

    __slots__ = ("profiles", "results", "statuses", "stored", "tasks")

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.statuses: list[int] = []
        self.results: list[bytes] = []
        self.stored: list[int] = []
        self.profiles: list[bytes] = []

    def add(self, task: int, outcome: Outcome, profile: bytes) -> None:
        """Add the outcome of one task."""
        status, payload, stored = outcome
        if stored:
            self.stored.append(len(self.tasks))
        self.tasks.append(task)
        self.statuses.append(status)
        self.results.append(payload)
        self.profiles.append(profile)

    def messages(self, agent: str) -> Iterator[Done]:
        """The outcomes in messages of bounded size; `agent` is the name of the agent."""
        stored = set(self.stored)
        for at, end in self._cuts():
            tasks = self.tasks[at:end]
            yield Done(
                tasks,
                self.statuses[at:end],
                Payloads(self.results[at:end]),
                stored=[position for position in range(len(tasks)) if at + position in stored] if stored else (),
                profiles=b"".join(self.profiles[at:end]),
                agent=agent,
            )

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Where each message begins and ends."""
        begin = size = 0
        for at, result in enumerate(self.results):
            size += len(result)
            if at > begin and (size > MESSAGE_LIMIT or at - begin == MESSAGE_IDS):
                yield begin, at
                begin, size = at, len(result)
        yield begin, len(self.results)
