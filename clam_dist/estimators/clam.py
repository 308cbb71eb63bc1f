"""ClAM for arrays, frames and lazy collections, by scikit-learn's conventions.

Letters: ``n`` rows, ``d`` features, ``k`` clusters.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from clam_dist.estimators.clusterer import Clusterer


class ClAM(Clusterer):
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
    objective : {'auto', 'masked', 'unmasked', 'noise'}, default='auto'
        Loss on hidden features (equation 9), on all features (8), or both tried; or on all features
        of rows that start with noise (5).
    noise : float, default=0.3
        Standard deviation of that noise in scaled units.
    loss : {'squared', 'huber', 'manhattan'}, default='squared'
        What a difference costs; the last two heed outliers less.
    huber : float, default=1.0
        Where Huber's loss turns from square to line, in scaled units.
    metric : {'none', 'diagonal', 'full'}, default='none'
        Learn a scale for each feature, or a linear map of them, beside the prototypes.
    weighted : bool, default=False
        Learn a weight for each prototype (equation 10).
    geometry : {'euclidean', 'spherical'}, default='euclidean'
        Distances, or cosines of rows taken as directions (equation 12). Rows of zeros have the
        label -1. Without ``scaling='none'`` directions are those from the mean.
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
        noise: float = 0.3,
        loss: str = "squared",
        huber: float = 1.0,
        metric: str = "none",
        weighted: bool = False,
        geometry: str = "euclidean",
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
        self.noise = noise
        self.loss = loss
        self.huber = huber
        self.metric = metric
        self.weighted = weighted
        self.geometry = geometry
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

    def transform(self, X: Any) -> Any:
        """Distance of each row to each prototype, over the features seen, in scaled units.

        On the sphere one minus the cosine; under a learned metric the distance that it gives.

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

    def predict_proba(self, X: Any) -> Any:
        """How much of each row belongs to each cluster.

        The softmax that the last step of the dynamics ends in: ``softmax(-β ‖ρ - x_T‖²)`` over the
        prototypes ``ρ``, ``x_T`` being where the row has come to. The greatest is the label. At a
        large ``beta_`` they are all but 0 and 1, and they are no calibrated probabilities.

        Returns
        -------
        ndarray (n, k)
            Each row's sum is 1; nan where every feature is missing, and on the sphere for rows of
            zeros. float32 for float32 rows, otherwise float64. Of a Dask input a lazy Dask array.
        """
        rows = self._fitted(X)
        dtype = np.float32 if rows.values.dtype == np.float32 else np.float64
        shares = partial(self._trained.memberships, dtype=dtype)
        return rows.map_cells(shares, self.n_clusters_, dtype)

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

        Raises
        ------
        ValueError
            On the sphere, and under a learned metric.

        Notes
        -----
        What fills best is not what clusters best: the silhouette chooses few and sharp clusters.
        ``select="loss"`` with some 20 to 80 clusters comes near nearest-neighbour imputation
        (``tests/bench/complete.py``).
        """
        rows = self._fitted(X)
        self._trained.check_complete()
        found = rows.map_cells(self._trained.complete, rows.width, rows.values.dtype)
        return rows.wrap_cells(found)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_clusters_)
