"""Medians, the table, and a description of the machine."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable
from typing import Any

import probe
from cases import CASES

REFERENCES = ("pool", "ray")
Run = dict[str, Any]


def machine() -> dict[str, Any]:
    """The properties of the machine that figures depend on."""
    lines = probe.read_text("/proc/cpuinfo").splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / probe.MEGABYTE
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_megabytes": round(memory),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
    }


def _of(runs: Iterable[Run], case: str, peer: str) -> list[Run]:
    """The runs of one peer in one case."""
    return [run for run in runs if run["case"] == case and run["peer"] == peer]


def _median_of(values: list[Any]) -> Any:
    """The median of figures of any depth: numbers, and dicts of them; other things are left out."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        return statistics.median(numbers)
    dicts = [value for value in values if isinstance(value, dict)]
    names = dict.fromkeys(name for each in dicts for name in each)
    return {name: _median_of([each[name] for each in dicts if name in each]) for name in names}


def medians(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """For each case and peer the median of each figure over the runs that succeeded."""
    table: dict[str, dict[str, Any]] = {}
    for run in runs:
        case, peer = run["case"], run["peer"]
        good = [each["figures"] for each in _of(runs, case, peer) if each["status"] == "ok"]
        if good:
            table.setdefault(case, {})[peer] = _median_of(good)
    return table


def _number(value: float | None) -> str:
    """Three significant digits, thousands apart."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def _outcome(runs: list[Run], usual: int) -> str:
    """What is unusual about the runs of one peer, empty where all is well."""
    good = [run["figures"] for run in runs if run["status"] == "ok"]
    bad = [run for run in runs if run["status"] != "ok"]
    notes = []
    if bad:
        words = bad[0]["status"] if len(bad) == len(runs) else f"{len(bad)} of {len(runs)} {bad[0]['status']}"
        notes.append(f"{words}: {bad[0]['error']}"[:110])
    notes += [f"with {figures['tasks']:,} tasks" for figures in good if figures.get("tasks", usual) != usual][:1]
    left = sum(len(run.get("left_behind", ())) for run in runs)
    if left:
        notes.append(f"left {left} processes behind")
    short = [figures for figures in good if figures.get("drained", 0) < figures.get("queued", 0)]
    notes += [f"{figures['drained']:,} came back within {figures['drain_seconds']:.0f} s" for figures in short][:1]
    notes += [f"errors: {figures['errors']}" for figures in good if figures.get("errors")][:1]
    notes += [f"{figures['never_ended']} never ended" for figures in good if figures.get("never_ended")][:1]
    return "; ".join(notes)


def table(runs: list[Run], peers: list[str]) -> str:
    """For each case and figure a line per peer: the median, its ratio to Pool's and Ray's, the range of the runs."""
    middle = medians(runs)
    lines: list[str] = []
    for case in dict.fromkeys(run["case"] for run in runs):
        lines += [f"\n{case}"]
        ratios = "".join(f" {'/ ' + name:>8}" for name in REFERENCES)
        lines += [f"  {'peer':9} {'figure':26} {'median':>10}  {'unit':12}{ratios}   lowest..highest"]
        usual = max(
            (run["figures"].get("tasks", 0) for run in runs if run["case"] == case and "figures" in run), default=0
        )
        for peer in peers:
            mine = _of(runs, case, peer)
            if not mine:
                continue
            if peer in middle.get(case, {}):
                for figure in CASES[case].main:
                    lines += [_line(case, peer, figure, runs, middle[case]), *_roles(peer, figure, middle[case])]
            outcome = _outcome(mine, usual)
            if outcome:
                lines.append(f"  {peer:9} {outcome}")
    return "\n".join(lines)


def _roles(peer: str, figure: str, middle: dict[str, Any]) -> list[str]:
    """The same figure for each role of processes, where it was taken."""
    by_role = middle[peer].get(f"{figure}_by_role", {})
    words = ", ".join(f"{role} {_number(value)}" for role, value in by_role.items())
    return [f"  {'':9}   {words}"] if words else []


def _line(case: str, peer: str, figure: str, runs: list[Run], middle: dict[str, Any]) -> str:
    """One figure of one peer."""
    value = middle[peer][figure]
    ratios = [value / middle[name][figure] if name in middle and middle[name][figure] else None for name in REFERENCES]
    each = [run["figures"][figure] for run in _of(runs, case, peer) if run["status"] == "ok"]
    spread = f"{_number(min(each))}..{_number(max(each))}" if len(each) > 1 else ""
    words = f"  {peer:9} {figure:26} {_number(value):>10}  {CASES[case].main[figure]:12}"
    return words + "".join(f" {_number(ratio):>8}" for ratio in ratios) + f"   {spread}"
