"""Calls that depend on each other, written down as a graph."""

from __future__ import annotations

from scaler import Client, SchedulerClusterCombo


def inc(i: int) -> int:
    """One more."""
    return i + 1


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def minus(a: int, b: int) -> int:
    """The difference."""
    return a - b


# A tuple that starts with a function is a call, and its other items name the nodes it takes. All else is data: a
# function that stands alone, too.
GRAPH = {
    "a": 2,
    "b": 2,
    "c": (inc, "a"),
    "d": (add, "a", "b"),
    "e": (minus, "d", "c"),
    "f": add,
}


def main() -> None:
    """Ask for some keys and wait, or take futures."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        print(client.get(GRAPH, keys=["e"]))
        found = client.get(GRAPH, keys=["a", "b", "c", "d", "e", "f"])
        print(found["f"] is add, {key: found[key] for key in "abcde"})
        futures = client.get(GRAPH, keys=["d", "e"], block=False)
        print({key: future.result() for key, future in futures.items()})


if __name__ == "__main__":
    main()
