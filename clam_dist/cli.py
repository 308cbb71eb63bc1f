"""The command ``clam-dist``: runs without Prefect, demo data, a look into a source.

Commands of packages above this one (``serve``) come as entry points of the group
``clam_dist.commands``, for nothing here imports them.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from clam_dist.cli_errors import exit_code_of, results_on_stdout, sigterm_raises

Command = TypeVar("Command", bound=Callable[..., None])

app = typer.Typer(
    name="clam-dist",
    help="Cluster a table larger than memory: a label for every row, with associative memories.",
    epilog="Exit codes: 0 done, 2 wrong command or config, 3 wrong data, 4 failed, "
    "130 and 143 stopped (run the same again to go on).",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=value", help="Set one config key, as YAML; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and only that.")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments : sequence of str, optional
        Default: this process's.

    Returns
    -------
    int
        0 done; 2 wrong command or config; 3 wrong data; 4 failed; 130, 143 stopped.
    """
    try:
        with sigterm_raises():
            app(args=None if arguments is None else list(arguments), prog_name="clam-dist")
    except SystemExit as ending:
        # Typer's own endings: 0 after --help, 2 for a wrong option.
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException as caught:
        return exit_code_of(caught)
    return 0


def _command(function: Command) -> Command:
    """Make ``function`` a command whose errors end with their message and exit code.

    Caught here, for Typer would turn ctrl-C into a bare exit code 1.
    """

    @functools.wraps(function)
    def guarded(**values: Any) -> None:
        try:
            function(**values)
        except BaseException as caught:
            raise SystemExit(exit_code_of(caught)) from None

    app.command()(guarded)
    return function


