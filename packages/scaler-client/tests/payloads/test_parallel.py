"""Work in parts, by several threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import pytest

from scaler_client.payloads.parallel import run_parallel


@pytest.mark.parametrize("size", [0, 1, 9, 10, 19, 20, 21, 39, 40, 1000, 1001])
def test_parts_are_all_there_is_and_once(size: int) -> None:
    parts: list[tuple[int, int]] = []
    run_parallel(lambda start, stop: parts.append((start, stop)), size, 10)
    assert len(parts) == max(1, min(size // 10, os.cpu_count() or 1, 4))
    assert [at for start, stop in sorted(parts) for at in range(start, stop)] == list(range(size))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one CPU")
def test_parts_are_done_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)
    run_parallel(lambda start, stop: meeting.wait(), 20, 10)


@pytest.mark.parametrize("failing", [0, 10])
def test_what_a_part_raises_is_raised(failing: int) -> None:
    def work(start: int, stop: int) -> None:
        if start == failing:
            raise MemoryError(f"{start} to {stop}")

    with pytest.raises(MemoryError, match=f"{failing} to"):
        run_parallel(work, 20, 10)
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_at_the_end_of_the_interpreter_it_is_done_all_the_same() -> None:
    script = """
        import atexit
        from scaler_client.payloads.parallel import run_parallel

        atexit.register(lambda: run_parallel(lambda start, stop: start or print("done", flush=True), 1000, 10))
        import concurrent.futures.thread as threads
        threading_ends = threads._python_exit
        atexit.register(threading_ends)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, encoding="utf-8", timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
