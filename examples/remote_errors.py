"""What goes wrong in a task arrives here: the exception itself, with the traceback from the worker."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback

from scaler import Client, SchedulerClusterCombo


class OrderError(Exception):
    """An exception of our own keeps its type and its attributes."""

    def __init__(self, order: int) -> None:
        super().__init__(f"order {order} is not good")
        self.order = order


def check(order: int) -> int:
    """Raises for odd orders."""
    if order % 2:
        raise OrderError(order)
    return order


def main() -> None:
    """An exception, a process that ends, a result that cannot be serialized; the cluster survives them all."""
    with (
        SchedulerClusterCombo(n_workers=2, logging_level="ERROR") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        try:
            client.submit(check, 7).result()
        except OrderError as error:
            print("order", error.order)
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            print("raised in", frames[-1])

        # exception() gives it without raising.
        print(type(client.submit(sys.exit, 3).exception()).__name__)
        print(type(client.submit(threading.Lock).exception()).__name__)

        # A worker that is killed is replaced and its task repeated, three times at most.
        died = client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL)).exception()
        print(type(died).__name__, "SIGKILL" in str(died))

        print(client.map(check, [2, 4]))


if __name__ == "__main__":
    main()
