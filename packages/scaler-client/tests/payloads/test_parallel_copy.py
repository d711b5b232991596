"""Work in parts, by several threads; and the copies that are made so."""

from __future__ import annotations

import mmap
import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from scaler_client.payloads import parallel_copy
from scaler_client.payloads.parallel_copy import copied, run_parallel
from scaler_client.payloads.pickles import COPIED_BYTES, dump, load


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

    before = threading.enumerate()
    with pytest.raises(MemoryError, match=f"{failing} to"):
        run_parallel(work, 20, 10)
    assert set(threading.enumerate()) <= set(before)


def test_at_the_end_of_the_interpreter_it_is_done_all_the_same() -> None:
    script = """
        import atexit
        from scaler_client.payloads.parallel_copy import run_parallel

        atexit.register(lambda: run_parallel(lambda start, stop: start or print("done", flush=True), 1000, 10))
        import concurrent.futures.thread as threads
        threading_ends = threads._python_exit
        atexit.register(threading_ends)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, encoding="utf-8", timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.mark.parametrize(
    "size", [COPIED_BYTES - 1, COPIED_BYTES, COPIED_BYTES + mmap.PAGESIZE - 40, 3 * COPIED_BYTES + 1]
)
@pytest.mark.parametrize("begin", [0, 1, 64])
def test_bytes_copied_by_several_threads_are_the_same(size: int, begin: int) -> None:
    source = (bytes(range(251)) * (size // 251 + 2))[begin : begin + size]
    made = copied(memoryview(source))
    assert type(made) is bytes and made == source and hash(made) == hash(source)
    assert load(bytes(dump(made))) == source and load(bytes(dump([made]))) == [source]


def test_bytes_are_copied_where_the_system_gives_no_memory_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_copy, "_MADV_POPULATE_WRITE", 999_999)  # nobody knows that
    source = random.Random(1).randbytes(COPIED_BYTES + 1)
    assert copied(memoryview(source)) == source


@pytest.mark.skipif(sys.platform != "linux", reason="what is in memory is read from /proc")
@pytest.mark.parametrize("access", [mmap.ACCESS_READ, mmap.ACCESS_COPY])
def test_what_is_copied_out_of_a_file_does_not_stay_in_memory(access: int, tmp_path: Path) -> None:
    source = random.Random(1).randbytes(16 * COPIED_BYTES)
    (tmp_path / "object").write_bytes(source)
    with (tmp_path / "object").open("rb") as file, mmap.mmap(file.fileno(), 0, access=access) as mapping:
        if access == mmap.ACCESS_COPY:
            mapping[100:104] = b"mine"  # what is in no file is not given up
        with memoryview(mapping)[64:] as view:
            for _ in range(2):
                assert copied(view) == source[64:100] + mapping[100:104] + source[104:]
        in_memory = resident_bytes(str(tmp_path / "object"))
        # Who reads a byte of a huge page may be given all of it.
        assert in_memory == len(source) if access == mmap.ACCESS_COPY else in_memory <= len(source) // 4
        assert mapping[-100:] == source[-100:]


def resident_bytes(path: str) -> int:
    """What this process has in memory of a file that it maps."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    assert any(line.endswith(path) for line in lines)
    return 1024 * int(next(line for line in lines if line.startswith("Rss:")).split()[1])
