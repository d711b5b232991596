"""Logs of events, a file for each hour and server, are read and grouped where the tasks run, and then merged in pairs.

A task returns a small frame instead of its events, and the frames are merged by other tasks as soon as two are there:
futures are arguments, so nothing waits for the slowest file, and the events never come to the client (needs pandas).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import drawing
import numpy as np
import pandas as pd
import session

from scaler import Client

PATHS = ("/search", "/item", "/cart", "/pay")
EDGES = np.geomspace(1.0, 10_000.0, 81)


def write(folder: Path, hour: int, server: int, events: int) -> Path:
    """The log of a server in one hour, made on the spot: the afternoon is busy and slow."""
    draw = np.random.default_rng(100 * hour + server)
    load = 1.0 + np.sin(np.pi * hour / 24) ** 2
    paths = draw.choice(PATHS, size=int(events * load), p=[0.5, 0.3, 0.15, 0.05])
    took = draw.lognormal(3.0 + 0.6 * load, 0.7, len(paths)) * np.where(paths == "/pay", 3.0, 1.0)
    file = folder / f"{hour:02}-{server}.csv"
    pd.DataFrame({"path": paths, "ms": took.round(2)}).to_csv(file, index=False)
    return file


def count(file: Path) -> pd.DataFrame:
    """How many events of a log took how long, by path and hour."""
    events = pd.read_csv(file)
    events["bin"] = np.searchsorted(EDGES, events["ms"]).clip(1, len(EDGES) - 1)
    events["hour"] = int(file.name[:2])
    return events.groupby(["hour", "path", "bin"]).size().rename("events").to_frame()


def merge(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The events of both."""
    return one.add(other, fill_value=0)


def percentile(counts: pd.Series, share: float) -> float:
    """The time within which that share of the events was over, from counts by bin."""
    by_bin = counts.groupby("bin").sum().sort_index()
    return float(EDGES[by_bin.index[(by_bin.cumsum() >= share * by_bin.sum()).argmax()]])


def work(client: Client, small: bool) -> str:
    """Count each file, merge in pairs, and draw the slow requests of each hour."""
    hours, servers, events = (range(0, 24, 8), 2, 200) if small else (range(24), 4, 5_000)
    with tempfile.TemporaryDirectory() as folder:
        places = [(Path(folder), hour, server, events) for hour in hours for server in range(servers)]
        files = [client.submit(write, *place) for place in places]
        frames = [client.submit(count, file) for file in files]
        while len(frames) > 1:
            pairs = zip(frames[::2], frames[1::2], strict=False)
            frames = [*(client.submit(merge, *pair) for pair in pairs), *frames[len(frames) // 2 * 2 :]]
        total = frames[0].result()["events"]
    payments = percentile(total.xs("/pay", level="path"), 0.95)
    print(f"{int(total.sum()):,} events of {len(files)} files; 95 % of the payments within {payments:,.0f} ms")
    series = {
        path: [(float(hour), percentile(total.loc[hour, path], 0.95)) for hour in hours] for path in ("/pay", "/search")
    }
    return drawing.lines("95 % of the requests are over within", "hour", "ms", series)


if __name__ == "__main__":
    session.run("What a web shop's logs say of slow requests.", work)
