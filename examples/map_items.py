"""Map a function over items: `map` and `starmap` mean what Python's builtins mean, and return lists."""

from __future__ import annotations

import math
import operator
import warnings

from scaler import Client, SchedulerClusterCombo


def main() -> None:
    """One iterable, two iterables, argument tuples, an item that fails."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        print(f"{sum(client.map(math.sqrt, range(100))):.2f}")
        print(client.map(operator.mul, [1, 2, 3], [10, 20, 30]))
        print(client.starmap(pow, [(2, 3), (3, 2)]))

        # Programs of earlier engines wrapped each argument in a tuple. They go on working, and are told.
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            print(f"{sum(client.map(math.sqrt, [(i,) for i in range(100)])):.2f}")
        print(told[0].category.__name__)

        # The first failure is raised here, what is still queued is cancelled, and the client goes on.
        try:
            client.map(math.sqrt, [4, 1, -1, 9])
        except ValueError as error:
            print(f"ValueError: {error}")
        print(client.map(math.sqrt, [4, 9]))


if __name__ == "__main__":
    main()
