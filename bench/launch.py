"""Start one case as its own process, and end every process that it leaves."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ending import end_descendants

HERE = Path(__file__).resolve().parent
GRACE_SECONDS = 8.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """In the case process, before it begins: SIGTERM when the runner dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _environment(folder: str) -> dict[str, str]:
    """The runner's environment, with a folder of the run's own for files, and with compiled modules kept."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")}
    return {**kept, "PYTHONPATH": str(HERE), "TMPDIR": folder}


def _wait(process: subprocess.Popen[bytes], limit_seconds: float) -> bool:
    """Whether the case ended by itself in time; if not it gets SIGTERM, and a while to stop its peer."""
    try:
        process.wait(limit_seconds)
        return True
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        return False


def _finish(process: subprocess.Popen[bytes]) -> list[str]:
    """End the case process if it still runs, then all that it left."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()
    return end_descendants(2.0)


def _read(
    output: Path, log: Path, process: subprocess.Popen[bytes], in_time: bool, limit_seconds: float
) -> dict[str, Any]:
    """The case's JSON line, or how it failed."""
    with suppress(ValueError, IndexError):
        report: dict[str, Any] = json.loads(output.read_text(encoding="utf-8").strip().splitlines()[-1])
        if report["status"] == "failed":
            report["log"] = _tail(log)
        return report
    if not in_time:
        return {"status": "timeout", "error": f"no result within {limit_seconds:g} s", "log": _tail(log)}
    return {"status": "failed", "error": f"exit code {process.returncode} without a result", "log": _tail(log)}


def _tail(log: Path) -> str:
    """The end of what was logged."""
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def run_case(python: Path, peer: str, case: str, n_workers: int, quick: bool, limit_seconds: float) -> dict[str, Any]:
    """One case with one peer in a fresh process; the report's status is ok, unsupported, failed or timeout."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    output, log = folder / "output", folder / "log"
    words = [str(python), str(HERE / "case.py"), "--peer", peer, "--case", case, "--workers", str(n_workers)]
    began = time.monotonic()
    try:
        with output.open("wb") as stdout, log.open("ab") as stderr:
            process = subprocess.Popen(
                [*words, *(["--quick"] if quick else [])],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=_environment(str(folder)),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        in_time = False
        try:
            in_time = _wait(process, limit_seconds)
        finally:
            left = _finish(process)
        report = _read(output, log, process, in_time, limit_seconds)
        return {**report, "peer": peer, "case": case, "seconds": time.monotonic() - began, "left_behind": left}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
