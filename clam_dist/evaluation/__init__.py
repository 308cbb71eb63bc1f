"""Scores of a labelling: silhouettes with standard errors, sizes, inertia, agreement."""

from __future__ import annotations

from clam_dist.evaluation.agreement import ari, nmi
from clam_dist.evaluation.distances import DistanceSums, distance_sums
from clam_dist.evaluation.estimate import (
    QueryScores,
    SilhouetteResult,
    combine,
    reference_error,
    silhouette_bands,
)
from clam_dist.evaluation.linear import (
    cosine_silhouette,
    simplified_silhouette,
    squared_silhouette,
    undefined_because,
)
from clam_dist.evaluation.moments import ClusterMoments
from clam_dist.evaluation.queries import score_by, score_cosines, score_queries, score_sums
from clam_dist.evaluation.references import (
    ReferenceCollector,
    References,
    auto_references,
    reference_sizes,
)
from clam_dist.evaluation.scores import AssignSums, cluster_profile
from clam_dist.evaluation.silhouette import silhouette_sampled

__all__ = [
    "AssignSums",
    "ClusterMoments",
    "DistanceSums",
    "QueryScores",
    "ReferenceCollector",
    "References",
    "SilhouetteResult",
    "ari",
    "auto_references",
    "cluster_profile",
    "combine",
    "cosine_silhouette",
    "distance_sums",
    "nmi",
    "reference_error",
    "reference_sizes",
    "score_by",
    "score_cosines",
    "score_queries",
    "score_sums",
    "silhouette_bands",
    "silhouette_sampled",
    "simplified_silhouette",
    "squared_silhouette",
    "undefined_because",
]
