"""DClAM for arrays, frames and lazy collections, by scikit-learn's conventions.

Letters: ``n`` rows, ``d`` features, ``m`` numbers of a latent, ``k`` clusters.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from clam_dist.estimators.clusterer import Clusterer
from clam_dist.estimators.latents import silhouette_of_latents


class Deep(Clusterer):
    """Base of the estimators that cluster what an encoder makes of rows."""

    def _fit(self, X: Any, sample_weight: Any) -> Self:
        super()._fit(X, sample_weight)
        self._describe()
        return self

    def _publish(self) -> None:
        super()._publish()
        self.latent_prototypes_ = self._trained.parameters["prototypes"].astype(np.float64)

    def _describe(self) -> None:
        """Attributes that training leaves, beside those of every clustering."""
        self.latent_ = int(self._trained.settings["latent"])
        self.network_ = dict(self._trained.settings["network"])

    def transform(self, X: Any) -> Any:
        """Latents of rows, before any recursion.

        Returns
        -------
        ndarray (n, m)
            float32 for float32 rows, otherwise float64; nan where every feature is missing. Of a
            Dask input a lazy Dask array.
        """
        rows = self._fitted(X)
        dtype = np.float32 if rows.values.dtype == np.float32 else np.float64
        return rows.map_cells(
            partial(self._trained.represent, dtype=dtype), self._n_features_out, dtype
        )

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Rows that the decoder makes of latents, as :meth:`transform` gives them.

        Parameters
        ----------
        X : array-like (n, m)

        Returns
        -------
        ndarray of float64 (n, d)
            In original units; directions where ``scaling='unit'``.
        """
        check_is_fitted(self)
        z = check_array(X, dtype=np.float64, ensure_all_finite="allow-nan", input_name="X")
        if z.shape[1] != self._n_features_out:
            raise ValueError(
                f"X has {z.shape[1]} numbers a row, and latents have {self._n_features_out}: give "
                "what transform returns"
            )
        return self._trained.decode(z)

    def reconstruct(self, X: Any) -> Any:
        """Rows as the network gives them back, which the loss compares to what they were.

        DClAM's pass through the recursion between encoder and decoder, TDCM's do not.

        Returns
        -------
        ndarray (n, d), or a table, DataArray, Dataset or lazy Dask array like X
            In original units, nothing missing; nan for a row without any value.
        """
        rows = self._fitted(X)
        return rows.wrap_cells(rows.map_cells(self._trained.reconstruct, rows.width, np.float64))

    @property
    def _n_features_out(self) -> int:
        return int(self._trained.settings["latent"])


