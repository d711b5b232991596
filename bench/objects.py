"""Object storage by itself: one process puts, another one gets; on the server's host, and as if on another one.

`.venv/bin/python bench/objects.py --megabytes 100` prints medians, and how many times as fast the first way is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from scaler_io.objects import connection_thread
from scaler_io.objects.connection import ObjectConnection
from scaler_protocol.addresses import Address
from scaler_protocol.objects import Reference


def _median(action: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _connect(address: str, far: bool) -> ObjectConnection:
    if far:
        connection_thread.read_token = lambda directory: b""
    connection = ObjectConnection(Address.parse(address), session=1)
    connection.open()
    return connection


def read(address: str, far: bool, rounds: int) -> None:
    """Get what references on stdin stand for; print the seconds of a get, and of one with a copy of all bytes."""
    connection = _connect(address, far)
    for line in sys.stdin:
        reference = Reference.unpack(bytes.fromhex(line))
        got = _median(lambda: connection.get(reference), rounds)  # noqa: B023 - called here
        copied = _median(lambda: bytearray(connection.get(reference)), rounds)  # noqa: B023 - called here
        print(got, copied, flush=True)
    connection.close()


def write(address: str, far: bool, size: int, rounds: int) -> dict[str, float]:
    """Put here, get in another process; the seconds of each."""
    connection, content = _connect(address, far), os.urandom(size)

    def put() -> Reference:
        reference = connection.put(content)
        connection.delete([reference])
        return reference

    first = _median(put, 1)
    again = _median(put, rounds)
    command = [sys.executable, __file__, "--reader", address, "--rounds", str(rounds), *["--far"] * far]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdin is not None and reader.stdout is not None
        reader.stdin.write(connection.put(content).pack().hex() + "\n")
        reader.stdin.flush()
        got, copied = map(float, reader.stdout.readline().split())
        reader.stdin.close()
    connection.close()
    return {"first put": first, "put": again, "get": got, "get and copy": copied}


def main() -> None:
    """Both ways in turn, with one server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--far", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        read(options.reader, options.far, options.rounds)
        return
    source, ready = os.pipe()
    command = [
        sys.executable,
        "-m",
        "scaler_storage",
        "--insecure",
        "tcp://127.0.0.1:0",
        "-lp",
        "/dev/null",
        "--ready-fd",
        str(ready),
    ]
    with subprocess.Popen(command, pass_fds=(ready,)) as server:
        os.close(ready)
        with open(source, encoding="utf-8") as file:
            address = file.read().strip()
        try:
            size = options.megabytes * 1_000_000
            near, far = (write(address, way, size, options.rounds) for way in (False, True))
        finally:
            server.terminate()
    print(f"{options.megabytes} MB, medians of {options.rounds}")
    for name in near:
        rates = [options.megabytes / seconds[name] for seconds in (near, far)]
        print(f"{name:>14} {rates[0]:>12,.0f} MB/s {rates[1]:>8,.0f} MB/s {rates[0] / rates[1]:>9.1f} times")


if __name__ == "__main__":
    main()
