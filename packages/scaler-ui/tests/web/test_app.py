"""The program that serves pages returns the memory of freed columns to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
