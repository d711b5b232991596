"""scikit-learn by joblib: this engine and loky in turns; median seconds of each.

python bench/sklearn_fits.py [--turns 5] [--workers 2]

The grids fit many small models (80 of some milliseconds) and few bigger ones (12); the calls do next to nothing.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as loky has it by default

import joblib
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import scaler_client.joblib
from scaler import Client, SchedulerClusterCombo

assert scaler_client.joblib.ScalerBackend
SMALL = make_classification(150, 4, n_redundant=0, random_state=0)
BIG = make_classification(3_000, 50, random_state=0)


def calls() -> None:
    """20,000 calls that take no time."""
    joblib.Parallel(n_jobs=-1)(joblib.delayed(abs)(number) for number in range(20_000))


def small_fits() -> None:
    """80 fits of some milliseconds."""
    GridSearchCV(SVC(), {"C": [0.1, 1, 10, 100], "gamma": [0.001, 0.01, 0.1, 1]}, cv=5, n_jobs=-1).fit(*SMALL)


def big_fits() -> None:
    """12 fits of some hundred milliseconds."""
    GridSearchCV(SVC(), {"C": [0.1, 1], "gamma": [0.01, 0.1]}, cv=3, n_jobs=-1).fit(*BIG)


def forests() -> None:
    """Four forests, whose trees are fitted one after the other."""
    GridSearchCV(RandomForestClassifier(30, random_state=0), {"max_depth": [3, 6]}, cv=2, n_jobs=-1).fit(*BIG)


CASES: tuple[Callable[[], None], ...] = (calls, small_fits, big_fits, forests)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    print("| case | scaler s | loky s | scaler / loky |\n|---|---|---|---|")
    with (
        SchedulerClusterCombo(n_workers=options.workers, logging_level="ERROR") as cluster,
        Client(cluster.get_address()) as client,
    ):
        for case in CASES:
            taken: dict[str, list[float]] = {"scaler": [], "loky": []}
            for turn in range(options.turns + 1):
                for name, settings in (("scaler", {"client": client}), ("loky", {})):
                    # -1 of loky are the CPUs, not the workers.
                    with joblib.parallel_config(name, n_jobs=options.workers, **settings):
                        began = time.perf_counter()
                        case()
                        if turn:  # the first one imports
                            taken[name].append(time.perf_counter() - began)
            ours, theirs = (statistics.median(taken[name]) for name in ("scaler", "loky"))
            print(f"| {case.__name__} | {ours:.3f} | {theirs:.3f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
