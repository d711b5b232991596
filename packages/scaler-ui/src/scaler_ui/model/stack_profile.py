"""StackProfile: how often tasks were seen in which stacks, as a flame graph, and in the formats of other tools. Pure.

Stacks are texts of tasks, so that anything may be in them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from html import escape
from zlib import crc32

from scaler_protocol.lazy_dataclass import dataclass
from scaler_protocol.operations import ProfilePart
from scaler_protocol.plurals import counted
from scaler_protocol.safe_text import escaped

DEPTH = 128
"""Frames of a stack that are kept: nothing recursive meets deeper ones."""
HEIGHT = 18
"""Of a frame, in pixels."""
LEAST_SHARE = 0.0005
"""Frames with a smaller share of the samples are not drawn."""
HOTTEST = 15
"""Functions that the summary names."""


@dataclass(slots=True)
class Frame:
    """A node of the flame graph: a function as called by those below it."""

    name: str
    samples: int = 0
    calls: dict[str, Frame] = field(default_factory=dict)


@dataclass(slots=True)
class StackProfile:
    """The samples of all hosts together: of tasks of a function, or of all."""

    function: str = ""
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Samples by stack, which is the function of the task, and frames from the outermost to the innermost."""
    workers: int = 0
    problems: list[str] = field(default_factory=list)
    """Why there is no profile, or what is missing in it."""
    is_complete: bool = False

    def add(self, part: ProfilePart) -> None:
        """Add what a host has answered."""
        for stack, count in zip(part.stacks, part.counts, strict=True):
            self.counts[tuple(escaped(stack).split(";")[:DEPTH])] += count
        self.workers += part.workers
        if part.problem:
            self.problems.append(escaped(part.problem))
        self.is_complete = not part.left

    @property
    def samples(self) -> int:
        """How often tasks were seen."""
        return self.counts.total()

    @property
    def summary(self) -> str:
        """One sentence."""
        if not self.samples:
            of = f" of {escaped(self.function)}" if self.function else ""
            return f"no task{of} was seen running"
        return f"{counted(self.samples, 'sample')} of {counted(self.workers, 'worker')}"

    def tree(self) -> Frame:
        """All stacks, those with the same beginning together."""
        root = Frame("all")
        for stack, count in self.counts.items():
            at = root
            at.samples += count
            for name in stack:
                at = at.calls.setdefault(name, Frame(name))
                at.samples += count
        return root

    def hottest(self) -> list[tuple[str, int, int]]:
        """Functions with the samples in themselves, and those in them and what they call; most of the first first."""
        own, within = Counter[str](), Counter[str]()
        for stack, count in self.counts.items():
            own[stack[-1]] += count
            for name in set(stack):
                within[name] += count
        return [(name, count, within[name]) for name, count in own.most_common(HOTTEST)]

    def as_text(self) -> str:
        """The hottest functions as a table."""
        lines = [self.summary]
        if self.samples:
            lines += ["", "   self  total  function"]
            lines += [
                f"{100 * own / self.samples:5.1f}% {100 * total / self.samples:4.0f}%  {name}"
                for name, own, total in self.hottest()
            ]
        return "\n".join(lines) + "\n"

    def as_collapsed(self) -> str:
        """A line for each stack: frames with semicolons between them, and the count."""
        return "".join(f"{';'.join(stack)} {count}\n" for stack, count in sorted(self.counts.items()))

    def as_speedscope(self) -> str:
        """The file format of speedscope, in JSON."""
        frames = {name: at for at, name in enumerate(dict.fromkeys(name for stack in self.counts for name in stack))}
        return json.dumps({
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": [{
                "type": "sampled", "name": self.summary, "unit": "none", "startValue": 0, "endValue": self.samples,
                "samples": [[frames[name] for name in stack] for stack in self.counts],
                "weights": list(self.counts.values()),
            }],
        })  # fmt: skip

    def as_svg(self) -> str:
        """The flame graph, as wide as what is around it; a name is cut where its frame ends, and whole on hover."""
        bars = list(_bars(self.tree()))
        height = HEIGHT * (1 + max((depth for depth, *_ in bars), default=0))
        drawn = "".join(_drawn(*bar, self.samples) for bar in bars)
        return f'<svg class="flames" width="100%" height="{height}" role="img" aria-label="flame graph">{drawn}</svg>'

    def as_html(self, title: str, script: str) -> str:
        """A page with the flame graph that needs nothing else; `script` is what zooms."""
        problems = "".join(f"<p>{escape(problem)}</p>" for problem in self.problems)
        return (
            f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
            f"<h1>{escape(title)}</h1><p>{escape(self.summary)}. A click zooms.</p>{problems}{self.as_svg()}"
            f"<script>{script}</script></html>"
        )


STYLE = (
    "body{font:14px sans-serif;margin:1em}h1{font-size:1.3em}.flames svg{cursor:pointer}"
    ".flames rect{stroke:#fff;stroke-width:.5}.flames text{font:11px monospace;fill:#111}"
)


def _bars(root: Frame) -> Iterator[tuple[int, float, float, Frame]]:
    """Depth, left end and width as shares, and frame; of each the calls by name."""
    least = LEAST_SHARE * root.samples
    open_frames = [(0, 0, root)]
    while open_frames:
        depth, at, frame = open_frames.pop()
        if root.samples:
            yield depth, at / root.samples, frame.samples / root.samples, frame
        for call in sorted(frame.calls.values(), key=lambda each: each.name):
            if call.samples >= least:
                open_frames.append((depth + 1, at, call))
            at += call.samples


def _drawn(depth: int, left: float, width: float, frame: Frame, samples: int) -> str:
    hint = f"{frame.name}: {frame.samples:,} of {samples:,} samples, {100 * width:.1f}%"
    hue = 20 + crc32(frame.name.encode()) % 40
    return (
        f'<svg x="{100 * left:.4f}%" y="{HEIGHT * depth}" width="{100 * width:.4f}%" height="{HEIGHT - 1}" '
        f'data-depth="{depth}" data-left="{left:.7f}" data-width="{width:.7f}"><title>{escape(hint)}</title>'
        f'<rect width="100%" height="100%" fill="hsl({hue} 85% 68%)"/>'
        f'<text x="3" y="{HEIGHT - 5}">{escape(frame.name)}</text></svg>'
    )
