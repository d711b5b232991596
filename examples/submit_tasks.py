"""Submit calls and collect their results."""

from __future__ import annotations

import math

from scaler import Client, SchedulerClusterCombo


def greet(name: str, *, greeting: str = "Hello") -> str:
    """Runs on a worker; keywords reach it like anywhere else."""
    return f"{greeting}, {name}!"


def main() -> None:
    """One call, a call with keywords, a hundred calls, and a call that Python refuses."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        print(client.submit(math.sqrt, 16).result())
        print(client.submit(greet, "world", greeting="Good morning").result())

        # Submitting does not wait: all hundred are under way before the first result is asked for.
        futures = [client.submit(math.sqrt, i) for i in range(100)]
        print(f"{sum(future.result() for future in futures):.2f}")

        # A wrong call is an error here and now, not later on some worker.
        try:
            client.submit(greet)
        except TypeError as error:
            print(error)


if __name__ == "__main__":
    main()
