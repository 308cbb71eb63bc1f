"""A finished model applied to another source: labels in the same form, with no training."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from clam_dist.assign import Assignment
from clam_dist.config import Config
from clam_dist.data.features import FeatureSchema
from clam_dist.data.parquet import open_parquet
from clam_dist.data.source import Source
from clam_dist.data.statistics import Scaling
from clam_dist.errors import ConfigError, DataError
from clam_dist.evaluation.agreement import ari, nmi
from clam_dist.evaluation.scores import AssignSums
from clam_dist.executor import Event
from clam_dist.launch import make_executor
from clam_dist.manifests import write_json
from clam_dist.models.bundle import Bundle, load_bundle, save_bundle
from clam_dist.ownership import claim
from clam_dist.stages import adapting, budget
from clam_dist.stages.adapting import adaptive
from clam_dist.stages.assign import label_files
from clam_dist.stages.columns import check_columns
from clam_dist.stages.context import Context, strictly
from clam_dist.stages.labels import LabelPlan


def apply_model(
    model: str | Path,
    config: Config,
    *,
    adapt: bool = False,
    force: bool = False,
    on_event: Callable[[Event], None] | None = None,
) -> dict[str, Any]:
    """Label a source with a model that another run left; write ``labels/`` and ``metrics.json``.

    Parameters
    ----------
    model
        The ``model/`` folder of a finished run.
    config
        Its ``source``, ``cluster``, ``work`` and ``output`` sections are used, and
        ``evaluate.columns``.
    adapt
        First let the model find its centroids in the new source, without training; the adapted
        model goes to ``model/`` in the output.
    force
        Replace an output that another model or source has filled.
    on_event
        Takes the run's events.

    Returns
    -------
    dict
        ``n_rows, n_features, n_clusters, n_used, cluster_sizes, unlabelled_rows, inertia,
        mean_distance, seconds`` and, with a label column, ``nmi`` and ``ari``.

    Raises
    ------
    ConfigError
        There is no model, it cannot adapt or give the columns asked for, or the output folder is
        not to be used.
    DataError
        The source lacks a feature of the model or has it in another form.
    """
    began = time.monotonic()
    config = config.resolve_templates(datetime.now())
    _refuse_training_output(Path(config.output.uri))
    bundle = load_bundle(model)
    check_columns(bundle.model(), config.evaluate.columns, bundle.settings["kind"])
    if adapt:
        adaptive(bundle.model(), bundle.settings["kind"])
    print_of_model = _fingerprint(bundle) + ("-adapted" if adapt else "")
    record = config.result_dict() | {"model": {"fingerprint": print_of_model}}
    digest = hashlib.sha256(f"{config.run_digest()}{print_of_model}".encode()).hexdigest()
    with claim(
        config.output.uri,
        run_id=uuid.uuid4().hex[:12],
        digest=digest,
        config_public=record,
        force=force,
    ) as held:
        context = Context(
            config=config,
            output=held.output.absolute(),
            work=Path(config.work_folder()).absolute(),
            make_executor=make_executor,
            on_event=on_event or _ignore,
        )
        if held.already_done:
            context.emit("already done", output=str(held.output))
            return _metrics_on_disk(held.output)
        try:
            metrics = _label_all(context, bundle, adapt=adapt)
        finally:
            peaks = context.close()
        metrics["seconds"] = {"total": time.monotonic() - began}
        metrics["peak_rss_bytes"] = peaks
        if context.budget is not None:
            metrics["projected_rss_bytes"] = {context.budget.name: context.budget.peak}
        write_json(held.output / "metrics.json", strictly(metrics))
        held.succeed()
        if not config.work.keep:
            shutil.rmtree(context.work)
    return metrics


def _ignore(event: Event) -> None:
    del event


def _metrics_on_disk(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "metrics.json").read_text(encoding="utf-8"))
    return found


def _refuse_training_output(output: Path) -> None:
    """Labels of other rows would stand beside the run's own model and report."""
    if (output / "run.json").exists():
        raise ConfigError(
            f"output.uri: {output} holds the results of a training run, which no --force replaces "
            "by labels alone; name another folder"
        )


