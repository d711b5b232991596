"""A cluster on this machine, and clients that come and go."""

from __future__ import annotations

import os

from scaler import Client, SchedulerClusterCombo


def main() -> None:
    """Start, use, stop. No main guard is needed: services are programs of their own."""
    cluster = SchedulerClusterCombo(
        n_workers=3,
        per_worker_task_queue_size=100,
        logging_paths=("/dev/stderr",),
        logging_level="ERROR",
    )
    address = cluster.get_address()
    print(address.startswith("tcp://127.0.0.1:"))

    with Client(address=address) as first, Client(address=address) as second:
        print(first.submit(abs, -1).result() + second.submit(abs, -2).result())
        workers = {first.submit(os.getpid).result() for _ in range(100)}
        print(1 <= len(workers) <= 3, os.getpid() not in workers)

    # Also done at the end of a `with` block, when the object is collected, and when this program ends in any way.
    cluster.shutdown()
    cluster.shutdown()
    print("stopped")


if __name__ == "__main__":
    main()
