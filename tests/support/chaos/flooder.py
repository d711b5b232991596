"""A program that floods a cluster until its input ends: ADDRESS STORAGE KEYS RUNS SEED SESSION KINDS.

KEYS is `-` without keys, SESSION is `-` without a name, KINDS is `nested` or `flat`. The program ends with 0 if all its
tasks ended as they should.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from scaler import Client
from support.chaos.kinds import Allowance, Task, argument, consumer, graph, nested, no_op, result, verdict

WINDOW = 150
ANY = Allowance(deaths=1_000, storage_losses=1_000)
END_SECONDS = 120.0
KINDS: Sequence[Callable[..., list[Task]]] = (no_op, no_op, no_op, no_op, result, argument, consumer, graph)


def flood(
    client: Client, runs: str, draw: random.Random, kinds: Sequence[Callable[..., list[Task]]], stop: threading.Event
) -> None:
    """Have WINDOW tasks under way until `stop`, and all of them ended afterwards."""
    pending: deque[Task] = deque()
    number = 1 << 40
    while pending or not stop.is_set():
        while len(pending) < WINDOW and not stop.is_set():
            pending.extend(draw.choice(kinds)(client, runs, number, draw, list(pending)[-5:]))
            number += 100
        if pending:
            task = pending.popleft()
            wrong, _ = verdict(task, lambda: ANY, END_SECONDS)
            assert not wrong, f"task {task.future.task_id:x}, {task.kind}: {wrong}"


def _wait_for_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


def main() -> None:
    """Connect, say so, flood."""
    logging.basicConfig()
    address, storage, keys, runs, seed, session, which = sys.argv[1:]
    stop = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    security: dict[str, Any] = {"insecure": True} if keys == "-" else {"keys": keys}
    name = None if session == "-" else session
    with Client(address, object_storage_address=storage, session=name, **security) as client:
        print("flooding", flush=True)
        flood(client, runs, random.Random(seed), (*KINDS, nested) if which == "nested" else KINDS, stop)
        if name is not None:
            client.session.end()
    print("ended well", flush=True)


if __name__ == "__main__":
    main()
