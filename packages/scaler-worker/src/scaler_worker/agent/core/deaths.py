"""Deaths of workers: which run is charged, and the report to the scheduler. Pure."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from scaler_io.links.effects import Log
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import Status, WorkerState
from scaler_protocol.storage import DeleteObjects
from scaler_worker.agent.core import events
from scaler_worker.agent.core.in_flight import InFlight, profile_until
from scaler_worker.agent.core.records import ATTEMPT, Entry, WorkerRecord, run_ids
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames


class Deaths:
    """Handles deaths; `host` and `secret` identify the host and derive the ids of its stored results."""

    def __init__(self, workers: Workers, in_flight: InFlight, host: str, secret: bytes) -> None:
        self._workers, self._in_flight = workers, in_flight
        self._host, self._secret = host, secret

    def died(self, worker: WorkerRecord, event: events.WorkerDied, now: float) -> None:
        """Charge the current run of a worker that has died; requeue those that it has not begun.

        Of those before the current one the results were in transit: they are lost as well, but not charged.
        """
        entries = worker.entries()
        killed = worker.state == WorkerState.STOPPING
        current = worker.run_named(event.run)
        charged = worker.charged_run if killed else current
        begun = run_ids(worker.begun(event.run))
        self._delete_unreported(worker, entries[: len(begun)])
        requeued: list[Entry] = []
        for entry in entries:
            run, task, *_ = entry
            if run in worker.withdrawn:
                continue
            if killed and run == worker.kill_target and worker.kill_reason:
                profile = profile_until(worker, entry, now, event.peak_memory)
                self._in_flight.fail(run, task, worker.kill_status, worker.kill_reason, profile)
            elif run == charged:
                error, profile = self._death(worker, entry, event), profile_until(worker, entry, now, event.peak_memory)
                self._in_flight.fail(run, task, Status.LOST, describe(error), profile)
            elif run in begun:
                self._in_flight.fail(run, task, Status.LOST, describe(self._lost_result(worker, entry, event)))
            else:
                requeued.append(entry)
        worker.datagrams.clear()
        self._in_flight.discard_withdrawn(worker, entries)
        self._in_flight.requeue(requeued)
        if not killed:
            ran = next((task for run, task, *_ in entries if run == current), 0)
            where = f" while it ran task {ran:x}" if ran else ""
            text = f"{worker.called} {event.reason}{where}"
            if worker.was_asked_to_end and not where:  # nothing has gone wrong
                self._in_flight.effects.append(Log(logging.INFO, text, worker=worker.name))
                return
            self._workers.deaths.append(text)
            # Its task's error has all of the last words, if it had a task.
            said = event.text.partition("\n")[0] if where else event.text
            self._in_flight.effects.append(
                Log(logging.WARNING, f"{text}: {said}" if said else text, task=ran, worker=worker.name)
            )

    def _delete_unreported(self, worker: WorkerRecord, begun: Sequence[Entry]) -> None:
        """Delete the results that these runs may have stored and not reported."""
        if not self._secret:
            return
        for run, task, *_ in begun:
            name = frames.result_name(self._secret, task, run, worker.pid)
            self._in_flight.effects.append(events.SendToScheduler(DeleteObjects((name,), task >> SESSION_BITS)))

    def _lost_result(self, worker: WorkerRecord, entry: Entry, event: events.WorkerDied) -> WorkerDiedError:
        text = f"{worker.called} {event.reason} before the result was reported"
        return WorkerDiedError(f"{text}, attempt {entry[ATTEMPT]}", host=self._host, reason=event.reason, charged=False)

    def _death(self, worker: WorkerRecord, entry: Entry, event: events.WorkerDied) -> WorkerDiedError:
        attempt = entry[ATTEMPT]
        memory = f"; peak memory {event.peak_memory >> 20} MiB" if event.peak_memory else ""
        text = f"; last words:\n{event.text}" if event.text else ""
        return WorkerDiedError(
            f"{worker.called} {event.reason} while it ran the task, attempt {attempt}{memory}{text}",
            host=self._host,
            worker=worker.name,
            pid=worker.pid,
            reason=event.reason,
            peak_memory=event.peak_memory,
            attempt=attempt,
            output=event.text,
        )
