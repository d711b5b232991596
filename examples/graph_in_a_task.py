"""A graph that only a running task can know, built and run inside that task."""

from __future__ import annotations

from scaler import Client, SchedulerClusterCombo


def minus(a: int, b: int) -> int:
    """The difference."""
    return a - b


def fibonacci(client: Client, n: int) -> int:
    """The two smaller arguments come from a graph (subtracting here would do), the two smaller results from tasks."""
    if n < 2:
        return n
    graph = {"n": n, "one": 1, "two": 2, "n - 1": (minus, "n", "one"), "n - 2": (minus, "n", "two")}
    smaller = client.get(graph, keys=["n - 1", "n - 2"])
    futures = [client.submit(fibonacci, client, value) for value in smaller.values()]
    return sum(future.result() for future in futures)


def main() -> None:
    """The eighth Fibonacci number."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        print(client.submit(fibonacci, client, 8).result())


if __name__ == "__main__":
    main()
