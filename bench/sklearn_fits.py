"""scikit-learn by joblib: this engine and loky in turns; median seconds of each, and CPU seconds of all processes.

python bench/sklearn_fits.py [--turns 5] [--clusters 1] [--workers 2] [--case many_small_fits …]

The ratios are medians of the ratios of each turn, in which both run one after the other, in random order: the speed of
a machine changes from one second to the next. With `--clusters`, so many times so many turns, each time with new
workers of both: where its memory happens to lie makes a worker up to 15 % faster for all of its life.

The grids fit many small models (80 and 500 of some milliseconds, 2,000 of one to three) and few bigger ones (12); the
calls do nothing.
"""

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as loky has it by default

import joblib
import psutil
from joblib.externals.loky import get_reusable_executor
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import scaler_client.joblib
from scaler import Client, SchedulerClusterCombo

assert scaler_client.joblib.ScalerBackend
SMALL = make_classification(150, 4, n_redundant=0, random_state=0)
BIG = make_classification(3_000, 50, random_state=0)
Taken = tuple[float, float]
"""Seconds, and CPU seconds of all processes."""


def calls() -> None:
    """20,000 calls that take no time."""
    joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(number) for number in range(20_000))


def small_fits() -> None:
    """80 fits of some milliseconds."""
    GridSearchCV(SVC(), {"C": [0.1, 1, 10, 100], "gamma": [0.001, 0.01, 0.1, 1]}, cv=5, n_jobs=-1).fit(*SMALL)


def many_small_fits() -> None:
    """500 fits of some milliseconds."""
    grid = {"C": [0.1, 0.3, 1, 3, 10, 30, 60, 100, 300, 1000], "gamma": [x / 1000 for x in range(1, 11)]}
    GridSearchCV(SVC(), grid, cv=5, n_jobs=-1).fit(*SMALL)


def tiny_fits() -> None:
    """2,000 fits of one to three milliseconds."""
    GridSearchCV(Ridge(), {"alpha": [x / 100 for x in range(1, 401)]}, cv=5, n_jobs=-1).fit(*SMALL)


def big_fits() -> None:
    """12 fits of some hundred milliseconds."""
    GridSearchCV(SVC(), {"C": [0.1, 1], "gamma": [0.01, 0.1]}, cv=3, n_jobs=-1).fit(*BIG)


def forests() -> None:
    """Four forests, whose trees are fitted one after the other."""
    GridSearchCV(RandomForestClassifier(30, random_state=0), {"max_depth": [3, 6]}, cv=2, n_jobs=-1).fit(*BIG)


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case for case in (calls, small_fits, many_small_fits, tiny_fits, big_fits, forests)
}


def cpu_seconds() -> float:
    """What this process and all that it has started have taken so far; none of them ends between two readings."""
    own = psutil.Process()
    return sum(sum(each.cpu_times()[:2]) for each in (own, *own.children(recursive=True)))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--clusters", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    print("| case | scaler s | loky s | ratio | scaler CPU s | loky CPU s | ratio |\n|---|---|---|---|---|---|---|")
    for name in options.case:
        ours, theirs = list[Taken](), list[Taken]()
        for _ in range(options.clusters):
            with (
                SchedulerClusterCombo(n_workers=options.workers, logging_level="ERROR") as cluster,
                Client(cluster.get_address()) as client,
            ):
                in_turns(CASES[name], options, client, (ours, theirs))
            get_reusable_executor().shutdown()
        cells = [f"| {name}"]
        for ours_of_turns, theirs_of_turns in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
            ratios = [our / their for our, their in zip(ours_of_turns, theirs_of_turns, strict=True)]
            our, their, ratio = map(statistics.median, (ours_of_turns, theirs_of_turns, ratios))
            cells.append(f"{our:.3f} | {their:.3f} | {ratio:.2f}")
        print(" | ".join(cells), "|", flush=True)


def in_turns(
    case: Callable[[], None], options: argparse.Namespace, client: Client, taken: tuple[list[Taken], list[Taken]]
) -> None:
    """Add what each turn takes: with this engine to the first list, with loky to the second one."""
    for turn in range(options.turns + 1):
        backends = list(zip(taken, (("scaler", {"client": client}), ("loky", {})), strict=True))
        for rows, (backend, settings) in random.sample(backends, len(backends)):
            # -1 of loky are the CPUs, not the workers.
            with joblib.parallel_config(backend, n_jobs=options.workers, **settings):
                began, cpu = time.perf_counter(), cpu_seconds()
                case()
                if turn:  # the first one imports
                    rows.append((time.perf_counter() - began, cpu_seconds() - cpu))


if __name__ == "__main__":
    main()
