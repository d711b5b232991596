"""Deaths of workers: which run is charged, and the report to the scheduler. Pure."""

from __future__ import annotations

import logging

from scaler_io.links.effects import Log
from scaler_protocol.errors import WorkerDiedError, describe
from scaler_protocol.ids import SESSION_BITS
from scaler_protocol.messages import Status, WorkerState
from scaler_protocol.storage import DeleteObjects
from scaler_worker.agent.core import events
from scaler_worker.agent.core.in_flight import InFlight
from scaler_worker.agent.core.records import Entry, WorkerRecord
from scaler_worker.agent.core.workers import Workers
from scaler_worker.ipc import frames


class Deaths:
    """Handles deaths; `host` and `secret` identify the host and derive the ids of its stored results."""

    def __init__(self, workers: Workers, in_flight: InFlight, host: str, secret: bytes) -> None:
        self._workers, self._in_flight = workers, in_flight
        self._host, self._secret = host, secret

    def died(self, worker: WorkerRecord, event: events.WorkerDied, now: float) -> None:
        """A worker has died: only its current run is charged; the others are requeued."""
        in_flight, entries = self._in_flight, worker.entries()
        killed = worker.state == WorkerState.STOPPING
        rest: list[Entry] = []
        current = worker.run_named(event.run)
        begun = current != 0
        for entry in entries:
            if begun and self._secret:
                # It may have died after storing the result and before writing the record.
                unsaid = frames.result_name(self._secret, entry[1], entry[0], worker.pid)
                in_flight.effects.append(events.SendToScheduler(DeleteObjects((unsaid,), entry[1] >> SESSION_BITS)))
            begun = begun and entry[0] != current
            if entry[0] in worker.withdrawn:
                continue
            if killed and entry[0] == worker.kill_target and worker.kill_reason:
                in_flight.fail(entry[0], entry[1], Status.FAILED, worker.kill_reason)
            elif entry[0] == (worker.charged_run if killed else current):
                in_flight.fail(entry[0], entry[1], Status.LOST, describe(self._death(worker, entry, event)))
            else:
                rest.append(entry)
        worker.datagrams.clear()
        worker.withdrawn.clear()
        in_flight.waiting.requeue(rest)
        if not killed:
            at = "".join(f" while it ran task {entry[1]:x}" for entry in entries if entry[0] == current)
            text = f"{worker.name} (process {worker.pid}) {event.reason}{at}"
            self._workers.deaths.append(text)
            in_flight.effects.append(Log(logging.WARNING, text))

    def _death(self, worker: WorkerRecord, entry: Entry, event: events.WorkerDied) -> WorkerDiedError:
        memory = f"; peak memory {event.peak_memory >> 20} MiB" if event.peak_memory else ""
        text = f"; last words:\n{event.text}" if event.text else ""
        return WorkerDiedError(
            f"{worker.name} (process {worker.pid} on {self._host}) {event.reason} while it ran the task, "
            f"attempt {entry[4]}{memory}{text}",
            host=self._host,
            worker=worker.name,
            pid=worker.pid,
            reason=event.reason,
            peak_memory=event.peak_memory,
            attempt=entry[4],
            output=event.text,
        )
