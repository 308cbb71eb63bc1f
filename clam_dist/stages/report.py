"""Stage 6: the model's bundle and the page that people read."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from typing import Any

import numpy as np

from clam_dist import __version__
from clam_dist.assign import Labeller, Recursive
from clam_dist.models.base import Equations
from clam_dist.models.bundle import bundle_settings, save_bundle
from clam_dist.models.factory import MODELS
from clam_dist.reporting.report import write_report
from clam_dist.stages.context import STAGE_NAMES, Context, StageResult, strictly
from clam_dist.stages.evaluate import read_sums
from clam_dist.stages.pictures import Tempered, model_arrays
from clam_dist.stages.scoring import assignment_of
from clam_dist.stages.sweep import save_sweep, sweep_dataset
from clam_dist.stages.train import read_result

PACKAGES = ("torch", "numpy", "pyarrow", "dask", "distributed", "scikit-learn", "xarray", "prefect")


def run(context: Context) -> StageResult:
    """Write ``model/``, ``sweep.nc`` and ``report.html``."""
    write_bundle(context)
    result = read_result(context)
    by_beta = context.config.model.beta != "auto"
    sweep = context.output / "sweep.nc"
    save_sweep(sweep, sweep_dataset(result["members"], result["baselines"], by_beta=by_beta))
    report = context.output / "report.html"
    write_report(report, **report_inputs(context), pictures=model_arrays(context))
    files = [path for path in (context.output / "model").rglob("*") if path.is_file()]
    return StageResult(
        {"report": "report.html", "model": "model", "sweep": "sweep.nc"},
        [report, sweep, *sorted(files)],
    )


def write_bundle(context: Context) -> None:
    """The model as it can be used without the source: parameters, means, scaling, schema."""
    assignment = assignment_of(context)
    parameters = Labeller(assignment).parameters
    sums, scaling = read_sums(context), context.scaling
    settings = bundle_settings(assignment.settings, assignment.member)
    save_bundle(
        context.output / "model",
        parameters=parameters,
        mask_value=np.asarray(assignment.settings["mask_value"], dtype=np.float32),
        settings=settings
        | {
            "missing": context.config.prepare.missing,
            # What missing values become where prepare.missing is mean, in original units.
            "fill": [_plain(value) for value in context.statistics.mean],
            "version": __version__,
        },
        schema=context.schema.to_json(),
        scaling=scaling.to_json(),
        names=context.schema.names,
        cluster_means=scaling.center + scaling.scale * sums.means,
        cluster_sizes=sums.count,
    )


def report_inputs(context: Context) -> dict[str, Any]:
    """What both the page and the flow's artifact show, as plain values."""
    evaluated, result = context.data("evaluate"), read_result(context)
    return {
        "metrics": evaluated["metrics"] | {"seconds": stage_seconds(context)},
        "run": run_record(context),
        "history": result["history"],
        "profile": profile_table(context),
        "cluster_profile": evaluated["clusters"],
        "silhouettes": evaluated["bands"],
        "members": result["members"],
        "passed_over": result["passed_over"],
        "baselines": result["baselines"],
        "model": what_to_say(context),
    }


def what_to_say(context: Context) -> dict[str, Any]:
    """What sets the model apart for those who read of it, as the reports take it."""
    model, config = assignment_of(context).model(), context.config
    trained = MODELS[config.model.kind].by_gradient
    return {
        "trained": trained,
        "tempered": isinstance(model, Tempered),
        "own_space": model.own_space,
        "recursive": isinstance(model, Recursive),
        "faithful": model.reconstructs,
        "chosen_by": config.train.select if trained else "inertia",
        "loss": loss_in_words(model),
    }


def loss_in_words(model: Equations) -> str:
    """What a model's loss is of, and in what unit."""
    if model.exchanges:
        return "Loss for each row, of its assignments, their balance and its reconstruction"
    if model.metric_name == "cosine":
        return "Loss for each entry of the rows' directions, squared"
    kind = str(getattr(model, "loss", "squared"))
    if kind != "squared":
        return f"{kind.capitalize()} loss for each entry in scaled units"
    return "Loss for each entry in scaled units squared"


def stage_seconds(context: Context) -> dict[str, float]:
    """Wall seconds of each stage that is done, in the run that did it."""
    done = (name for name in STAGE_NAMES if name in context.manifests)
    return {name: float(context.manifests[name]["seconds"]) for name in done}


def profile_table(context: Context) -> dict[str, Any]:
    """Each feature's statistics in original units."""
    statistics = context.statistics
    columns = {
        "count": statistics.count,
        "missing": statistics.missing,
        "mean": statistics.mean,
        "deviation": np.sqrt(statistics.variance),
        "minimum": statistics.minimum,
        "maximum": statistics.maximum,
    }
    rows = [
        {"feature": name} | {key: _plain(values[i]) for key, values in columns.items()}
        for i, name in enumerate(context.schema.names)
    ]
    # Those of the model first: a summary shows only the first few.
    told = [*context.data("train").get("warnings", ()), *context.data("profile")["warnings"]]
    return {"features": rows, "warnings": told}


def _plain(value: Any) -> float | int | None:
    number = value.item()
    return number if number - number == 0 else None


def run_record(context: Context) -> dict[str, Any]:
    """``run.json``: the config with its automatic values resolved, and what it was done with."""
    train = context.data("train")
    source, told = context.source, what_to_say(context)
    tempered = {"model.beta": train["winner"]["beta"]} if told["tempered"] else {}
    trained = {
        "model.objective": train["winner"]["objective"],
        "train.batch_rows": train["batch_rows"],
        "train.epochs": train["epochs"],
        "train.learning_rate": train["winner"]["learning_rate"],
        "train.device": train["device"],
        "train.bytes_read": train["bytes_read"]["train"],
        "search.bytes_read": train["bytes_read"]["search"],
    }
    return {
        "config": context.config.public_dict(),
        "resolved": {
            "model.n_clusters": train["winner"]["n_clusters"],
            **tempered,
            **(trained if told["trained"] else {}),
            "prepare.shard_rows": context.shard_rows(source.n_rows, context.schema.width),
            "evaluate.references": context.data("assign")["references"],
            "cluster.workers": context.executor.workers if context.started else None,
            "training_ranks": train["ranks"],
        },
        "candidates": strictly({"all": read_result(context)["members"]})["all"],
        "digest": context.config.run_digest(),
        "stages": {
            name: {"digest": manifest["digest"], "seconds": manifest["seconds"]}
            for name, manifest in context.manifests.items()
        },
        "source": {
            "uri": context.config.source.uri,
            "files": [
                {"name": f.name, "size": f.size, "modified": f.modified, "footer": f.footer}
                for f in source.files
            ],
            "domains": context.data("profile")["domains"],
        },
        "memory": context.budget.to_json() if context.budget else None,
        "versions": {"python": sys.version.split()[0], "clam_dist": __version__}
        | {package: version(package) for package in PACKAGES},
        "machine": {"system": platform.platform()},
    }