def _label_all(context: Context, bundle: Bundle, *, adapt: bool) -> dict[str, Any]:
    config, options = context.config, context.storage_options
    source = open_parquet(config.source.uri, options)
    schema = FeatureSchema.from_json(bundle.schema)
    check_features(source, schema)
    context.size = (source.n_rows, schema.width)
    settings = bundle.settings
    n_clusters, steps = int(settings["n_clusters"]), int(settings["steps"])
    budget.announce_labels(context, source, schema, n_clusters, steps)
    folder = context.work / "assign"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    labels = context.output / "labels"
    shutil.rmtree(labels, ignore_errors=True)
    save_file(bundle.parameters, folder / "model.safetensors")
    np.save(folder / "queries.npy", np.empty(0, np.int64))
    assignment = Assignment(
        path=str(folder / "model.safetensors"),
        settings=bundle.model_settings,
        member=settings,
    )
    plan = LabelPlan(
        source=source,
        schema=schema,
        scaling=Scaling.from_json(bundle.scaling),
        assignment=assignment,
        missing=settings["missing"],
        fill=np.asarray(settings["fill"], dtype=np.float64),
        weight=config.source.weight,
        label=config.source.label,
        keep=tuple(config.source.keep),
        queries=str(folder / "queries.npy"),
        references=None,
        scored=None,
        storage_options=options,
        columns_added=config.evaluate.columns,
    )
    parameters = bundle.parameters
    if adapt:
        parameters = adapting.adapt(context, plan)
        save_file(parameters, folder / "model.safetensors")
    sums, _ = label_files(context, plan, labels, folder / "parts")
    if adapt:
        _save_adapted(context.output / "model", bundle, parameters, sums)
    weight = float(sums.weight.sum())
    metrics: dict[str, Any] = {
        "n_rows": source.n_rows,
        "n_features": schema.width,
        "n_clusters": assignment.n_clusters,
        "n_used": sums.n_used,
        "cluster_sizes": sums.count.tolist(),
        "unlabelled_rows": sums.unlabelled,
        "inertia": sums.inertia,
        "mean_distance": float(sums.distance.sum() / weight) if weight > 0 else None,
    }
    if config.source.label is not None:
        table = sums.contingency()
        known = int(table.sum()) > 0
        metrics |= {"nmi": nmi(table) if known else None, "ari": ari(table) if known else None}
    return metrics


def _save_adapted(
    path: Path, bundle: Bundle, parameters: dict[str, Tensor], sums: AssignSums
) -> None:
    """The bundle again, with other parameters and what is known of the clusters in a new source."""
    scaling = Scaling.from_json(bundle.scaling)
    save_bundle(
        path,
        parameters={name: value.numpy() for name, value in parameters.items()},
        mask_value=bundle.dataset["mask_value"].values,
        settings=bundle.settings,
        schema=bundle.schema,
        scaling=bundle.scaling,
        names=bundle.dataset["feature"].values.tolist(),
        cluster_means=scaling.center + scaling.scale * sums.means,
        cluster_sizes=sums.count,
    )


def check_features(source: Source, schema: FeatureSchema) -> None:
    """Make sure that the source has every feature of a model, in the same form.

    Raises
    ------
    DataError
        Naming every column that is missing or of another kind.
    """
    columns = {column.name: column for column in source.columns}
    problems = []
    for feature in schema.features:
        column = columns.get(feature.column)
        if column is None:
            spare = columns.keys() - set(schema.columns)
            near = get_close_matches(feature.column, spare, 1)
            hint = f"; the nearest is '{near[0]}'" if near else ""
            problems.append(f"column '{feature.column}' is missing{hint}")
        elif column.kind != feature.kind:
            problems.append(f"column '{column.name}' is {column.kind}, not {feature.kind}")
        elif column.width is not None and column.width != feature.width:
            problems.append(
                f"column '{column.name}' has {column.width} numbers a row, not {feature.width}"
            )
    if problems:
        raise DataError(
            f"source.uri: '{source.uri}' does not fit the model: {'; '.join(problems)}. Rename "
            "or add the columns, or train a model on this source."
        )


def _fingerprint(bundle: Bundle) -> str:
    digest = hashlib.sha256(repr(sorted(bundle.settings.items())).encode())
    for name in ("center", "scale", "mask_value"):
        digest.update(np.ascontiguousarray(bundle.dataset[name].values).tobytes())
    for _, value in sorted(bundle.parameters.items()):
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()[:16]


def check_overrides(overrides: list[str]) -> None:
    """Refuse settings that labelling with a finished model does not use.

    Raises
    ------
    ConfigError
        Naming the first key outside ``source``, ``cluster`` and ``work`` but ``evaluate.columns``.
    """
    for override in overrides:
        key = override.partition("=")[0]
        section = override.partition(".")[0]
        if section not in ("source", "cluster", "work") and key != "evaluate.columns":
            raise ConfigError(
                f"--set {key}: assign takes only keys under source, cluster and work, and "
                "evaluate.columns"
            )
