"""Effects that the agent's shell could not perform: only the run concerned fails. Pure.

A run fails with the cause if a retry cannot help: its call cannot be written, or its result cannot be sent. Effects
that must happen are retried, such as recalling tasks or killing a worker. Messages to the scheduler other than results
and output must arrive: after TRIES failures the agent exits, and the scheduler reruns its tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from scaler_io.links.effects import Log
from scaler_protocol.errors import ScalerError, describe
from scaler_protocol.messages import Done, Output, Status
from scaler_worker.agent.core import events
from scaler_worker.agent.core.events import AgentEffect, EffectFailed
from scaler_worker.agent.core.in_flight import RETRY_SECONDS, InFlight
from scaler_worker.agent.core.records import RUN, WorkerRecord
from scaler_worker.agent.core.split_by_session import cut_done
from scaler_worker.agent.core.workers import Workers

TRIES: Final = 20


class FailedEffects:
    """Records failed effects (`take`) and returns those that are due for a retry (`settle`)."""

    def __init__(self, workers: Workers, in_flight: InFlight) -> None:
        self.due = math.inf
        self._workers, self._in_flight = workers, in_flight
        self._waiting: list[tuple[AgentEffect, WorkerRecord | None, int]] = []
        self._tried: list[tuple[AgentEffect, WorkerRecord | None, int]] = []
        """The effects that the last `settle` returned."""
        self._handlers: dict[type, Callable[[Any, ScalerError, float], None]] = {
            events.SendToScheduler: self._message_not_sent,
            events.Relay: self._not_relayed,
            events.Define: self._not_defined,
            events.SendTasks: self._tasks_not_sent,
            Log: self._given_up,
            events.EndAgent: self._given_up,
        }

    def take(self, event: EffectFailed, now: float) -> None:
        """Record an effect that has failed, or fail its run."""
        error = ScalerError(f"the agent could not perform {type(event.effect).__name__} for this task: {event.reason}")
        handler = self._handlers.get(type(event.effect), self._retry)
        handler(event.effect, error, now)

    def settle(self, now: float) -> list[AgentEffect]:
        """The effects to retry now; those of workers that have ended are discarded."""
        self._tried = []
        if now < self.due:
            return []
        workers = self._workers.by_number
        self._tried = [each for each in self._waiting if each[1] is None or workers.get(each[1].number) is each[1]]
        self._waiting, self.due = [], math.inf
        return [effect for effect, _, _ in self._tried]

    def _retry(self, effect: AgentEffect, error: ScalerError, now: float) -> None:
        tries = next((tries for tried, _, tries in self._tried if tried is effect), 0) + 1
        if tries >= TRIES and isinstance(effect, events.SendToScheduler):
            reason = f"{type(effect.message).__name__} could not be sent to the scheduler: {error}"
            self._in_flight.effects.append(events.EndAgent(1, (reason,)))
            return
        record = self._workers.by_number.get(getattr(effect, "worker", -1))
        if record is not None or isinstance(effect, events.SendToScheduler):
            self._waiting.append((effect, record, tries))
            self.due = now + RETRY_SECONDS

    def _stop_run(self, number: int, error: ScalerError) -> None:
        worker = self._workers.by_number.get(number)
        entry = worker.next_entry() if worker is not None else None
        if worker is not None and entry is not None:
            self._in_flight.stop_run(worker, entry[RUN], error)

    def _given_up(self, effect: Log | events.EndAgent, error: ScalerError, now: float) -> None:
        """No run is concerned, and a retry could fail again: the shell has logged the error."""

    def _not_relayed(self, effect: events.Relay, error: ScalerError, now: float) -> None:
        self._stop_run(effect.worker, error)

    def _message_not_sent(self, effect: events.SendToScheduler, error: ScalerError, now: float) -> None:
        message = effect.message
        if effect.origin >= 0:
            self._stop_run(effect.origin, error)
        elif isinstance(message, Done) and len(message.tasks) > 1:
            singles = (cut_done(message, (at,)) for at in range(len(message.tasks)))
            self._in_flight.effects += map(events.SendToScheduler, singles)
        elif isinstance(message, Done) and message.statuses[0] != Status.FAILED:
            self._in_flight.fail(message.runs[0], message.tasks[0], Status.FAILED, describe(error))
        elif not isinstance(message, Output):
            self._retry(effect, error, now)

    def _not_defined(self, effect: events.Define, error: ScalerError, now: float) -> None:
        """The worker reports FunctionMissing for the runs of this function; then they fail."""
        worker = self._workers.by_number.get(effect.worker)
        kind = worker.defined.pop(effect.definition.handle, None) if worker is not None else None
        if kind is not None:
            kind.fault = describe(error)

    def _tasks_not_sent(self, effect: events.SendTasks, error: ScalerError, now: float) -> None:
        if worker := self._workers.by_number.get(effect.worker):
            self._in_flight.tasks_not_sent(worker, effect.sequence, describe(error), now)
