"""Run one case with one peer and print one JSON line: `python bench/case.py --peer pool --case latency --workers 2`.

The line is all that goes to standard output: what engines and their processes print goes to standard error.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from types import FrameType
from typing import Any, NoReturn

import cases
from ending import adopt_orphans, end_descendants

STOP_SECONDS = 20.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)
HURRIED_STOP_SECONDS = 3.0


def _parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Run one benchmark case with one engine and print one JSON line.")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--case", required=True, choices=sorted(cases.CASES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def _only_json_to_stdout() -> int:
    """Send what this and later processes print to standard error; returns the real one, which none inherits."""
    real = os.dup(1)
    os.dup2(2, 1)
    return real


def _exit_on_signals() -> None:
    """SIGTERM and SIGINT log where this process stands and end it; in processes forked from it they act as usual."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        faulthandler.dump_traceback()
        raise SystemExit(128 + number)

    for number in SIGNALS:
        signal.signal(number, on_signal)


def _forget_signals() -> None:
    """A handler in Python would let forked workers miss the SIGTERM that ends them when it comes just before a lock."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _versions(distribution: str | None) -> dict[str, str]:
    """What ran; imported late because `startup` measures imports."""
    import platform
    from importlib import metadata

    versions = {"python": platform.python_version()}
    if distribution is not None:
        versions[distribution] = metadata.version(distribution)
    return versions


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start the peer, run the case, stop the peer; the peer is stopped whatever happened."""
    case = cases.CASES[arguments.case]
    n_workers = case.n_workers or arguments.workers
    begin = time.perf_counter()
    import peers

    peer = peers.load(arguments.peer)
    imported = time.perf_counter() - begin
    if case.needs is not None and case.needs not in peer.abilities:
        return {"status": "unsupported", "error": f"{arguments.peer} has no {case.needs}"}
    report: dict[str, Any] = {"status": "ok", "workers": n_workers}
    patience = STOP_SECONDS
    try:
        if not case.starts_itself:
            peer.start(n_workers, dict.fromkeys(case.capabilities, -1) or None)
            _exit_on_signals()  # an engine may have put handlers of its own in their place
        figures = case.run(peer, n_workers, arguments.quick)
        if case.starts_itself:
            figures["import_seconds"] = imported
            figures["seconds"] = imported + figures["start_seconds"] + figures["first_result_seconds"]
        report["figures"] = figures
        report["versions"] = _versions(peer.distribution)
    except BaseException as error:
        adopt_orphans()  # so that `_end` finds processes whose parents stop before them
        patience = HURRIED_STOP_SECONDS if isinstance(error, SystemExit) else STOP_SECONDS
        raise
    finally:
        report["stop_seconds"] = _stop(peer, patience)
    return report


def _stop(peer: Any, patience: float) -> float | None:
    """Stop the peer within a time limit; None where it did not manage."""

    def on_alarm(number: int, frame: FrameType | None) -> None:
        # No OSError: multiprocessing swallows those while it waits.
        raise RuntimeError(f"the peer did not stop within {patience} s")

    signal.signal(signal.SIGALRM, on_alarm)
    # Again and again, as one step of stopping after the other may hang.
    signal.setitimer(signal.ITIMER_REAL, patience, 2.0)
    begin = time.perf_counter()
    try:
        peer.stop()
        return time.perf_counter() - begin
    except Exception:  # the figures are taken: how an engine fails to stop must not lose them
        traceback.print_exc()
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end(code: int, by_force: bool) -> NoReturn:
    """End this process, at once, as an engine's threads or exit handlers may hang; by force its descendants too."""
    if by_force:
        end_descendants(0.5, with_trackers=False)
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Run the case and print its line, a failure too."""
    arguments = _parse()
    real = _only_json_to_stdout()
    _exit_on_signals()
    os.register_at_fork(after_in_child=_forget_signals)
    try:
        report = _run(arguments)
    except SystemExit as stop:
        _end(int(stop.code or 0), by_force=True)
    except Exception as error:
        traceback.print_exc()
        report = {"status": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
    line = json.dumps({"peer": arguments.peer, "case": arguments.case, **report})
    os.write(real, line.encode() + b"\n")
    failed = report["status"] == "failed"
    _end(int(failed), by_force=failed or report.get("stop_seconds", 0.0) is None)


if __name__ == "__main__":
    main()
