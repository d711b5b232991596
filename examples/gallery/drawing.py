"""Pictures for the gallery: a few kinds of charts as SVG text, and a grey image as PNG bytes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 45
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626")

Points = Sequence[tuple[float, float]]


class Plane:
    """A plane with labelled axes, on which marks are drawn; `marks` are elements of SVG."""

    def __init__(self, title: str, x: tuple[float, float, str], y: tuple[float, float, str]) -> None:
        (self._x0, self._x1, x_label), (self._y0, self._y1, y_label) = x, y
        self.marks = [
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            text(LEFT, 22, title, size=15),
            text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, anchor="middle"),
            f'<g transform="rotate(-90 14 {HEIGHT / 2})">{text(14, HEIGHT / 2, y_label, anchor="middle")}</g>',
        ]
        for value in _ticks(self._y0, self._y1):
            _, at = self.place(self._x0, value)
            self.marks.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>')
            self.marks.append(text(LEFT - 6, at + 4, f"{value:g}", anchor="end"))
        for value in _ticks(self._x0, self._x1):
            at, _ = self.place(value, self._y0)
            self.marks.append(text(at, HEIGHT - BOTTOM + 16, f"{value:g}", anchor="middle"))

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is on the picture."""
        across = (x - self._x0) / (self._x1 - self._x0)
        up = (y - self._y0) / (self._y1 - self._y0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def svg(self) -> str:
        """The picture."""
        box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        return "\n".join([f"<svg {box}>", *self.marks, "</svg>", ""])


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 11, colour: str = "#374151") -> str:
    """Words at a place."""
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
    return f"<text {at}>{escape(words)}</text>"


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """A line for each series; their names are beside the title, where no line is."""
    plane = Plane(
        title,
        (*_span(x for points in series.values() for x, _ in points), x_label),
        (*_span(y for points in series.values() for _, y in points), y_label),
    )
    names = ""
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        names += f'<tspan dx="12" fill="{colour}">{escape(name)}</tspan>'
        path = " ".join("{:.1f},{:.1f}".format(*plane.place(x, y)) for x, y in points)
        plane.marks.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
    plane.marks.append(f'<text x="{WIDTH - RIGHT}" y="22" text-anchor="end" font-size="11">{names}</text>')
    return plane.svg()


def bars(title: str, x_label: str, y_label: str, heights: Points) -> str:
    """A bar at each point."""
    step = min((after - before for (before, _), (after, _) in pairwise(heights)), default=1.0)
    low, high = _span([0.0, *(y for _, y in heights)])
    plane = Plane(title, (heights[0][0] - step, heights[-1][0] + step, x_label), (low, high, y_label))
    for x, y in heights:
        (left, top), (right, bottom) = (
            plane.place(x - 0.4 * step, max(y, 0.0)),
            plane.place(x + 0.4 * step, min(y, 0.0)),
        )
        size = f'width="{right - left:.1f}" height="{bottom - top:.1f}"'
        plane.marks.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{COLOURS[0]}"/>')
    return plane.svg()


def heat_map(
    title: str, rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], labels: tuple[str, str]
) -> str:
    """A cell for each value, darker where it is greater; `labels` are those of the columns and of the rows."""
    flat = [value for row in values for value in row]
    low, high = _span(flat)
    plane = Plane(title, (0.0, 1e-9, labels[0]), (0.0, 1e-9, labels[1]))
    plane.marks = plane.marks[:4]
    wide, tall = (WIDTH - LEFT - RIGHT) / len(columns), (HEIGHT - TOP - BOTTOM) / len(rows)
    for at, (row, name) in enumerate(zip(values, rows, strict=True)):
        top = TOP + at * tall
        plane.marks.append(text(LEFT - 6, top + tall / 2 + 4, name, anchor="end"))
        for place, value in enumerate(row):
            share, left = (value - low) / (high - low), LEFT + place * wide
            size = f'width="{wide - 1:.1f}" height="{tall - 1:.1f}"'
            shade = f'fill="{COLOURS[0]}" fill-opacity="{0.08 + 0.92 * share:.2f}"'
            plane.marks.append(f'<rect x="{left:.1f}" y="{top:.1f}" {size} {shade}/>')
            colour = "white" if share > 0.5 else "#111827"
            plane.marks.append(
                text(left + wide / 2, top + tall / 2 + 4, f"{value:.3f}", anchor="middle", colour=colour)
            )
    for place, name in enumerate(columns):
        plane.marks.append(text(LEFT + (place + 0.5) * wide, HEIGHT - BOTTOM + 16, name, anchor="middle"))
    return plane.svg()


def png(rows: Sequence[bytes]) -> bytes:
    """A grey image; each row has a byte for each pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _span(values: Iterable[float]) -> tuple[float, float]:
    """From the least to the greatest value; never nothing."""
    found = list(values)
    low, high = min(found), max(found)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers within a span."""
    step = 10.0 ** len(f"{int(high - low)}") / 10 if high - low >= 1 else 1.0
    while (high - low) / step < 3:
        step /= 2 if f"{step:e}"[0] in "1" else 2.5 if f"{step:e}"[0] == "5" else 2
    first = int(low / step) - 1
    found = [number * step for number in range(first, first + 50)]
    return [round(value, 10) for value in found if low <= value <= high]
