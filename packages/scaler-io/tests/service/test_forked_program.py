"""A program in a fork of a process that has a log, a pipe and standard input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers run on Linux only")

SCRIPT = """
import json, os, signal, subprocess, sys
from scaler_io.service import logs
from scaler_io.service.forked_program import ForkedProgram

def main():
    words = open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")
    files = sorted({int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")})
    state = {"words": words, "argv": sys.argv, "session": os.getsid(0) == os.getpid(), "files": files}
    print(json.dumps({**state, "input": sys.stdin.read()}))
    return 3

def fails():
    raise OSError("no such luck")

def sleeps():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(1, b"ready\\n")
    signal.pause()

logs.configure([sys.argv[1]])
pipe = os.pipe()
codes = [ForkedProgram("demo", ["one", "two words"], each).wait() for each in (main, fails)]
sleeping = ForkedProgram("demo", [], sleeps)
try:
    sleeping.wait(0.01)
except subprocess.TimeoutExpired:
    codes.append(sleeping.poll())
sleeping.terminate()
codes.append(sleeping.wait())
sleeping.kill()  # does nothing more
logs.LOGGER.info("still written")
print(json.dumps(codes))
"""


def test_it_has_nothing_of_the_process_but_its_imports_and_ends_alone(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "log"), "room for the words of the program"]
    ran = subprocess.run(words, input="not for it", capture_output=True, text=True, check=True)
    state, *_, codes = [line for line in ran.stdout.splitlines() if line.startswith(("{", "["))]
    assert json.loads(state) == {
        "words": [sys.executable, "-m", "demo", "one", "two words"],
        "argv": ["demo", "one", "two words"],
        "session": True,
        "files": [0, 1, 2],
        "input": "",
    }
    assert json.loads(codes) == [3, 1, None, -15]
    assert ran.stderr.count("Traceback") == 1 and "OSError: no such luck" in ran.stderr
    assert "still written" in (tmp_path / "log").read_text()
