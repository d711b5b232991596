"""PendingInputs: results that the scheduler has asked us for, and gets when they are there. Pure, no IO."""

from __future__ import annotations

from collections.abc import Mapping

from scaler_client.core.records import Dependency, OutstandingCall
from scaler_client.objects.handles import stored_positions
from scaler_protocol.messages import Inputs, NeedInputs
from scaler_protocol.payloads import Payloads


class PendingInputs:
    """Which task takes what that has not ended yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Dependency]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, message: NeedInputs, outstanding: Mapping[int, OutstandingCall]) -> None:
        """These are wanted."""
        known: dict[int, dict[int, Dependency]] = {}
        for task, need in zip(message.tasks, message.needs, strict=True):
            call = outstanding.get(task)
            if call is None:
                continue
            if task not in known:
                known[task] = {found.task_id: found for found in call.needs_of(task)}
            if need in known[task]:
                self._waiting.append((task, known[task][need]))

    def answer(self, outstanding: Mapping[int, OutstandingCall]) -> Inputs | None:
        """Those that are there, for tasks that still want them."""
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
        """Nothing is wanted any more."""
        self._waiting = []
