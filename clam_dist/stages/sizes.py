"""What the memory of a worker depends on: numbers of rows, columns, clusters and members.

Letters: ``b`` rows of a decoded batch, ``d`` encoded features, ``k`` clusters, ``P`` members of a
group, ``W`` workers, ``N`` numbers in the parameters of a whole population, ``m`` dimensions of the
space that prototypes live in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clam_dist.data.features import rows_per_batch
from clam_dist.train.schedule import lanes_of

MIB = 2**20

Parts = dict[str, int]
"""Bytes by what they are for, in words that a person reads."""


@dataclass(frozen=True)
class Crowd:
    """Members that train as one product; see :func:`clam_dist.train.members.group_members`.

    Parameters
    ----------
    members, n_clusters, steps
        ``P``, ``k`` and depth of the recursion.
    hidden
        Features hidden at a time; 0 for the unmasked objective.
    """

    members: int
    n_clusters: int
    steps: int
    hidden: int

    def numbers(self, width: int, weighted: bool) -> int:
        """Parameters of all its members."""
        return self.members * self.n_clusters * (width + weighted)


@dataclass(frozen=True)
class Form:
    """What a model holds beside the prototypes; by default ClAM's plain forms, which add nothing.

    Parameters
    ----------
    by_gradient
        False for baselines, which pass over blocks of rows.
    own_kernels
        False where kernels make the difference in the rows' space: noise, robust losses, metrics.
    metric
        Numbers of one member's metric.
    latent
        ``m`` where prototypes live among latents, 0 where among rows.
    network
        Numbers of one member's network.
    derived
        Numbers of one member that follow from the others and from a sample.
    networks
        Pretrained networks, one a restart.
    exchanges
        Whether every micro-batch of a rank waits for sums over all.
    pass_bytes, label_bytes
        What tensors of one member's training pass over a micro-batch hold at their most, and those
        of labelling a block.
    columns
        Numbers a row that labels have on request.
    reconstructs
        Whether one of those columns takes the rows' reconstructions.
    """

    by_gradient: bool = True
    own_kernels: bool = True
    metric: int = 0
    latent: int = 0
    network: int = 0
    derived: int = 0
    networks: int = 0
    exchanges: bool = False
    pass_bytes: int = 0
    label_bytes: int = 0
    columns: int = 0
    reconstructs: bool = False


PLAIN = Form()


@dataclass(frozen=True)
class Sizes:
    """All that a worker's memory depends on.

    Parameters
    ----------
    n_rows, width
        Rows of the source and encoded features of each.
    columns
        Columns that are read, those kept in the output included.
    stored_bytes, nested_bytes, kept_bytes
        Bytes a row of the features' columns as Arrow holds them, of those that are lists, and of
        the kept ones.
    group_rows
        Rows of the largest row group.
    shard_rows, sample_rows, query_rows, gathered_rows
        Rows of a shard, of the sample, of the silhouette's queries, of ``train.rows`` (0 for all).
    missing, weighted, weighted_model
        Whether cells can be missing, rows have weights, prototypes have weights.
    references
        Rows each cluster's silhouettes are measured against; None for all rows.
    search, finalists
        The population as the search begins it, and as it trains on all rows.
    batch_rows, search_batch_rows
        Rows of a global batch of each phase.
    workers, threads
        Processes, and compute threads of a rank.
    buffer_bytes
        Bound on the buffers that read shards in training.
    form
        What the kind of model adds.
    """

    n_rows: int
    width: int
    columns: int
    stored_bytes: int
    nested_bytes: int
    kept_bytes: int
    group_rows: int
    shard_rows: int
    sample_rows: int
    query_rows: int
    gathered_rows: int
    missing: bool
    weighted: bool
    weighted_model: bool
    references: int | None
    search: tuple[Crowd, ...]
    finalists: tuple[Crowd, ...]
    batch_rows: int
    search_batch_rows: int
    workers: int
    threads: int
    buffer_bytes: int
    form: Form = PLAIN

    @property
    def batch(self) -> int:
        """``b``, rows of a decoded batch."""
        return min(rows_per_batch(self.width), self.n_rows)

    @property
    def row_bytes(self) -> int:
        """Of a scaled row with its weight."""
        return 4 * self.width + 8 * self.weighted

    @property
    def shown(self) -> int:
        """``m``, the width of rows where silhouettes are taken."""
        return self.form.latent or self.width

    @property
    def shown_bytes(self) -> int:
        """Of such a row with its weight."""
        return 4 * self.shown + 8 * self.weighted

    @property
    def most_clusters(self) -> int:
        """The greatest ``k`` of the sweep."""
        return max(crowd.n_clusters for crowd in self.search)

    @property
    def shards(self) -> int:
        """Files that the rows are cut into."""
        return -(-self.n_rows // self.shard_rows)

    def numbers(self, crowds: Sequence[Crowd]) -> int:
        """``N`` of a population."""
        form = self.form
        each = form.metric + form.network + form.derived
        return sum(
            crowd.numbers(self.shown, self.weighted_model) + crowd.members * each
            for crowd in crowds
        )

    def owned_rows(self, batch_rows: int) -> int:
        """Rows of a batch that one rank reads; a single micro-batch is read by all."""
        lanes = lanes_of(batch_rows)
        owned = 1 if lanes == 1 else max(1, -(-lanes // self.workers))
        return -(-min(batch_rows, self.n_rows) * owned // lanes)


def most(steps: Sequence[Parts]) -> Parts:
    """The parts of the step that holds most."""
    return max(steps, key=lambda parts: sum(parts.values()))
