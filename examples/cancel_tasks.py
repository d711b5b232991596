"""Cancel queued and running calls: `cancel` never blocks, and what runs is really stopped."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait

from scaler import Client, SchedulerClusterCombo


def search(seconds: float) -> float:
    """Finds something after so long."""
    time.sleep(seconds)
    return seconds


def main() -> None:
    """Take the first answer and give up the others."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        futures = [client.submit(search, seconds) for seconds in (60, 0.1, 50, 40)]
        done, others = wait(futures, return_when=FIRST_COMPLETED)
        print([future.result() for future in done])
        print([future.cancel() for future in others], "within no time")

        try:
            futures[0].result()
        except CancelledError:
            print("cancelled")

        # The workers are free again.
        print(client.map(search, [0.01, 0.02]))

        # A future that is done cannot be cancelled.
        print(futures[1].cancel(), futures[1].result())


if __name__ == "__main__":
    main()
