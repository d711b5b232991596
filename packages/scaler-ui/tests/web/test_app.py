"""The program that serves pages: the memory that it returns, the address that it prints, its options."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from scaler_ui.web.app import login_token
from support.browsers import process_of, read
from support.processes import PROGRAMS, Terminal, free_ports

_PROGRAM = """
from pathlib import Path
from scaler_ui.web.app import return_freed_memory

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

return_freed_memory()
before = resident_mib()
bytearray(b"x" * (24 << 20))  # glibc takes blocks up to the largest that was freed from the heap, unless told otherwise
columns = [b"x" * (8 << 20) for _ in range(4)]
above = bytearray(100_000)  # keeps the heap from shrinking
del columns
print(resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is that of Linux")
def test_freed_columns_are_returned_to_the_system() -> None:
    told = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)

    assert float(told.stdout) < 4


def test_the_address_that_is_printed_is_answered_at_once_also_at_a_free_port() -> None:
    monitor = f"tcp://127.0.0.1:{free_ports(1)}"
    # With this variable NiceGUI takes itself for a part of the test.
    with Terminal("env", "-u", "PYTEST_CURRENT_TEST", PROGRAMS / "scaler_ui", monitor, "--port", "0") as program:
        address = program.read_until("open").split()[-1]
        assert "Scaler" in read(address)
        assert program.end() == 0


def test_a_token_that_no_cookie_can_hold_is_refused() -> None:
    assert login_token("\U0001f511" * 250)

    with pytest.raises(ValueError, match="at most 250 characters, not 5,000"):
        login_token("x" * 5000)


def test_days_of_a_history_that_is_not_kept_are_refused() -> None:
    words = [str(PROGRAMS / "scaler_ui"), f"tcp://127.0.0.1:{free_ports(1)}", "--history-days", "9"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=60)

    assert told.returncode == 2
    assert told.stderr.startswith("scaler_ui: --history-days 9 needs --history FILE")


def test_pages_end_when_memory_is_exhausted_since_rows_may_be_half_written() -> None:
    monitor = free_ports(1)
    words = [f"tcp://127.0.0.1:{monitor}", "--port", str(free_ports(1)), "--insecure"]
    simulated = Path(__file__).parents[4] / "bench" / "simulated.py"
    with Terminal("env", "-u", "PYTEST_CURRENT_TEST", PROGRAMS / "scaler_ui", *words) as program:
        address = program.read_until("open").split()[-1]
        pid = process_of(address.rstrip("/"))
        size = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size + (32 << 20),) * 2)
        with Terminal(sys.executable, simulated, words[0]):
            program.read_until("memory is exhausted: it ends")
            assert program.process.wait(60) == 1
