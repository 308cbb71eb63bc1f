"""The clustering flow from the command line, and under the name that deployments know it by.

``python -m pipelines.cluster CONFIG.yaml [--set a.b=value]...`` (also ``clam-dist-flow``) runs it
here and now; a deployment names it ``pipelines.cluster.cluster``. The flow itself is in
``pipelines.flow``.

Prefect is imported inside functions: a module run with ``-m`` is imported again by every process
that Dask spawns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from clam_dist.cli_errors import sigterm_raises
from pipelines.configs import packaged_names
from pipelines.endings import as_error

_EPILOG = """examples:
  clam-dist-flow quickstart
  clam-dist-flow night.yaml --set model.n_clusters=12 --set 'model.beta=[0.5, 1, 2]'
  PREFECT_API_URL=http://prefect.example:4200/api clam-dist-flow night.yaml

exit codes: 0 done; 2 the command or config is wrong; 3 the data is wrong; 4 the run failed;
130 and 143 stopped by ctrl-C or SIGTERM, and resumed when run again"""


def __getattr__(name: str) -> Any:
    """``cluster``, the flow, made when first asked for."""
    if name == "cluster":
        from pipelines.flow import flow

        return flow()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the flow once and return the exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; default: the process's.

    Returns
    -------
    int
        0 done; 2 wrong command or config; 3 wrong data; 4 failed; 130, 143 stopped.
    """
    arguments = _parser().parse_args(argv)
    try:
        with sigterm_raises():
            _run_here(arguments.config, arguments.set, arguments.force)
    except BaseException as caught:
        if isinstance(caught, (SystemExit, GeneratorExit)):
            raise
        error = as_error(caught)
        _say(f"error: {error}" if error.exit_code < 128 else str(error))
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clam-dist-flow",
        description="Cluster a table as a Prefect flow, watched in Prefect's pages.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help=f"a YAML file, or a packaged config: {', '.join(packaged_names())}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=value",
        help="set one key of the config, the value as YAML; may be repeated",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace a finished output made with another config"
    )
    return parser


def _say(line: str) -> None:
    print(f"clam-dist-flow: {line}", file=sys.stderr, flush=True)


def _run_here(config: str, overrides: Sequence[str], force: bool) -> None:
    """Run the flow in this process; raises the error it ended with."""
    from pipelines.configs import load_named
    from pipelines.session import prefect_session, wait_until_recorded

    loaded = load_named(config, overrides)[0]  # a wrong config is told before anything starts
    with prefect_session(_say):
        from prefect import tags

        from pipelines.flow import flow
        from pipelines.stale import TAG

        with tags(TAG, loaded.name):
            cluster: Any = flow()  # its overloads know no return_state
            state = cluster(config, list(overrides), force, return_state=True)
        if state.state_details.flow_run_id is not None:
            wait_until_recorded(state.state_details.flow_run_id)
    ending = state.result(raise_on_failure=False)
    if isinstance(ending, BaseException):
        raise ending
    _say(state.message or "done")


if __name__ == "__main__":
    sys.exit(main())
