"""How well missing values are filled, and how fast, beside scikit-learn's imputers.

    python tests/bench/complete.py [--json] [--sets wine digits] [--share 0.1] [--repeats 1]

Cells of real sets are hidden at random (scikit-learn's wine, breast_cancer, digits), every method
is fitted on the rows with holes and fills them. The error is the root of the mean square over the
hidden cells, in standard deviations of their feature; the seconds are those of fitting and filling.
All methods but the mean see standardised features. IterativeImputer is stopped after 3 rounds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.preprocessing import StandardScaler

from clam_dist import ClAM

SETS: dict[str, Callable[[], Any]] = {
    "wine": load_wine,
    "breast_cancer": load_breast_cancer,
    "digits": load_digits,
}
Fill = Callable[[np.ndarray], np.ndarray]


def by_imputer(imputer: Any) -> Fill:
    """An imputer on standardised features."""

    def fill(x: np.ndarray) -> np.ndarray:
        scaler = StandardScaler().fit(x)
        found: np.ndarray = scaler.inverse_transform(imputer.fit_transform(scaler.transform(x)))
        return found

    return fill


def by_clam(**parameters: Any) -> Fill:
    """ClAM's completion under these parameters."""

    def fill(x: np.ndarray) -> np.ndarray:
        found: np.ndarray = ClAM(random_state=0, **parameters).fit(x).complete(x)
        return found

    return fill


METHODS: dict[str, Fill] = {
    "mean": by_imputer(SimpleImputer(keep_empty_features=True)),
    "ClAM(8)": by_clam(n_clusters=8),
    "ClAM(20, loss, masked)": by_clam(n_clusters=20, select="loss", objective="masked"),
    "ClAM(20, loss, unmasked)": by_clam(n_clusters=20, select="loss", objective="unmasked"),
    "ClAM(80, loss, unmasked)": by_clam(n_clusters=80, select="loss", objective="unmasked"),
    "KNNImputer": by_imputer(KNNImputer(keep_empty_features=True)),
    "IterativeImputer": by_imputer(IterativeImputer(max_iter=3, keep_empty_features=True)),
}


def measure(name: str, method: str, share: float, seed: int) -> dict[str, Any]:
    """Error and seconds of one method on one set with one draw of hidden cells."""
    x = np.asarray(SETS[name]().data, dtype=np.float64)
    hidden = np.random.default_rng(seed).random(x.shape) < share
    holes = np.where(hidden, np.nan, x)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of 3 rounds
        filled = METHODS[method](holes)
    seconds = time.perf_counter() - began
    deviation = x.std(axis=0)
    scored = hidden & (deviation > 0)
    errors = ((filled - x) / np.where(deviation > 0, deviation, 1.0))[scored]
    error = float(np.sqrt(np.mean(errors**2)))
    return {"set": name, "method": method, "seed": seed, "rmse": error, "seconds": seconds}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--share", type=float, default=0.1, help="of the cells, hidden")
    parser.add_argument("--repeats", type=int, default=1, help="draws of hidden cells")
    options = parser.parse_args(arguments)
    found = [
        measure(name, method, options.share, seed)
        for name in options.sets
        for method in options.methods
        for seed in range(options.repeats)
    ]
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{'RMSE, seconds':>26}" + "".join(f"{name:>18}" for name in options.sets))
    for method in options.methods:
        cells = []
        for name in options.sets:
            runs = [run for run in found if (run["set"], run["method"]) == (name, method)]
            error = np.mean([run["rmse"] for run in runs])
            seconds = np.mean([run["seconds"] for run in runs])
            cells.append(f"{error:10.3f} {seconds:6.1f}s")
        print(f"{method:>26}" + "".join(cells))


if __name__ == "__main__":
    main()
