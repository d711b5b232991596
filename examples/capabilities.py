"""Run a task where workers offer what it needs."""

from __future__ import annotations

from concurrent.futures import wait

from scaler import Client, SchedulerClusterCombo


def main() -> None:
    """The workers offer two GPUs' worth of `gpu`, and `linux`, which is only there or not (-1)."""
    offered = {"gpu": 2, "linux": -1}
    with (
        SchedulerClusterCombo(n_workers=2, per_worker_capabilities=offered, logging_level="ERROR") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        future = client.submit_verbose(round, args=(3.15,), kwargs={}, capabilities={"gpu": -1})
        print(future.result())
        print(client.map(abs, [-1, -2], capabilities={"gpu": 2, "linux": -1}))

        # A number is compared with what one worker offers. Nobody offers three: the task waits for such a worker to
        # join, and the scheduler logs once what is missing.
        waiting = client.submit_verbose(abs, (-3,), {}, capabilities={"gpu": 3})
        print("done:", waiting in wait([waiting], timeout=0.2).done)
        waiting.cancel()


if __name__ == "__main__":
    main()
