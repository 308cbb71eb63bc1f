"""What the clustering estimators share: fitting, labelling, going on, saving.

Letters: ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from clam_dist.errors import ConfigError, DataError
from clam_dist.estimators.base import Estimator
from clam_dist.estimators.bundles import save_trained
from clam_dist.estimators.inputs import Rows, open_rows
from clam_dist.estimators.parameters import as_value_error, in_parameters
from clam_dist.estimators.prepare import training_set
from clam_dist.estimators.stream import Adam, learn
from clam_dist.estimators.trained import Trained
from clam_dist.stages.fitting import fit_parts


class Clusterer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, Estimator):
    """Base of the clustering estimators; a class over it has the parameters of its kind."""

    batch_rows: Any

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on rows.

        Parameters
        ----------
        X : array-like, table, tensor or lazy collection (n, d)
            nan where missing.
        y : ignored
        sample_weight : array-like (n,), optional
            A row of weight 2 counts as two rows, one of weight 0 is left out. For a Dask input
            also a Dask array or series of the same partitions.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            A parameter or the rows are wrong.

        Warns
        -----
        ConvergenceWarning
            There are fewer distinct rows than clusters; or no candidate with a network reconstructs
            rows nearly as well as the pretrained network does.
        """
        del y
        try:
            self._fit(X, sample_weight)
        except (ConfigError, DataError) as error:
            raise as_value_error(error, getattr(self, "feature_names_in_", None)) from error
        for message in self._told:
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        return self

    def _fit(self, X: Any, sample_weight: Any) -> Self:
        model, train, scaling = self._resolve()
        threads = self._threads()
        rows = self._open(X, reset=True)
        weighted = sample_weight is not None
        chosen = training_set(rows.with_weights(sample_weight), rows.width, weighted, model)
        fitted = fit_parts(
            chosen.parts,
            rows.width,
            chosen.model,
            train,
            seed=self._seed(),
            scaling=scaling,
            weighted=chosen.weighted,
            threads=threads,
            warn=_warn,
            on_event=self._tell if self.verbose else None,
        )
        self._trained = Trained(
            parameters={name: np.array(value) for name, value in fitted.parameters.items()},
            settings=fitted.settings,
            member=fitted.winner,
            statistics=fitted.statistics,
            scaling=fitted.scaling,
            device=fitted.device,
            threads=threads,
        )
        self._sums, self._adam = fitted.sums, Adam.begin(fitted.parameters)
        self.n_clusters_ = self._trained.n_clusters
        self.beta_ = float(fitted.winner["beta"])
        self.objective_ = str(fitted.winner["objective"])
        self.silhouette_ = float(fitted.winner["silhouette"])
        self.silhouette_standard_error_ = float(fitted.winner["standard_error"])
        self.members_ = list(fitted.result["members"])
        self.history_ = list(fitted.result["history"])
        self.n_iter_ = _passes(self.history_)
        self._publish()
        self.labels_ = rows.map_rows(self._trained.labels, np.int32)
        self._told = [in_parameters(message) for message in fitted.result["warnings"]]
        return self

    def _publish(self) -> None:
        """Attributes that follow from the prototypes and the sums over rows."""
        scaling = self._trained.scaling
        self.prototypes_ = self._trained.prototypes_in_units()
        self.cluster_means_ = scaling.invert(self._sums.means)
        seen = ~np.isnan(self.cluster_means_)
        self.cluster_centers_ = np.where(seen, self.cluster_means_, self.prototypes_)
        self.cluster_sizes_ = self._sums.weight.copy()
        self.inertia_ = self._sums.inertia

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Go on learning from further rows, each of which may be forgotten afterwards.

        The first call is :meth:`fit`: it fixes the scaling, the number of clusters and all
        settings, so its rows should be like those to come. Every further call takes one pass of
        Adam steps of the chosen candidate over the new rows, in an order and under masks that
        depend on ``random_state`` and the number of steps so far alone, and adds the rows to the
        clusters' sizes, means and inertia, under the labels they have when they come. A partition
        of a Dask input is a call of its own.

        Parameters
        ----------
        X, y, sample_weight
            As of :meth:`fit`. ``labels_`` are those of these rows; ``silhouette_``, ``members_``
            and ``history_`` stay those of the first call.

        Returns
        -------
        self
        """
        if not hasattr(self, "_trained"):
            return self.fit(X, y, sample_weight)
        rows = self._open(X, reset=False)
        size = None if self.batch_rows == "auto" else int(self.batch_rows)
        for x, weight in rows.with_weights(sample_weight)():
            self._trained, self._adam = learn(self._trained, self._adam, x, weight, size)
            self._sums = self._sums.merge(self._trained.sums(x, weight))
        self._publish()
        self.labels_ = rows.map_rows(self._trained.labels, np.int32)
        return self

    def predict(self, X: Any) -> Any:
        """Cluster of each row.

        Parameters
        ----------
        X : array-like, table, tensor or lazy collection (n, d)

        Returns
        -------
        ndarray of int32 (n,)
            0 … k-1, or -1 where every feature is missing. Of a Dask input a lazy Dask array, of an
            xarray object a DataArray with the coordinates of the rows.
        """
        rows = self._fitted(X)
        return rows.wrap_rows(rows.map_rows(self._trained.labels, np.int32))

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """:meth:`fit`, then the clusters of the same rows, as :meth:`predict` gives them."""
        self.fit(X, y, sample_weight)
        return open_rows(X).wrap_rows(self.labels_)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Minus the weighted sum of squared distances of rows to the mean of their cluster.

        As of scikit-learn's KMeans, over the features seen and in scaled units: of the rows that
        were fitted it is ``-inertia_``.
        """
        del y
        rows = self._fitted(X)
        means = np.nan_to_num(self._sums.means)
        total = 0.0
        for x, weight in rows.with_weights(sample_weight)():
            new = self._trained.sums(x, weight)
            squares = new.squares - 2.0 * new.sums * means + new.observed * means**2
            total += float(squares.sum())
        return -max(total, 0.0)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a folder without pickle, for :func:`clam_dist.load_model`.

        ``clam-dist assign --model`` takes it too, for tables with the columns of
        ``feature_names_in_`` (``x0, x1, …`` where there are none). What comes back labels rows; to
        complete them or to go on learning, pickle the estimator itself.

        Raises
        ------
        ValueError
            Something that is not a saved model is there; it is left as it is.
        """
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        try:
            save_trained(path, self._trained, self._sums, None if names is None else list(names))
        except ConfigError as error:
            raise as_value_error(error) from error

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _fitted(self, X: Any) -> Rows:
        check_is_fitted(self)
        return self._open(X, reset=False)


def _warn(message: str) -> None:
    warnings.warn(in_parameters(message), UserWarning, stacklevel=6)


def _passes(history: list[dict[str, Any]]) -> int:
    """Passes over the sample and over all rows that a history tells of, at least 1."""
    last: dict[str, float] = {}
    for record in history:
        last[record["phase"]] = max(float(record["epoch"]), last.get(record["phase"], 0.0))
    return max(1, int(np.ceil(sum(last.values()))))
