"""The client on Windows, under Wine, on a cluster of this host. `make windows` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from scaler_io.security.key_files import make_keys
from scaler_io.transport.curve import new_pair
from support.documents import ROOT
from support.faults import Services

PYTHON = os.environ.get("SCALER_WINDOWS_PYTHON", "")
PROGRAM = ROOT / "tests" / "support" / "windows_client.py"
SOURCES = [f"Z:{ROOT}/packages/scaler-{name}/src" for name in ("protocol", "io", "client")]
"""Wine has the files of this host on drive Z."""
RUN = f"import runpy, sys; sys.path[:0] = {SOURCES}; runpy.run_path('Z:{PROGRAM}', run_name='__main__')"

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="SCALER_WINDOWS_PYTHON names no python.exe"),
    pytest.mark.timeout(300),
]


def test_a_client_on_windows(tmp_path: Path) -> None:
    wine = shutil.which("wine")
    assert wine is not None, "wine is not installed"
    keys = tmp_path / "keys"
    make_keys(keys, new_pair)
    environment = {"WINEDEBUG": "-all", **os.environ}
    with Services(tmp_path, "--keys", str(keys)) as services:
        services.add_agent(2, "--keys", str(keys))
        words = [wine, PYTHON, "-c", RUN, services.address, f"Z:{keys}"]
        with subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as client:
            assert client.stdout is not None
            said = ""
            for line in client.stdout:
                said += line
                if line.startswith("results come in"):
                    services.scheduler.kill()
                    services.start_scheduler()
        assert client.returncode == 0 and "0 wrong on win32" in said, said
