"""The clients of a trial in this process: what they submit, and whether it ends as it should."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from scaler import Client
from support.chaos.kinds import (
    Allowance,
    Submit,
    Task,
    argument,
    cancelled,
    consumer,
    failure,
    graph,
    memory,
    nested,
    no_op,
    overtime,
    result,
    sleep,
    verdict,
)

MIXED: Sequence[tuple[int, Submit]] = (
    (30, no_op),
    (10, sleep),
    (8, result),
    (4, argument),
    (6, consumer),
    (3, failure),
    (1, overtime),
    (3, cancelled),
)
PLANS: dict[str, Sequence[tuple[int, Submit]]] = {
    "anonymous": MIXED,
    "named": MIXED,
    "graphs": ((1, graph),),
    "nested": ((20, nested), (1, memory)),
}
REFUSED_SECONDS = 20.0
"""How long all tasks that end may be refused."""


class Load(threading.Thread):
    """One client, which has `window` tasks under way until so many have ended."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Client],
        draw: random.Random,
        runs: Path,
        *,
        tasks: int,
        window: int,
        end_seconds: float,
        allowance: Callable[[], Allowance],
        dump: Callable[[], str],
    ) -> None:
        super().__init__(name=f"load of {name}")
        self.runs, self.problems, self.counts = runs, list[str](), Counter[str]()
        self.dumped = ""
        """What the scheduler said when the first problem was found, before this client left."""
        self._plan = [submit for weight, submit in PLANS[name] for _ in range(weight)]
        self._connect, self._draw, self._allowance, self._dump = connect, draw, allowance, dump
        self._tasks, self._window, self._end_seconds = tasks, window, end_seconds
        self._number = 0
        self.gives_up = threading.Event()

    def run(self) -> None:
        """Until all have ended, or one has not ended as it should."""
        try:
            with self._connect() as client:
                self._work(client)
                if self.problems:
                    self.dumped = self._dump()
                if self.name.endswith(" named"):
                    client.session.end()
        except Exception as error:
            self.problems.append(f"{type(error).__name__}: {error}")

    def _work(self, client: Client) -> None:
        pending: deque[Task] = deque()
        ended, refused = 0, 0.0
        while (pending or ended < self._tasks) and not self.gives_up.is_set():
            while len(pending) < min(self._window, self._tasks - ended):
                pending.extend(self._submit(client, pending))
            task = pending.popleft()
            wrong, again = verdict(task, self._allowance, self._end_seconds)
            if wrong:
                at = time.strftime("%H:%M:%S")
                self.problems.append(f"{at} task {task.future.task_id:x}, {task.kind} {task.number}: {wrong}")
                return
            refused = (refused or time.monotonic()) if again else 0.0
            if again and time.monotonic() - refused > REFUSED_SECONDS:
                self.problems.append(f"everything is refused: {task.future.exception(0)}")
                return
            if again:
                self.gives_up.wait(0.01)
            ended += not again
            self.counts["lost or refused" if again else task.kind] += 1

    def _submit(self, client: Client, pending: Sequence[Task]) -> list[Task]:
        self._number += 100
        earlier = [pending[at] for at in range(-min(5, len(pending)), 0)]
        return self._draw.choice(self._plan)(client, str(self.runs), self._number, self._draw, earlier)
