"""What a run has cost: time, CPU, memory, where, and at which attempt."""

from __future__ import annotations

import time

from scaler import Client, SchedulerClusterCombo


def work(cpu_seconds: float, sleep_seconds: float) -> int:
    """Compute for a while, and sleep for a while."""
    end = time.thread_time() + cpu_seconds
    rounds = 0
    while time.thread_time() < end:
        rounds += 1
    time.sleep(sleep_seconds)
    return rounds


def main() -> None:
    """Profiles are always taken; `profiling=True` is accepted, for programs that ask for them."""
    with (
        SchedulerClusterCombo(n_workers=1, logging_level="WARNING") as cluster,
        Client(address=cluster.get_address()) as client,
    ):
        future = client.submit(work, 0.1, 0.1, profiling=True)
        future.result()
        info = future.profiling_info()
        print(f"took {info.duration_s:.1f} s ({info.duration_us:,} us), of which {info.cpu_time_s:.1f} s of CPU")
        print(f"at most {info.peak_memory / 1e6:,.0f} MB of memory")
        print(f"attempt {info.attempt} on {info.worker}")


if __name__ == "__main__":
    main()
