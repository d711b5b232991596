"""Tasks that submit tasks: Fibonacci numbers, 8 levels deep, on a single worker."""

from __future__ import annotations

from scaler import Client, SchedulerClusterCombo


def fibonacci(client: Client, n: int) -> int:
    """A call waits for two others; while it waits it occupies no worker, so one worker is enough."""
    if n < 2:
        return n
    a = client.submit(fibonacci, client, n - 1)
    b = client.submit(fibonacci, client, n - 2)
    return a.result() + b.result()


def total_of_squares(count: int) -> int:
    """Inside a task a client needs no address: it is the cluster that runs the task."""
    with Client() as client:
        return sum(client.map(pow, range(count), [2] * count))


def main() -> None:
    """Hand the client over as an argument, or make one inside the task."""
    with (
        SchedulerClusterCombo(n_workers=1, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        print(client.submit(fibonacci, client, 8).result())
        print(client.submit(total_of_squares, 5).result())


if __name__ == "__main__":
    main()
