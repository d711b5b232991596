"""Results above what always travels by message: `python -m support.long_results ADDRESS FILE` is a client of many."""

from __future__ import annotations

import sys

from scaler import Client
from support.gates import SECONDS
from support.tasks import note

SIZE = 50_000
COUNT = 1500


def long(path: str, number: int) -> bytes:
    """Say in a file that it has run, and give so many bytes that begin with the number."""
    note(path, str(number))
    return number.to_bytes(8, "big") + bytes(SIZE)


def main() -> None:
    """Submit all, say so, and read the results, the first of which comes alone."""
    address, path = sys.argv[1:]
    with Client(address, insecure=True) as client:
        assert len(client.submit(long, path, COUNT).result(SECONDS)) == SIZE + 8
        futures = [client.submit(long, path, number) for number in range(COUNT)]
        assert len(futures[COUNT // 8].result(SECONDS)) == SIZE + 8  # all were sent with, or soon after, this one
        print("submitted", flush=True)
        for number, future in enumerate(futures):
            assert future.result(4 * SECONDS) == number.to_bytes(8, "big") + bytes(SIZE)
        print("right", flush=True)


if __name__ == "__main__":
    main()
