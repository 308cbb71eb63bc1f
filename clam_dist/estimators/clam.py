"""ClAM for arrays, frames and lazy collections, by scikit-learn's conventions.

Letters: ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from clam_dist.errors import ConfigError, DataError
from clam_dist.estimators.base import Estimator
from clam_dist.estimators.bundles import save_trained
from clam_dist.estimators.inputs import Rows, open_rows
from clam_dist.estimators.parameters import as_value_error
from clam_dist.estimators.prepare import training_set
from clam_dist.estimators.stream import Adam, learn
from clam_dist.estimators.trained import Trained
from clam_dist.stages.fitting import fit_parts


class ClAM(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, Estimator):
    """Clustering with associative memories (Saha et al., ICML 2023).

    Learns prototypes such that rows, drawn to them by the dynamics of an associative memory, stay
    what they were; differentiable, so it is trained by gradients where k-means alternates. Rows
    with missing values (nan) are taken as they are: a missing value takes no part in any sum, and
    :meth:`complete` fills it.

    Untouched, a fit tries 64 candidates side by side (eight inverse temperatures, both objectives,
    ``restarts`` starts) and keeps the one of greatest silhouette among those that use all clusters.
    The parameters have the names and meanings of a run's config.

    Parameters
    ----------
    n_clusters : int, list of int or 'auto', default=8
        Number of clusters ``k``. Of several, or of 2 to 20 for 'auto', the fewest within one
        standard error of the greatest silhouette.
    beta : float, list of float or 'auto', default='auto'
        Inverse temperature in 1/length² of scaled features; a list makes a sweep. 'auto' tries
        eight over three orders of magnitude.
    steps : int or list of int, default=10
        Depth ``T`` of the recursion.
    step_size : float, optional
        ``α`` of each step, below 2; ``1 / steps`` by default.
    mask_rate : float or list of float, default=0.15
        Share of the features hidden from the masked objective.
    mask_value : {'mean', 'min', 'max'}, default='mean'
        What hidden and missing features start from.
    group_rows : int, default=64
        Rows that share the features hidden from them; 1 draws them for every row.
    objective : {'auto', 'masked', 'unmasked'}, default='auto'
        Loss on hidden features (equation 9), on all features (8), or both tried.
    weighted : bool, default=False
        Learn a weight for each prototype (equation 10).
    epochs : int or 'auto', default='auto'
        Passes over all rows at the most.
    batch_rows : int or 'auto', default='auto'
        Rows of a step.
    learning_rate : float, list of float or 'auto', default='auto'
        Adam's first step length in scaled units.
    restarts : int, default=4
        Starts for each setting: two of k-means, the paper's normal draw, rows.
    select : {'silhouette', 'loss'}, default='silhouette'
        What candidates are chosen by.
    scaling : {'standard', 'minmax', 'unit', 'none'}, default='standard'
        Zero mean and unit variance; 0 to 1; each row divided by its length; as it is.
    device : {'auto', 'cpu', 'cuda'}, default='auto'
        Where to compute; 'auto' is CUDA where there is one.
    precision : {'float32', 'tf32', 'bfloat16'}, default='float32'
        Of the two large products of a training step.
    n_jobs : int, optional
        Threads; all usable cores by default, -2 all but one. Changes no result.
    verbose : int, default=0
        1 prints what is done, 2 also every pass.
    random_state : int, RandomState or None, default=None
        Seed of all draws. An int gives the same result every time, on any number of threads.

    Attributes
    ----------
    labels_ : ndarray of int32 (n,)
        Cluster of each row; -1 where every feature is missing. Of a Dask input a lazy array.
    cluster_centers_ : ndarray (k, d)
        Mean of each cluster's rows in original units, which is what people read. Where no value is
        seen, the prototype's.
    cluster_means_ : ndarray (k, d)
        The same, nan where no value is seen.
    prototypes_ : ndarray (k, d)
        The learned prototypes in original units. They attract rows and give them their labels;
        under the masked objective they lie further out than the means.
    cluster_sizes_ : ndarray of float64 (k,)
        Rows of each cluster; their summed weights where there are weights.
    inertia_ : float
        Weighted sum of squared distances of rows to their cluster's mean, over seen features, in
        scaled units squared.
    silhouette_, silhouette_standard_error_ : float
        Euclidean silhouette in scaled units: exact up to 8192 distinct rows, beyond that of a
        sample, and its standard error as an estimate for the population that rows were drawn from.
        nan for one cluster.
    n_clusters_, beta_, objective_
        What was chosen.
    n_iter_ : int
        Passes that the winner was trained for, over a sample and over all rows.
    members_ : list of dict
        All candidates with settings and scores, as ``pandas.DataFrame(members_)`` takes them.
    history_ : list of dict
        Losses of the winner after each round.
    n_features_in_ : int
    feature_names_in_ : ndarray of str (d,)
        Where the input has names.

    Notes
    -----
    Rows may be a NumPy array or anything that becomes one, a pandas or Arrow table, a torch tensor
    (without a copy on the CPU), an xarray DataArray (rows by features) or Dataset (a variable for
    each feature), a Dask array or DataFrame. A Dask input is read one partition at a time, twice,
    and scaled rows wait on the disk, 4 bytes a value, in the system's folder for temporary files.

    Up to 16 384 rows (fewer from 1024 features on), equal rows are merged and their weights summed
    before anything else, so that neither the order of the rows nor the way in which a repeated one
    is written changes the model. More rows are trained on as they come: weights count in every sum
    there as well, but draws and batches differ between a row written twice and one of weight 2.

    Examples
    --------
    >>> import numpy as np
    >>> from clam_dist import ClAM
    >>> X = np.array([[1.0, 2], [1, 4], [1, np.nan], [10, 2], [10, 4], [10, 0]])
    >>> model = ClAM(n_clusters=2, random_state=0).fit(X)
    >>> bool(model.labels_[0] == model.labels_[2] != model.labels_[3])
    True
    >>> model.complete(X)[2, 0]
    np.float64(1.0)
    >>> model.predict([[1, 3], [12, np.nan]]) == model.labels_[[0, 3]]
    array([ True,  True])
    """

    def __init__(
        self,
        n_clusters: Any = 8,
        *,
        beta: Any = "auto",
        steps: Any = 10,
        step_size: float | None = None,
        mask_rate: Any = 0.15,
        mask_value: str = "mean",
        group_rows: int = 64,
        objective: str = "auto",
        weighted: bool = False,
        epochs: Any = "auto",
        batch_rows: Any = "auto",
        learning_rate: Any = "auto",
        restarts: int = 4,
        select: str = "silhouette",
        scaling: str = "standard",
        device: str = "auto",
        precision: str = "float32",
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.beta = beta
        self.steps = steps
        self.step_size = step_size
        self.mask_rate = mask_rate
        self.mask_value = mask_value
        self.group_rows = group_rows
        self.objective = objective
        self.weighted = weighted
        self.epochs = epochs
        self.batch_rows = batch_rows
        self.learning_rate = learning_rate
        self.restarts = restarts
        self.select = select
        self.scaling = scaling
        self.device = device
        self.precision = precision
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ClAM:
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
        """
        del y
        try:
            return self._fit(X, sample_weight)
        except (ConfigError, DataError) as error:
            raise as_value_error(error) from error

    def _fit(self, X: Any, sample_weight: Any) -> ClAM:
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
            warn=partial(warnings.warn, category=UserWarning, stacklevel=5),
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
        return self

    def _publish(self) -> None:
        """Attributes that follow from the prototypes and the sums over rows."""
        scaling = self._trained.scaling
        self.prototypes_ = scaling.invert(self._trained.parameters["prototypes"])
        self.cluster_means_ = scaling.invert(self._sums.means)
        seen = ~np.isnan(self.cluster_means_)
        self.cluster_centers_ = np.where(seen, self.cluster_means_, self.prototypes_)
        self.cluster_sizes_ = self._sums.weight.copy()
        self.inertia_ = self._sums.inertia

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ClAM:
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

    def transform(self, X: Any) -> Any:
        """Distance of each row to each prototype, over the features seen, in scaled units.

        Returns
        -------
        ndarray (n, k)
            float32 for float32 rows, otherwise float64; nan where every feature is missing. Of a
            Dask input a lazy Dask array.
        """
        rows = self._fitted(X)
        dtype = np.float32 if rows.values.dtype == np.float32 else np.float64
        of_block = partial(self._trained.distances, dtype=dtype)
        return rows.map_cells(of_block, self.n_clusters_, dtype)

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

    def complete(self, X: Any) -> Any:
        """Fill missing values with what the dynamics recall.

        Parameters
        ----------
        X : array-like, table, tensor or lazy collection (n, d)

        Returns
        -------
        ndarray (n, d), or a table, DataArray, Dataset or lazy Dask array like X
            In original units: what was there bit for bit, missing values filled within the range
            that training has seen. A row without any value gets the training rows' mean; a feature
            without any value in training stays nan.

        Notes
        -----
        What fills best is not what clusters best: the silhouette chooses few and sharp clusters.
        ``select="loss"`` with some 20 to 80 clusters comes near nearest-neighbour imputation
        (``tests/bench/complete.py``).
        """
        rows = self._fitted(X)
        found = rows.map_cells(self._trained.complete, rows.width, rows.values.dtype)
        return rows.wrap_cells(found)

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

    @property
    def _n_features_out(self) -> int:
        return int(self.n_clusters_)

    def _fitted(self, X: Any) -> Rows:
        check_is_fitted(self)
        return self._open(X, reset=False)


def _passes(history: list[dict[str, Any]]) -> int:
    """Passes over the sample and over all rows that a history tells of, at least 1."""
    last: dict[str, float] = {}
    for record in history:
        last[record["phase"]] = max(float(record["epoch"]), last.get(record["phase"], 0.0))
    return max(1, int(np.ceil(sum(last.values()))))
