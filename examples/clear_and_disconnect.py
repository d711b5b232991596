"""Leave: drop all work of a client, disconnect it, shut a scheduler down."""

from __future__ import annotations

import time

from scaler import Client, SchedulerClusterCombo


def main() -> None:
    """From the smallest step to the biggest."""
    with SchedulerClusterCombo(n_workers=1, protected=False, logging_level="WARNING") as cluster:
        client = Client(address=cluster.get_address())

        # clear(): what is under way is cancelled, sent objects are forgotten, the client goes on.
        sleeping = client.submit(time.sleep, 60)
        client.clear()
        print("cancelled:", sleeping.cancelled())
        print("still there:", client.submit(abs, -1).result())

        # disconnect(): the same, and the client is done for. The cluster and its other clients are not touched.
        client.disconnect()
        try:
            client.submit(abs, -1)
        except RuntimeError as error:
            print(f"{type(error).__name__}: {error}")

        # shutdown(): the scheduler and all its workers end, for everybody. A protected scheduler refuses with a
        # ValueError, and schedulers are protected unless they are told otherwise.
        client = Client(address=cluster.get_address())
        client.shutdown()
        print("shut down")


if __name__ == "__main__":
    main()
