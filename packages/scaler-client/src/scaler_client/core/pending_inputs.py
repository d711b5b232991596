"""PendingInputs: results that the scheduler has requested and that are sent when available. Pure, no IO."""

from __future__ import annotations

from collections.abc import Mapping

from scaler_client.core.records import Dependency, OutstandingCall
from scaler_client.objects.handles import stored_positions
from scaler_protocol.messages import Inputs, NeedInputs
from scaler_protocol.payloads import Payloads


class PendingInputs:
    """Requested inputs that have no outcome yet: pairs of consumer and dependency."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Dependency]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, message: NeedInputs, outstanding: Mapping[int, OutstandingCall]) -> None:
        """Note the inputs that the scheduler requests."""
        known: dict[int, dict[int, Dependency]] = {}
        for task, need in zip(message.tasks, message.needs, strict=True):
            call = outstanding.get(task)
            if call is None:
                continue
            if task not in known:
                known[task] = {found.task_id: found for found in call._needs_of(task)}
            if need in known[task]:
                self._waiting.append((task, known[task][need]))

    def answer(self, outstanding: Mapping[int, OutstandingCall]) -> Inputs | None:
        """The inputs available now, for tasks still outstanding; None if there are none."""
        pairs, outcomes, waiting = [], [], []
        for task, need in self._waiting:
            if task not in outstanding:
                continue
            outcome = need.outcome()  # which may pickle a value
            if outcome is None:
                waiting.append((task, need))
            else:
                pairs.append((task, need.task_id))
                outcomes.append(outcome)
        self._waiting = waiting
        if not pairs:
            return None
        tasks, needs = zip(*pairs, strict=True)
        statuses, results = zip(*outcomes, strict=True)
        return Inputs(tasks, needs, statuses, Payloads(results), stored_positions(results))

    def clear(self) -> None:
        """Drop all requests."""
        self._waiting = []
