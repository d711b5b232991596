"""A program that begins work in a named session and waits, until it is killed: ADDRESS SESSION RUNS_FILE KIND."""

from __future__ import annotations

import os
import sys
import time

from scaler import Client

CALLS = 2000
BIG = 100_000
"""Bytes of every hundredth result and argument."""


def work(runs: str, number: int, padding: bytes = b"") -> int | bytes:
    """Note the run; every hundredth result is big."""
    with open(runs, "a", encoding="ascii") as noted:
        noted.write(f"{number}\n")
    time.sleep(0.001)
    return expected(number)


def expected(number: int) -> int | bytes:
    """What `work` returns."""
    return bytes([number % 256]) * BIG if number % 100 == 0 else number


def join(runs: str, *numbers: int) -> int:
    """Note the run; the sum of the inputs."""
    time.sleep(0.2)
    work(runs, sum(numbers))
    return sum(numbers)


def graph(runs: str) -> dict[str, object]:
    """A tree of sums: 16 leaves, 8, 4, 2, 1."""
    nodes: dict[str, object] = {f"16-{at}": (join, "runs", 1000 + at) for at in range(16)}
    for width in (8, 4, 2, 1):
        for at in range(width):
            nodes[f"{width}-{at}"] = (join, "runs", f"{2 * width}-{2 * at}", f"{2 * width}-{2 * at + 1}")
    return {"runs": runs, **nodes}


def main() -> None:
    """Begin, say so, and wait."""
    address, session, runs, kind = sys.argv[1:]
    client = Client(address, session=session)
    if kind == "map":
        padding = os.urandom(BIG)
        client.session.publish("first", client.submit(work, runs, -1, padding))
        print("begun", flush=True)
        client.map(work, [runs] * CALLS, range(CALLS))
    else:
        nodes = client.get(graph(runs), ["1-0", "2-1"], block=False)
        client.session.publish("root", nodes["1-0"])
        print("begun", flush=True)
        nodes["1-0"].result()


if __name__ == "__main__":
    main()
