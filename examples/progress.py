"""Take results as they come, and show how far the work is."""

from __future__ import annotations

import random
from concurrent.futures import as_completed

from scaler import Client, SchedulerClusterCombo


def points_in_circle(seed: int, points: int) -> int:
    """How many random points of the unit square lie in the quarter circle."""
    draw = random.Random(seed).random
    return sum(draw() ** 2 + draw() ** 2 <= 1 for _ in range(points))


def main() -> None:
    """Pi by Monte Carlo, with a line for every quarter of the batches."""
    batches, points = 40, 20_000
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        futures = [client.submit(points_in_circle, seed, points) for seed in range(batches)]
        inside = 0
        for done, future in enumerate(as_completed(futures), 1):
            inside += future.result()
            if done % (batches // 4) == 0:
                print(f"{100 * done // batches:3} %")
        print(f"pi is about {4 * inside / (batches * points):.2f}")


if __name__ == "__main__":
    main()
