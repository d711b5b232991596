"""PendingInputs: results that the scheduler has requested and that are sent when available. Pure, no IO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from scaler_client.core.effects import DumpInputs
from scaler_client.core.events import InputDumped
from scaler_client.core.graph_state import NodeNeed
from scaler_client.core.records import Dependency, Dump, Outcome, OutstandingCall
from scaler_client.objects.handles import stored_positions
from scaler_protocol.messages import MESSAGE_IDS, MESSAGE_LIMIT, Inputs, NeedInputs
from scaler_protocol.payloads import Payloads

POLL_SECONDS: Final = 0.05
"""How often an outcome that is not here is looked for: futures may end without the core."""


class PendingInputs:
    """Requested inputs that were not sent yet: pairs of consumer and dependency.

    `deferred_failure` returns the failure of a task that runs again only after its consumers have ended: they get it.
    """

    def __init__(self, deferred_failure: Callable[[int], Outcome | None]) -> None:
        self._deferred_failure = deferred_failure
        self._waiting: list[tuple[int, int, Dependency]] = []
        """Consumer, the id that the scheduler has asked for, and what gives the outcome."""
        self._dumping: dict[int, Outcome | None] = {}
        """By dependency: the outcomes that the shell serializes, None until it reports them."""
        self.due: float | None = None
        """When to look for outcomes again (time.monotonic); None if only the shell's reports are awaited."""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._dumping)

    @property
    def is_dumping(self) -> bool:
        """Whether the shell serializes outcomes that are to be sent."""
        return bool(self._dumping)

    def ask(self, message: NeedInputs, outstanding: Mapping[int, OutstandingCall]) -> None:
        """Note the inputs that the scheduler requests."""
        known: dict[int, dict[int, Dependency]] = {}
        for task, need in zip(message.tasks, message.needs, strict=True):
            call = outstanding.get(task)
            if call is None:
                continue
            if task not in known:
                known[task] = {name: found for found in call._needs_of(task) for name in _names(found)}
            if need in known[task]:
                self._waiting.append((task, need, known[task][need]))

    def dumped(self, event: InputDumped, now: float) -> None:
        """The shell has serialized the outcome of a dependency."""
        if event.task in self._dumping:
            self._dumping[event.task] = event.outcome

    def answer(self, outstanding: Mapping[int, OutstandingCall], now: float) -> tuple[list[Inputs], DumpInputs | None]:
        """The inputs to send and the outcomes to serialize now, if any, for tasks still outstanding."""
        pairs, outcomes, waiting = [], [], []
        dumps: dict[int, Dump] = {}
        self.due = None
        for task, name, need in self._waiting:
            if task not in outstanding:
                continue
            outcome = self._dumping.get(name) or need.outcome() or self._deferred_failure(name)
            if isinstance(outcome, tuple):
                pairs.append((task, name))
                outcomes.append(outcome)
                continue
            waiting.append((task, name, need))
            if outcome is None:
                self.due = now + POLL_SECONDS
            elif name not in self._dumping:
                self._dumping[name] = None
                dumps[name] = outcome
        self._waiting = waiting
        self._dumping = {need: outcome for need, outcome in self._dumping.items() if outcome is None}
        dump = DumpInputs(dumps) if dumps else None
        return list(_messages(pairs, outcomes)), dump

    def clear(self) -> None:
        """Drop all requests."""
        self._waiting, self._dumping, self.due = [], {}, None


def _names(need: Dependency) -> tuple[int, ...]:
    """The ids under which a scheduler may ask for a dependency: it may know a node by the task that made it first."""
    return (need.task_id, need.node) if isinstance(need, NodeNeed) else (need.task_id,)


def _messages(pairs: Sequence[tuple[int, int]], outcomes: Sequence[Outcome]) -> Iterator[Inputs]:
    """Messages of bounded size with these inputs."""
    start, size = 0, 0
    for end, (_, payload) in enumerate(outcomes):
        if end > start and (size + len(payload) > MESSAGE_LIMIT or end - start >= MESSAGE_IDS):
            yield _message(pairs[start:end], outcomes[start:end])
            start, size = end, 0
        size += len(payload)
    if pairs:
        yield _message(pairs[start:], outcomes[start:])


def _message(pairs: Sequence[tuple[int, int]], outcomes: Sequence[Outcome]) -> Inputs:
    tasks, needs = zip(*pairs, strict=True)
    statuses, results = zip(*outcomes, strict=True)
    return Inputs(tasks, needs, statuses, Payloads(results), stored_positions(results))
