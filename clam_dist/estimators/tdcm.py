"""TDCM for arrays, frames and lazy collections, by scikit-learn's conventions.

Letters: ``n`` rows, ``d`` features, ``m`` numbers of a latent, ``k`` clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from clam_dist.errors import ConfigError, DataError
from clam_dist.estimators.deep import Deep
from clam_dist.estimators.latents import adapted
from clam_dist.estimators.parameters import as_value_error
from clam_dist.evaluation.scores import AssignSums


class TDCM(Deep):
    """Transferable deep clustering: centroids that find themselves in rows they never saw.

    An encoder is trained such that a few attention blocks, from the same start every time, carry
    centroids to clusters of the latents at hand. :meth:`adapt` lets them settle in the rows of a
    new domain, in a few passes without any training. The parameters have the names and meanings of
    a run's config.

    Parameters
    ----------
    n_clusters, network, image_shape, latent, mask_value, pretrain_epochs
        As of :class:`DClAM`.
    blocks : int, default=3
        Attention blocks ``L``, each one pass of the centroids over the rows.
    score_function : {'identity', 'softplus', 'log1p'}, default='identity'
        Function of the squared distances in an assignment; ``score`` in a config.
    temperature : float, default=1.0
        Of the assignments; the smaller, the harder.
    balance : float, default=1.0
        Weight of the clusters' uneven sizes in the loss.
    reconstruction : float, default=10.0
        Weight of the squared error of a decoded entry in the loss; 0 leaves the decoder as it was
        pretrained.
    epochs, batch_rows, learning_rate, encoder_rate, decoder_rate
        As of :class:`DClAM`; ``learning_rate`` is that of the learned metric among latents.
    restarts, select, scaling, device, n_jobs, verbose, random_state
        As of :class:`DClAM`.

    Attributes
    ----------
    labels_ : ndarray of int32 (n,)
        Cluster of each row: the largest assignment after the last block. -1 where every feature is
        missing. Of a Dask input a lazy array.
    latent_prototypes_ : ndarray (k, m)
        The centroids among standardised latents, in the rows that were fitted or last adapted to.
    prototypes_ : ndarray (k, d)
        The same, decoded, in original units.
    silhouette_, silhouette_standard_error_ : float
        Euclidean silhouette of the standardised latents on a sample of the rows of :meth:`fit`.
    cluster_centers_, cluster_means_, cluster_sizes_, inertia_
        As of :class:`DClAM`, of the rows that were fitted, or last adapted to.
    n_clusters_, latent_, network_, n_iter_, members_, history_, n_features_in_, feature_names_in_
        As of :class:`DClAM`.

    Notes
    -----
    Rows may be of any kind that :class:`ClAM` takes.

    Latents are standardised by their mean and deviation over the rows at hand, and centroids settle
    among these, so that both follow a new domain by themselves. The scaling of features does not:
    it stays that of :meth:`fit`, since the encoder knows rows in these units. A shift of all
    features comes out as one of the latents; to rescale feature by feature would also undo what
    tells domains apart within rows (where the strokes of a turned digit lie). Where a domain
    differs by units, convert it before.

    Batches of several domains at once hurt, since centroids settle in the rows of a batch. Of a few
    source domains, ``fit`` all with ``epochs=1``, which trains the network, then some thirty times
    ``partial_fit`` one after the other (``tests/bench/transfer.py``: digits turned by up to 30
    degrees, adapted to 45).

    Examples
    --------
    >>> import numpy as np
    >>> from clam_dist import TDCM
    >>> generator = np.random.default_rng(0)
    >>> X = np.repeat([[0.0, 0, 9], [9, 9, 0]], 50, axis=0) + generator.normal(size=(100, 3))
    >>> model = TDCM(2, network={"kind": "dense", "hidden": [8]}, restarts=1, pretrain_epochs=20,
    ...              epochs=10, random_state=0).fit(X)
    >>> moved = X[:80] + 2.0
    >>> labels = model.adapt(moved).labels_
    >>> np.unique(labels[:50]).size, np.unique(labels[50:]).size
    (1, 1)
    >>> bool((labels == model.predict(moved)).all())
    True
    """

    kind = "tdcm"
    renamed: ClassVar[Mapping[str, str]] = {"score_function": "score"}

    def __init__(
        self,
        n_clusters: Any = 8,
        *,
        network: Any = "dense",
        image_shape: Any = None,
        latent: Any = "auto",
        mask_value: str = "mean",
        pretrain_epochs: Any = "auto",
        blocks: int = 3,
        score_function: str = "identity",
        temperature: float = 1.0,
        balance: float = 1.0,
        reconstruction: float = 10.0,
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
        self.blocks = blocks
        self.score_function = score_function
        self.temperature = temperature
        self.balance = balance
        self.reconstruction = reconstruction
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

    def adapt(self, X: Any, sample_weight: Any = None) -> Self:
        """Let the centroids settle in new rows, without training.

        Reads the rows ``1 + blocks`` times and once more for the clusters' means. Clusters keep no
        numbers across domains: which is which follows from the same start alone.

        Parameters
        ----------
        X : array-like, table, tensor or lazy collection (n, d)
            Features as in :meth:`fit`, in the same units.
        sample_weight : array-like (n,), optional

        Returns
        -------
        self
            Labels, centroids and what is known of clusters are those of the new rows; network,
            scaling, ``silhouette_``, ``members_`` and ``history_`` are left as they were.

        Raises
        ------
        ValueError
            No row has a value and a positive weight, or the rows do not fit.
        """
        rows = self._fitted(X)
        parts = rows.with_weights(sample_weight)
        try:
            self._trained = adapted(self._trained, parts)
        except (ConfigError, DataError) as error:
            raise as_value_error(error) from error
        self._sums = AssignSums.zeros(self.n_clusters_, rows.width)
        for x, weight in parts():
            self._sums = self._sums.merge(self._trained.sums(x, weight))
        self._publish()
        self.labels_ = rows.map_rows(self._trained.labels, np.int32)
        return self
