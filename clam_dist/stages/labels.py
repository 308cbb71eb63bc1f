"""The work of one fragment in assign: rows read once, labelled, scored and written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from clam_dist.assign import Assignment, Labeller
from clam_dist.data.features import FeatureSchema
from clam_dist.data.rows import ScaledRows, read_scaled
from clam_dist.data.source import Fragment, Source
from clam_dist.data.statistics import Scaling
from clam_dist.data.writer import LabelsWriter
from clam_dist.evaluation.estimate import QueryScores
from clam_dist.evaluation.queries import score_by
from clam_dist.evaluation.references import References
from clam_dist.evaluation.scores import AssignSums
from clam_dist.stages.columns import AddedColumns


@dataclass(frozen=True)
class LabelPlan:
    """What every fragment's task needs; paths and small values.

    Parameters
    ----------
    queries
        ``.npy`` of the global rows to score, rising.
    references
        ``.npz`` of :class:`References` to score them against in this pass; None where they are
        scored already (or cannot be), then ``scored`` is the ``.npz`` of their scores, if any.
        By cosines the moments that come with references are enough.
    columns_added
        Further columns of labels, as :mod:`clam_dist.stages.columns` names them.
    """

    source: Source
    schema: FeatureSchema
    scaling: Scaling
    assignment: Assignment
    missing: str
    fill: np.ndarray
    weight: str | None
    label: str | None
    keep: tuple[str, ...]
    queries: str
    references: str | None
    scored: str | None
    storage_options: dict[str, Any]
    columns_added: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelTask:
    """One fragment and the file its labels go to."""

    fragment: Fragment
    path: str


@dataclass(frozen=True)
class LabelledFragment:
    """What a task found out."""

    path: str
    sums: AssignSums
    scores: QueryScores | None


def label_fragment(task: LabelTask, *, plan: LabelPlan) -> LabelledFragment:
    """Label one fragment into one file.

    Holds a batch of rows and one row group of kept columns at a time.
    """
    fragment, source = task.fragment, plan.source
    labeller = Labeller(plan.assignment)
    k = plan.assignment.n_clusters
    queries = np.load(plan.queries)
    scored = None if plan.scored is None else np.load(plan.scored)["silhouette"]
    references = None
    if plan.references is not None:
        with np.load(plan.references) as arrays:
            references = References.from_arrays(arrays)
    sums = AssignSums.zeros(k, plan.schema.width)
    scores: list[QueryScores] = []
    fields = source.arrow_schema
    kept = pa.schema([fields.field(name) for name in plan.keep])
    row_groups = source.files[fragment.file].row_groups[slice(*fragment.row_groups)]
    added = AddedColumns(labeller, plan.columns_added, plan.schema.width)
    with LabelsWriter(task.path, kept, row_groups, added.fields) as writer:
        for rows in read_scaled(
            source,
            fragment,
            plan.schema,
            plan.scaling,
            missing=plan.missing,
            fill=plan.fill,
            weight_column=plan.weight,
            columns=_columns(plan),
            storage_options=plan.storage_options,
        ):
            first, last = np.searchsorted(queries, [rows.first_row, rows.first_row + len(rows.x)])
            here = queries[first:last] - rows.first_row
            # Where most rows are scored, what their labels were found from serves for that too.
            shown: np.ndarray | None = None
            if references is not None and 2 * len(here) > len(rows.x):
                labels, distances, shown = labeller.label_and_represent(rows.x)
            else:
                labels, distances = labeller.label(rows.x)
            sums = sums.merge(
                AssignSums.of(
                    rows.x,
                    labels,
                    k,
                    distances=distances,
                    weight=rows.w,
                    truth=_truth(rows.batch, plan.label),
                )
            )
            silhouette = np.full(len(labels), np.nan, np.float32)
            if scored is not None:
                silhouette[here] = scored[first:last]
            elif references is not None and len(here):
                z = labeller.represent(rows.x[here]) if shown is None else shown[here]
                part = _score(labeller, rows, z, labels[here], here, references)
                scores.append(part)
                silhouette[part.rows - rows.first_row] = part.silhouette
            writer.write(rows.batch, labels, distances, silhouette, added.of(rows.x))
    return LabelledFragment(task.path, sums, QueryScores.join(scores) if scores else None)


def _score(
    labeller: Labeller,
    rows: ScaledRows,
    z: np.ndarray,
    labels: np.ndarray,
    here: np.ndarray,
    references: References,
) -> QueryScores:
    weight = None if rows.w is None else rows.w[here]
    return score_by(labeller.metric, z, labels, rows.first_row + here, references, weight)


def _columns(plan: LabelPlan) -> Sequence[str]:
    return [*plan.keep, *([plan.label] if plan.label else [])]


def _truth(batch: pa.RecordBatch, label: str | None) -> tuple[np.ndarray, list[str]] | None:
    """Codes ``(n,)`` and names of a true-label column; nulls are -1."""
    if label is None:
        return None
    column = batch.column(label)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, [str(name) for name in column.dictionary.to_pylist()]