class DClAM(Deep):
    """Deep clustering with associative memories (Saha et al.).

    An encoder, the recursion of :class:`ClAM` among the latents, and a decoder, trained on one
    loss: rows, encoded, drawn to the prototypes and decoded, stay what they were. The network is
    first trained on reconstruction alone, then prototypes begin where k-means puts them among the
    latents. A fit tries four inverse temperatures from each of ``restarts`` networks, and keeps the
    candidate of greatest silhouette among those that use all clusters and whose loss is within a
    tenth of the pretrained network's; where there is none, that of the least loss, with a
    ``ConvergenceWarning``. The parameters have the names and meanings of a run's config.

    Parameters
    ----------
    n_clusters : int, list of int or 'auto', default=8
        Number of clusters ``k``. Of several, or of 2 to 20 for 'auto', the fewest within one
        standard error of the greatest silhouette.
    network : {'dense', 'convolutional', 'residual', 'transformer'} or dict, default='dense'
        The autoencoder; a dict has its ``kind`` and its sizes, ``{'kind': 'dense', 'hidden': [256,
        64]}``, or names a function of yours, ``{'kind': 'module', 'factory':
        'package.module:function'}``.
    image_shape : (int, int, int), optional
        Channels, height and width of a row that is an image; convolutional and residual networks
        need it.
    latent : int or 'auto', default='auto'
        Numbers ``m`` of a latent; as many as clusters by default.
    mask_value : {'mean', 'min', 'max'}, default='mean'
        What missing features are for the encoder. They take no part in the loss.
    pretrain_epochs : int or 'auto', default='auto'
        Passes over all rows, at the most, on reconstruction alone.
    beta : float, list of float or 'auto', default='auto'
        Inverse temperature in 1/length² of latents; a list makes a sweep. 'auto' tries four in the
        unit of k-means on the pretrained latents.
    steps : int or list of int, default=10
        Depth ``T`` of the recursion.
    step_size : float, optional
        ``α`` of each step, below 2; ``1 / steps`` by default.
    epochs : int or 'auto', default='auto'
        Passes over all rows, at the most, on the one loss.
    batch_rows : int or 'auto', default='auto'
        Rows of a step.
    learning_rate : float, list of float or 'auto', default='auto'
        Adam's first step length for prototypes.
    encoder_rate, decoder_rate : float or 'auto', default='auto'
        The same for the two halves of the network.
    restarts : int, default=4
        Networks that are pretrained.
    select : {'silhouette', 'loss'}, default='silhouette'
        What candidates are chosen by.
    scaling : {'standard', 'minmax', 'unit', 'none'}, default='standard'
        Zero mean and unit variance; 0 to 1; each row divided by its length; as it is. For images
        'minmax', or 'none' after a division of all pixels by one number: neither blows up pixels
        that hardly vary.
    device : {'auto', 'cpu', 'cuda'}, default='auto'
        Where to compute; 'auto' is CUDA where there is one.
    n_jobs : int, optional
        Threads; all usable cores by default, -2 all but one. Changes no result.
    verbose : int, default=0
        1 prints what is done, 2 also every pass.
    random_state : int, RandomState or None, default=None
        Seed of all draws. An int gives the same result every time, on any number of threads.

    Attributes
    ----------
    labels_ : ndarray of int32 (n,)
        Cluster of each row, the prototype nearest to its latent after the recursion; -1 where every
        feature is missing. Of a Dask input a lazy array.
    latent_prototypes_ : ndarray (k, m)
        The learned prototypes among the latents.
    prototypes_ : ndarray (k, d)
        The same, decoded, in original units.
    cluster_centers_, cluster_means_ : ndarray (k, d)
        Mean of each cluster's rows in original units. Where no value is seen, the prototype's, and
        nan.
    cluster_sizes_ : ndarray of float64 (k,)
        Rows of each cluster; their summed weights where there are weights.
    inertia_ : float
        Weighted sum of squared distances of rows to their cluster's mean, over seen features, in
        scaled units squared.
    silhouette_, silhouette_standard_error_ : float
        Euclidean silhouette of the latents **after** the recursion, by which candidates are chosen,
        on a sample of the rows. The recursion draws rows to prototypes, so that it is greater than
        that of any other space: compare it between settings of this model alone.
    silhouette_latents_ : float
        Of the latents before the recursion, as :meth:`transform` gives them, on at most 10 000
        rows. nan for one cluster.
    n_clusters_, beta_
        What was chosen.
    latent_, network_
        Numbers of a latent, and the network with every default written out.
    n_iter_ : int
        Passes that the winner was trained for, with those of its network.
    members_ : list of dict
        All candidates with settings and scores, as ``pandas.DataFrame(members_)`` takes them.
    history_ : list of dict
        Losses of the winner after each round; of its network's phase only where it is the first.
    n_features_in_ : int
    feature_names_in_ : ndarray of str (d,)
        Where the input has names.

    Notes
    -----
    Rows may be of any kind that :class:`ClAM` takes. A Dask input is read three times.

    :meth:`partial_fit` goes on with network and prototypes alike, and :meth:`save` writes both,
    without pickle.

    Examples
    --------
    >>> import numpy as np
    >>> from clam_dist import DClAM
    >>> generator = np.random.default_rng(0)
    >>> X = np.repeat([[0.0, 0, 9], [9, 9, 0]], 50, axis=0) + generator.normal(size=(100, 3))
    >>> model = DClAM(2, network={"kind": "dense", "hidden": [8]}, restarts=1, pretrain_epochs=20,
    ...               epochs=10, random_state=0).fit(X)
    >>> np.unique(model.labels_[:50]).size, np.unique(model.labels_[50:]).size
    (1, 1)
    >>> model.transform(X).shape, model.prototypes_.shape
    ((100, 2), (2, 3))
    """

    kind = "dclam"

    def __init__(
        self,
        n_clusters: Any = 8,
        *,
        network: Any = "dense",
        image_shape: Any = None,
        latent: Any = "auto",
        mask_value: str = "mean",
        pretrain_epochs: Any = "auto",
        beta: Any = "auto",
        steps: Any = 10,
        step_size: float | None = None,
        epochs: Any = "auto",
        batch_rows: Any = "auto",
        learning_rate: Any = "auto",
        encoder_rate: Any = "auto",
        decoder_rate: Any = "auto",
        restarts: int = 4,
        select: str = "silhouette",
        scaling: str = "standard",
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: int = 0,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.network = network
        self.image_shape = image_shape
        self.latent = latent
        self.mask_value = mask_value
        self.pretrain_epochs = pretrain_epochs
        self.beta = beta
        self.steps = steps
        self.step_size = step_size
        self.epochs = epochs
        self.batch_rows = batch_rows
        self.learning_rate = learning_rate
        self.encoder_rate = encoder_rate
        self.decoder_rate = decoder_rate
        self.restarts = restarts
        self.select = select
        self.scaling = scaling
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.random_state = random_state

    def _fit(self, X: Any, sample_weight: Any) -> Self:
        super()._fit(X, sample_weight)
        parts = self._open(X, reset=False).with_weights(sample_weight)
        seed = int(self._trained.settings["seed"])
        self.silhouette_latents_ = silhouette_of_latents(self._trained, parts, seed)
        return self
