"""How a call is to be run: again after an exception, not longer than so, before others."""

from __future__ import annotations

import time

from scaler import Client, SchedulerClusterCombo, current_task


def flaky() -> str:
    """Fails twice. `current_task` tells a task about itself."""
    task = current_task()
    attempt = task.attempt if task else 0
    if attempt < 3:
        raise ConnectionError(f"attempt {attempt}")
    return f"succeeded at attempt {attempt}"


def sleep_and_tell(seconds: float, name: str) -> tuple[float, str]:
    """When it was done, and who it is."""
    time.sleep(seconds)
    return time.monotonic(), name


def main() -> None:
    """Retries, a timeout, priorities; `map` and `starmap` take the same keywords."""
    with (
        SchedulerClusterCombo(n_workers=1, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        # An exception is not retried unless that is asked for. A worker that dies is another matter: its task runs
        # again, up to a limit.
        print(client.submit_verbose(flaky, args=(), kwargs={}, retries=2).result())

        # Counted from the start of the run: waiting in a queue costs nothing.
        try:
            client.submit_verbose(time.sleep, (60,), {}, task_timeout_seconds=0.2).result()
        except TimeoutError as error:
            print(f"{type(error).__name__}: {error}")

        # Higher goes first, as soon as the one worker is free.
        client.submit(time.sleep, 1)
        futures = [
            client.submit_verbose(sleep_and_tell, (0.01, f"priority {priority}"), {}, priority=priority)
            for priority in (-1, 0, 7)
        ]
        print([name for _, name in sorted(future.result() for future in futures)])


if __name__ == "__main__":
    main()
