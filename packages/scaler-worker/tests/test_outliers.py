"""Workers that fail unlike others are taken out; those that fail as others do are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scaler_protocol.messages import Group, Status
from scaler_worker.channel import RunsEnded
from scaler_worker.fleet import Fleet
from scaler_worker.flights import Flights
from scaler_worker.functions import FunctionTable
from scaler_worker.outcomes import Outbox
from scaler_worker.outliers import KINDS_LIMIT, STREAK, Outliers
from scaler_worker.records import Datagram, Entry, FunctionKind, Lane

TASK = 7 << 32


class Bench:
    """Workers of one agent, whose runs end as a test says."""

    def __init__(self, workers: int = 3) -> None:
        self.fleet = Fleet(workers, ())
        self.flights = Flights(self.fleet, FunctionTable(0.0), Outbox("agent"))
        self.outliers = Outliers(self.fleet, self.flights)
        self.fleet.balance(0, 0.0)
        for worker in self.fleet:
            self.fleet.ready(worker, 100 + worker.number, 0.0)
        self.run = 0

    def end(self, number: int, kind: FunctionKind, *statuses: int) -> bool:
        """Runs of a function end on a worker in one batch; whether that is being replaced then."""
        worker = self.fleet.workers[number]
        runs = range(self.run + 1, self.run + 1 + len(statuses))
        self.run += len(statuses)
        lane = Lane(Group(kind.function), kind, 0.0)
        entries: list[Entry] = [(run, TASK + run, lane, b"", 1, 0) for run in runs]
        worker.sequence += 1
        worker.flight.append(Datagram(worker.sequence, entries, 1.0))
        self.fleet.place(worker, 0.0)
        self.outliers.ended(worker, ended(list(runs), statuses), 1.0)
        return worker.number in self.replaced()

    def replaced(self) -> list[int]:
        return [worker.number for worker in self.fleet if f"{worker.name} (process" in " ".join(self.fleet.deaths)]


def ended(runs: list[int], statuses: Sequence[int]) -> RunsEnded:
    count = len(runs)
    return RunsEnded(runs, list(statuses), [5] * count, [b""] * count, [b""] * count, [])


@pytest.fixture
def kind() -> FunctionKind:
    return FunctionKind(1, Group(b"f"))


BAD, GOOD = [Status.RAISED] * STREAK, [Status.VALUE] * STREAK


def test_a_worker_that_fails_unlike_others_is_replaced_and_said(kind: FunctionKind) -> None:
    bench = Bench()
    assert not bench.end(0, kind, *BAD)
    assert not bench.end(1, kind, *GOOD[1:])
    assert not bench.end(0, kind, Status.RAISED)
    assert not bench.end(2, kind, Status.VALUE)
    assert bench.end(0, kind, Status.FAILED)
    assert bench.replaced() == [0]
    assert "its last 8 runs of a function failed, while those on other workers succeeded" in bench.fleet.deaths[0]


def test_a_function_that_fails_on_every_worker_replaces_none(kind: FunctionKind) -> None:
    bench = Bench()
    for _ in range(5):
        assert not any([bench.end(number, kind, *BAD) for number in range(3)])


def test_a_function_that_fails_now_and_then_replaces_none(kind: FunctionKind) -> None:
    bench = Bench()
    for _ in range(5):
        assert not bench.end(0, kind, *BAD)
        assert not bench.end(1, kind, Status.RAISED, Status.VALUE, *GOOD)


def test_other_functions_do_not_count(kind: FunctionKind) -> None:
    bench = Bench()
    other = FunctionKind(2, Group(b"g"))
    assert not bench.end(0, kind, *BAD)
    assert not bench.end(1, other, *GOOD)
    assert not bench.end(0, kind, *BAD)


def test_a_successor_begins_anew_and_little_is_kept(kind: FunctionKind) -> None:
    bench = Bench()
    bench.end(0, kind, *BAD)
    bench.outliers.gone(0)
    assert not bench.end(1, kind, *GOOD)
    assert not bench.end(0, kind, Status.RAISED)
    for number in range(2 * KINDS_LIMIT):
        bench.end(0, FunctionKind(10 + number, Group(b"h")), Status.RAISED)
    assert len(bench.outliers._streaks) == KINDS_LIMIT
