"""The screen of scaler_top as lines of text: selection, order and formats. Pure."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from operator import itemgetter
from textwrap import wrap
from typing import Any

from scaler_protocol import units
from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.plurals import counted
from scaler_protocol.tracebacks import headline

COLUMNS: tuple[tuple[str, str], ...] = (
    ("worker", "n"),
    ("agt_cpu", "C"),
    ("agt_rss", "M"),
    ("cpu", "c"),
    ("rss", "m"),
    ("free", "f"),
    ("sent", "w"),
    ("queued", "d"),
    ("lag", "l"),
)
"""The sortable columns, and the key that sorts by each."""
SHORTCUTS = "Shortcuts: " + " ".join(f"{name}[{key}]" for name, key in COLUMNS)
KEYS = "filter[/] details[Enter] why[y] events[e] move[arrows, PgUp, PgDn] quit[q]"
FEW_KEYS = "filter[/] details[Enter] why[y] events[e] quit[q] all keys[?]"
LOW = 30
"""Lines below which the screen leaves out what is not about the cluster."""
WIDE = 160
"""Columns of text from which hosts, and what workers run, are shown."""
HOST_COLUMNS = ("host", "workers", "busy", "cpu", "free", "disk", "shm", "lag", "deaths", "failures")
_NAME_CELLS = 30
_SIDE_CELLS = 24
"""Columns of text below which nothing is shown beside the workers."""


@dataclass(frozen=True, slots=True)
class View:
    """The reader's choices: the order, the filter, and the selected worker."""

    order: str = "cpu"
    descending: bool = True
    wanted: str = ""
    pointed: int = 0

    def sorted_by(self, key: str) -> View:
        """The view after a sort key: numbers descend, names ascend; the same key again reverses the order."""
        name = {key: name for name, key in COLUMNS}[key]
        if name == self.order:
            return replace(self, descending=not self.descending)
        return replace(self, order=name, descending=name != "worker")

    def rows(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """The workers that match, in order."""
        wanted = self.wanted.lower()
        workers = [
            worker
            for worker in fields.get("workers", [])
            if wanted in f"{worker['worker']} {worker['name']} {worker['state']} {worker['capabilities']}".lower()
        ]
        workers.sort(key=lambda worker: worker["worker"])
        workers.sort(key=lambda worker: worker[self.order], reverse=self.descending)
        return workers


def clock(at: float, now: float) -> str:
    """The local time of day, with the date if it is not that of `now`."""
    moment = datetime.fromtimestamp(at)
    is_today = moment.date() == datetime.fromtimestamp(now).date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"


def size(count: float) -> str:
    """Bytes as `130.1m`."""
    for unit in ("b", "k", "m", "g"):
        if abs(count) < 1000 or unit == "g":
            break
        count /= 1024
    return f"{count:.0f}b" if unit == "b" else f"{count:.1f}{unit}"


def duration(seconds: float) -> str:
    """Seconds as `0.7ms`, `850us` or `2.5s`."""
    if seconds < 1e-4:
        return f"{seconds * 1e6:.0f}us"
    return f"{seconds * 1e3:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}+"


def _cut_begin(text: str, width: int) -> str:
    """The end of a name says most: many begin with the same host."""
    return text if len(text) <= width else f"+{text[1 - width :]}"


def _box(title: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    """A box with a title, names and right-aligned values."""
    listed = list(entries)
    names = max((len(name) for name, _ in listed), default=0)
    values = max((len(value) for _, value in listed), default=0)
    lines = [title, *(f"{name:>{names}} {value:>{values}}" for name, value in listed)]
    width = max(map(len, lines))
    return [f"{line:<{width}}" for line in lines]


def beside(boxes: Sequence[Sequence[str]]) -> list[str]:
    """Boxes next to each other."""
    height = max(map(len, boxes))
    widths = [max(map(len, box), default=0) for box in boxes]
    return [
        " | ".join((box[at] if at < len(box) else "").ljust(width) for box, width in zip(boxes, widths, strict=True))
        for at in range(height)
    ]


def summary(fields: dict[str, Any], width: int, types: int | None = None) -> list[str]:
    """The upper part: the scheduler and its messages, of which only the most frequent types are shown; then hosts."""
    scheduler = fields["scheduler"]
    counts = [
        _box(name, ((entry, f"{count:,}") for entry, count in islice(fields[name].items(), limit)))
        for name, limit in (("task_manager", None), ("scheduler_sent", types), ("scheduler_received", types))
    ]
    load = [("cpu", units.percent(scheduler["cpu"], 1)), ("rss", size(scheduler["rss"]))]
    lines = beside([_box("scheduler", load), *counts])
    if width < WIDE:
        return lines
    return [_cut(line.rstrip(), width) for line in beside([lines, host_table(fields["hosts"], len(lines))])]


def host_table(hosts: Sequence[dict[str, Any]], height: int) -> list[str]:
    """The names of the columns and a line for each host, those with troubles first; at most so many lines."""
    ordered = sorted(hosts, key=lambda host: (-host["deaths"], -host["failures"], -host["busy"], host["host"]))
    shown = ordered if len(ordered) < height else ordered[: height - 2]
    lines = _aligned([HOST_COLUMNS, *map(_host_cells, shown)], left=("host",))
    return lines if len(shown) == len(ordered) else [*lines, f"and {counted(len(ordered) - len(shown), 'other')}"]


def _host_cells(host: dict[str, Any]) -> list[str]:
    room = [size(host[name]) if host[name] else "" for name in ("available", "disk", "shared")]
    return [
        _cut(host["host"], _SIDE_CELLS),
        f"{host['workers']:,}" if host["state"] == "up" else host["state"],
        f"{host['busy']:,}",
        units.percent(host["cpu"]),
        *room,
        duration(host["lag"]),
        f"{host['deaths']:,}",
        f"{host['failures']:,}",
    ]


def _aligned(rows: Sequence[Sequence[str]], left: Collection[str] = (), gap: str = "  ") -> list[str]:
    """A line for each row; columns whose name, in the first row, is in `left` are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    signs = ["<" if name in left else ">" for name in rows[0]]
    return [
        gap.join(f"{cell:{sign}{wide}}" for cell, sign, wide in zip(row, signs, widths, strict=True)) for row in rows
    ]


def finding_lines(fields: dict[str, Any], width: int, height: int) -> list[str]:
    """The findings, one after the other, in at most so many lines."""
    lines = wrap(" ".join(finding["text"] for finding in fields["findings"]), width)
    return [*lines[: height - 1], _cut(" ".join(lines[height - 1 :]), width)] if len(lines) > height else lines


def keys(size: tuple[int, int]) -> list[str]:
    """The lines about keys, between summary and workers; a low screen has one."""
    width, height = size
    return [FEW_KEYS] if height < LOW else ["-" * width, *all_keys(width), ""]


def all_keys(width: int) -> list[str]:
    """All keys."""
    return [*wrap(SHORTCUTS, width), *wrap(KEYS, width)]


def total(fields: dict[str, Any], shown: int, width: int) -> str:
    """The line above the workers, with as many sums as fit; an agent counts once."""
    sums = fields["total"]
    text = f"Total {sums['workers']:,} worker(s)"
    if sums["processes"] != sums["workers"]:
        text += f", {sums['processes']:,} processes"
    text += f" of {sums['agents']:,} agent(s)"
    if shown != sums["processes"]:
        text += f", {shown:,} shown"
    text += ":"
    for figure in (
        f"cpu {units.percent(sums['cpu'], 1)}",
        f"rss {size(sums['rss'])}",
        f"sent {sums['sent']:,}",
        f"agt_cpu {units.percent(sums['agt_cpu'], 1)}",
        f"agt_rss {size(sums['agt_rss'])}",
    ):
        if len(text) + 1 + len(figure) > width:
            break
        text += f" {figure}"
    return text


def worker_table(workers: Sequence[dict[str, Any]], view: View, width: int) -> tuple[str, list[str]]:
    """The names of the columns, with the sorted one in brackets, and a line for each worker."""
    is_wide = width >= WIDE
    names = [*(f"[{name}]" if name == view.order else name for name, _ in COLUMNS), "ITL"]
    rows = [_cells(worker, is_wide=is_wide) for worker in workers]
    table = [[*names, "for", "function"] if is_wide else names, *rows]
    header, *lines = _aligned(table, left=("function",))
    if len(header) > width:
        header, *lines = _aligned(table, gap=" ")
    return header, lines


def _cells(worker: dict[str, Any], *, is_wide: bool) -> list[str]:
    lag = duration(worker["lag"])
    return [
        _cut_begin(worker["worker"], _NAME_CELLS),
        units.percent(worker["agt_cpu"], 1),
        size(worker["agt_rss"]),
        units.percent(worker["cpu"], 1),
        size(worker["rss"]),
        f"{worker['free']}",
        f"{worker['sent']}",
        f"{worker['queued']}",
        f"({worker['silence']:.0f}s) {lag}" if worker["stale"] else lag,
        worker["itl"],
        *((_elapsed(worker), _cut(worker["function"], _NAME_CELLS)) if is_wide else ()),
    ]


def _elapsed(worker: dict[str, Any]) -> str:
    return units.duration(worker["elapsed"]) if worker["elapsed"] else ""


def body(table: Sequence[str], side: Sequence[str], size: tuple[int, int], pointed: int) -> tuple[int, list[str]]:
    """The position of the first visible worker, and the lines for this width and height.

    As many workers as fit are shown, around the selected one, with clients and functions beside them or below.
    """
    width, height = size
    is_narrow = max(map(len, table), default=0) + _SIDE_CELLS > width
    below = side[: height // 3] if is_narrow else []
    room = height - len(below)
    first = max(0, min(pointed - room // 2, len(table) - room))
    shown = table[first : first + room]
    if is_narrow:
        return first, [*_filled(shown, room), *below]
    used = min(height, max(len(shown), len(side)))
    return first, _filled([line.rstrip() for line in beside([_filled(shown, used), side[:used]])], height)


def _filled(lines: Sequence[str], height: int) -> list[str]:
    return [*lines[:height], *[""] * (height - len(lines))]


def side(fields: dict[str, Any]) -> list[str]:
    """Clients and functions, beside the workers."""
    lines = []
    for manager in fields["managers"]:
        lines.append(f"{_cut(manager['manager'], 20)}: {manager['joined']} of {counted(manager['desired'], 'worker')}")
        lines.append(f"  {manager['starting']} starting, {manager['draining']} draining")
    lines += ["", "client_manager"] if lines else ["client_manager"]
    lines += [f"{_cut(name, 32)}: {count:,}" for name, count in fields["client_manager"].items()]
    lines += ["", "func_to_num_tasks"]
    lines += [f"{_cut(name, 32)}: {count:,}" for name, count in fields["func_to_num_tasks"].items()]
    return lines


def details(worker: dict[str, Any], task: str) -> list[str]:
    """All fields of one worker."""
    return [
        f"worker     {worker['worker']}",
        f"agent      {worker['agent']} on {worker['host']}, heard {worker['silence']:.1f}s ago",
        f"state      {worker['state']}",
        f"in logs    {worker['name']} ({worker['worker']})",
        f"offers     {worker['capabilities'] or 'no capabilities'}",
        f"load       cpu {units.percent(worker['cpu'], 1)}, rss {size(worker['rss'])}, {worker['queued']} queued",
        f"task       {task}",
    ]


def event_lines(fields: dict[str, Any], count: int) -> list[str]:
    """Events, newest first: deaths of workers, peers that joined and left. Many of one kind do not push others out."""
    ranks, ranked = Counter[int](), list[tuple[int, int, dict[str, Any]]]()
    for place, event in enumerate(reversed(fields["events"])):
        ranks[event["kind"]] += 1
        ranked.append((ranks[event["kind"]], place, event))
    events = sorted(heapq.nsmallest(count, ranked, key=itemgetter(0, 1)), key=itemgetter(1))
    if not events:
        return ["nothing has happened since this program began to listen"]
    return [
        f"{clock(event['time'], fields['time'])} {_about(event['task'])}{headline(event['text'])}"
        for _, _, event in events
    ]


def _about(task: int) -> str:
    return f"task {task:x}: " if task else ""
