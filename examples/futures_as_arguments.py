"""Futures as arguments of other calls: results go from worker to worker, and the client does not wait for them."""

from __future__ import annotations

from concurrent.futures import CancelledError

from scaler import Client, SchedulerClusterCombo


def load(day: int) -> list[int]:
    """Something to start with."""
    return [day, day + 1, day + 2]


def total(values: list[int]) -> int:
    """Gets the list, not the future."""
    return sum(values)


def report(totals: dict[str, int], title: str) -> str:
    """Gets a dictionary whose values were futures."""
    return f"{title}: {', '.join(f'{name} {value}' for name, value in totals.items())}"


def divide(a: int, b: int) -> float:
    """Fails for b = 0."""
    return a / b


def main() -> None:
    """A pipeline, and what becomes of calls whose argument fails or is cancelled."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        totals = {f"day {day}": client.submit(total, client.submit(load, day)) for day in (1, 2, 3)}
        print(client.submit(report, totals, title="totals").result())

        # The failure of an argument is the failure of the call.
        quotient = client.submit(divide, 1, 0)
        print(repr(client.submit(round, quotient, 2).exception()))

        # So is its cancellation, unless the call has had its argument already.
        cancelled = client.submit(load, 1)
        dependent = client.submit(total, cancelled)
        cancelled.cancel()
        try:
            dependent.result()
        except CancelledError:
            print("cancelled with its argument")
        else:
            print("cancelled with its argument, had it not been so quick")


if __name__ == "__main__":
    main()
