"""Compare Scaler with other engines on this machine: `python bench/run.py --help`, and docs/benchmarks.md.

For each case the peers take turns, repeat by repeat, so that a machine that is busy for a while is busy for
all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import report
from cases import ALIASES, CASES
from ending import adopt_orphans, end_descendants
from environments import PINS, EnvironmentMissingError, python_for
from launch import run_case
from peers import NAMES


def _choose(text: str, known: dict[str, tuple[str, ...]]) -> list[str]:
    """The names of a comma-separated list, in the order of the known ones, with group names expanded."""
    wanted: set[str] = set()
    for word in text.split(","):
        if word.strip() not in known:
            raise argparse.ArgumentTypeError(f"{word.strip()!r} is none of {', '.join(known)}")
        wanted |= set(known[word.strip()])
    return [name for name in known if name in wanted]


def _cases(text: str) -> list[str]:
    """Names of cases."""
    return _choose(text, {**{name: (name,) for name in CASES}, **ALIASES})


def _peers(text: str) -> list[str]:
    """Names of peers."""
    return _choose(text, {name: (name,) for name in NAMES})


def _parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare Scaler with other engines on this machine.")
    parser.add_argument("--cases", type=_cases, default=list(CASES), help=f"of {', '.join([*CASES, *ALIASES])}")
    parser.add_argument("--peers", type=_peers, default=list(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--repeats", type=int, help="runs of each case and peer (3; with --quick 1)")
    parser.add_argument("--workers", type=int, default=2, help="workers, where a case has no number of its own (2)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, to try that all runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single run there")
    parser.add_argument("--uv", help="the uv that makes the environments (found under .tools)")
    arguments = parser.parse_args()
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 3)
    return arguments


def _interpreters(peers: list[str], uv: str | None) -> dict[str, Path | str]:
    """The interpreter of each peer, or why there is none."""
    found: dict[str, Path | str] = {}
    for peer in peers:
        try:
            found[peer] = python_for(peer, uv)
        except EnvironmentMissingError as error:
            found[peer] = str(error)
    return found


def _one(arguments: argparse.Namespace, python: Path | str, peer: str, case: str, repeat: int) -> report.Run:
    """One run, with the load of the machine when it began."""
    load = os.getloadavg()[0]
    run: report.Run
    if isinstance(python, str):
        run = {"status": "failed", "error": python, "peer": peer, "case": case, "seconds": 0.0}
    else:
        run = run_case(python, peer, case, arguments.workers, arguments.quick, CASES[case].limit_seconds)
    figures = {name: run["figures"][name] for name in CASES[case].main} if run["status"] == "ok" else run["error"]
    line = f"{case:15} {peer:9} {repeat + 1}/{arguments.repeats} {run['seconds']:6.1f} s  {run['status']:11} {figures}"
    print(line, file=sys.stderr, flush=True)
    return {**run, "repeat": repeat, "load_before": load}


def _all(arguments: argparse.Namespace, runs: list[report.Run]) -> None:
    """Case by case, repeat by repeat, peer by peer; a peer that cannot do a case is asked once."""
    pythons = _interpreters(arguments.peers, arguments.uv)
    for case in arguments.cases:
        skipped: set[str] = set()
        for repeat in range(arguments.repeats):
            for peer in arguments.peers:
                if peer in skipped:
                    continue
                run = _one(arguments, pythons[peer], peer, case, repeat)
                runs.append(run)
                if run["status"] == "unsupported" or isinstance(pythons[peer], str):
                    skipped.add(peer)


def _document(
    arguments: argparse.Namespace, runs: list[report.Run], machine: dict[str, Any], began: str
) -> dict[str, Any]:
    """The JSON document: all runs, the machine and the versions."""
    versions: dict[str, dict[str, str]] = {}
    for run in runs:
        versions.setdefault(run["peer"], {}).update(run.get("versions", {}))
    return {
        "began": began,
        "ended": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arguments": {name: getattr(arguments, name) for name in ("cases", "peers", "repeats", "workers", "quick")},
        "machine": machine,
        "pins": PINS,
        "versions": versions,
        "medians": report.medians(runs),
        "runs": runs,
    }


def _on_signal(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends as Ctrl-C does, and both where a shell had them ignored: all stops, what was measured shows."""
    raise KeyboardInterrupt


def main() -> int:
    """Run, print the table, write the JSON; what was measured is shown after Ctrl-C too."""
    arguments = _parse()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _on_signal)
    adopt_orphans()
    machine = report.machine()
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    runs: list[report.Run] = []
    interrupted = False
    start = time.monotonic()
    try:
        _all(arguments, runs)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        # A third signal must not keep what is left alive: the first asks a case to stop, the second ends it at once.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        end_descendants(0.0)
    document = _document(arguments, runs, machine, began)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load_at_start']:.2f} at start; {began}")
    for peer, versions in document["versions"].items():
        print(f"  {peer:9} {', '.join(f'{name} {version}' for name, version in versions.items())}")
    print(report.table(runs, arguments.peers))
    loads = [run["load_before"] for run in runs] or [machine["load_at_start"]]
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}"
    print(f"\n{len(runs)} runs in {time.monotonic() - start:.0f} s, {busy}{', interrupted' if interrupted else ''}")
    if interrupted:
        return 130
    return 1 if any(run["status"] in ("failed", "timeout") for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