def _version(asked: bool) -> None:
    if asked:
        from clam_dist import __version__

        print(f"clam-dist {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command's name."""


@_command
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="What to run.")],
    set_: Overrides = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a finished output made with another config.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Label every row of a source, as a config says.

    \b
    Examples:
      clam-dist run config.yaml
      clam-dist run config.yaml --set model.n_clusters=12 --set output.uri=runs/twelve
      clam-dist run config.yaml --json > metrics.json

    A run that was stopped or killed goes on where it was when the same command is given again.
    """
    from clam_dist.config import load_config

    # Before the heavy imports: a wrong config is told at once.
    settings = load_config(config, set_ or [])

    from clam_dist import stages
    from clam_dist.reporting.display import ConsoleDisplay

    with (
        ConsoleDisplay() as display,
        stages.open_run(settings, force=force, on_event=display) as opened,
    ):
        output, already_done = opened.output, opened.already_done
        if already_done:
            metrics = opened.metrics()
        else:
            for name in stages.STAGE_NAMES:
                opened.stage(name)
            metrics = opened.finish()
    with results_on_stdout():
        if as_json:
            print(json.dumps(metrics, indent=1))
        else:
            if already_done:
                print(f"already done: {output}")
            print("\n".join(summary(metrics, output)))


def summary(metrics: dict[str, Any], output: str | Path) -> list[str]:
    """What a finished run is told in: clusters, silhouette, time, where the files are."""
    clusters = f"{metrics['n_used']} of {metrics['n_clusters']} clusters in use"
    lines = [f"{metrics['n_rows']:,} rows, {metrics['n_features']} features, {clusters}"]
    silhouette = metrics.get("silhouette")
    if silhouette:
        lines.append(
            f"silhouette {silhouette['value']:.4f} ± {silhouette['standard_error']:.4f} "
            f"({silhouette['metric']}, {silhouette['rows']:,} rows sampled)"
        )
    lines.append(f"{metrics['seconds']['total']:.1f} s")
    # Labelling with a finished model leaves no report.
    names = ("labels", *(["report.html"] if "loss" in metrics else []), "metrics.json")
    lines += [f"{name}: {Path(output, name)}" for name in names]
    return lines


@_command
def demo_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="vowels or digits.")],
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", metavar="N", help="Default: 1000000 for vowels, the 1797 real ones of digits."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="PATH", help="Default: data/NAME.parquet."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
) -> None:
    """Write data to try the tool on, as one Parquet file.

    \b
    vowels  simulated Japanese Vowels: 14 features, 9 classes, any number of rows
    digits  scikit-learn's handwritten digits; more rows than 1797 are noisy copies

    \b
    Example:
      clam-dist demo-data vowels --rows 1000000 --output data/vowels.parquet
    """
    from clam_dist.demo import write_demo

    path = Path("data", f"{name}.parquet") if output is None else output
    done = write_demo(name, path, rows=rows, seed=seed)
    with results_on_stdout():
        print(f"{done.path}: {done.rows:,} rows{'' if done.written else ' (there already)'}")


@_command
def assign(
    model: Annotated[
        Path, typer.Option("--model", metavar="DIR", help="The model/ folder of a finished run.")
    ],
    source: Annotated[
        str, typer.Option("--source", metavar="URI", help="A Parquet file, folder or glob.")
    ],
    output: Annotated[
        str, typer.Option("--output", metavar="URI", help="Folder that labels/ goes to.")
    ],
    set_: Overrides = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an output that something else has filled.")
    ] = False,
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt", help="Let a TDCM model find its centroids in the new source first."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Label another source with a finished run's model, without training.

    \b
    Examples:
      clam-dist assign --model runs/customers/model --source data/new/ --output runs/new
      clam-dist assign --model m --source s.parquet --output o --set source.keep=[customer_id]
      clam-dist assign --model m --source other-domain/ --output o --adapt

    Only keys under source, cluster and work, and evaluate.columns, may be set.
    """
    from clam_dist.config import load_config

    given = [f"source.uri={json.dumps(source)}", f"output.uri={json.dumps(output)}"]
    settings = load_config(None, [*given, "model.n_clusters=2", *(set_ or [])])

    from clam_dist.reporting.display import ConsoleDisplay
    from clam_dist.stages.apply import apply_model, check_overrides

    check_overrides(set_ or [])
    seen: set[str] = set()
    with ConsoleDisplay() as display:

        def on_event(event: Mapping[str, Any]) -> None:
            seen.add(event["event"])
            display(event)

        metrics = apply_model(model, settings, force=force, adapt=adapt, on_event=on_event)
    with results_on_stdout():
        if as_json:
            print(json.dumps(metrics, indent=1))
        else:
            if "already done" in seen:
                print(f"already done: {output}")
            print("\n".join(summary(metrics, output)))


@_command
def inspect(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A Parquet file, folder, glob or address.")
    ],
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run would make of a source: features, statistics, columns to look at.

    \b
    Examples:
      clam-dist inspect data/vowels.parquet
      clam-dist inspect 'data/*.parquet' --set source.exclude=[id]

    Only keys under source may be set.
    """
    from clam_dist.cli_inspect import inspect_source, inspection_text
    from clam_dist.config import load_config
    from clam_dist.errors import ConfigError

    foreign = [override for override in set_ or [] if not override.startswith("source.")]
    if foreign:
        key = foreign[0].partition("=")[0]
        raise ConfigError(f"--set {key}: inspect takes only keys under source")
    # A string in JSON is the same string in YAML, whatever it holds. The number of clusters, which
    # a config must name, matters to nothing here.
    given = [f"source.uri={json.dumps(source)}", "model.n_clusters=2"]
    found = inspect_source(load_config(None, [*given, *(set_ or [])]).source)
    with results_on_stdout():
        if as_json:
            print(json.dumps(found.to_json(), indent=1))
        else:
            # Into a pipe or a file, the table keeps its width whatever the terminal's.
            styled = sys.stdout.isatty()
            print(inspection_text(found, None if styled else 120, styled), end="")


for _entry in sorted(entry_points(group="clam_dist.commands")):
    _command(_entry.load())


if __name__ == "__main__":
    sys.exit(main())
