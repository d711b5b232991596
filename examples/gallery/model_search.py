"""scikit-learn searches for the best parameters of a model with cross-validation, its fits on the cluster's workers.

Nothing of the search is written for Scaler: joblib, which scikit-learn uses, is told where to run (needs scikit-learn).
"""

from __future__ import annotations

import drawing
import joblib
import numpy as np
import session
from sklearn.datasets import make_moons
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import scaler_client.joblib  # noqa: F401 - registers the backend
from scaler import Client


def work(client: Client, small: bool) -> str:
    """A grid of C and gamma of a support vector classifier."""
    samples, folds = (120, 2) if small else (800, 5)
    grid = {"C": [0.1, 1.0, 10.0, 100.0][: 2 if small else 4], "gamma": [0.1, 0.3, 1.0, 3.0, 10.0][: 2 if small else 5]}
    points, labels = make_moons(samples, noise=0.3, random_state=1)
    search = GridSearchCV(SVC(), grid, cv=folds)
    with joblib.parallel_config("scaler", client=client):
        search.fit(points, labels)
    best = ", ".join(f"{name}={value:g}" for name, value in sorted(search.best_params_.items()))
    print(f"{len(search.cv_results_['params']) * folds} fits; best {best}: {search.best_score_:.3f}")
    scores = np.reshape(search.cv_results_["mean_test_score"], (len(grid["C"]), len(grid["gamma"])))
    rows, columns = [f"{value:g}" for value in grid["C"]], [f"{value:g}" for value in grid["gamma"]]
    return drawing.heat_map("Accuracy in cross-validation", rows, columns, scores.tolist(), ("gamma", "C"))


if __name__ == "__main__":
    session.run("A cross-validated model search with scikit-learn.", work)
