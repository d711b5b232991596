"""How the programs of this package begin."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SHOW = """
import signal, sys
from scaler_ui.programs import run
run("program", lambda: print([each.name for each in signal.pthread_sigmask(signal.SIG_BLOCK, ())]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are not blocked there")
def test_signals_that_the_parent_has_blocked_are_heard() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        done = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, encoding="utf-8", timeout=60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (done.stdout, done.stderr) == ("[]\n", "")
