"""What the tests of deploy/ share: its files, the tools that check them, and whether a command that
one of them names exists with its options.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def tool(name: str) -> str:
    """The path of a program beside this Python or on the path; the test is skipped without it."""
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def accepts(name: str, *arguments: str | Path, **options: Any) -> str:
    """Run a tool, which must find nothing to say against what it is given; its output."""
    done = subprocess.run(
        [tool(name), *map(str, arguments)], capture_output=True, text=True, timeout=120, **options
    )
    assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
    return done.stdout


def documents(path: Path) -> list[Any]:
    """The YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def kubernetes_files() -> list[Path]:
    """Manifests, without kustomizations."""
    files = sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
    return [path for path in files if path.name not in ("kustomization.yaml", "secret.yaml")]


def kubernetes_object(kind: str, name: str) -> dict[str, Any]:
    """The one object of a kind and a name in the manifests."""
    found = [each for path in kubernetes_files() for each in documents(path)]
    [one] = [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return dict(one)


def mappings(node: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping inside a document, from the outside in."""
    if isinstance(node, Mapping):
        yield node
        for value in node.values():
            yield from mappings(value)
    elif isinstance(node, list):
        for value in node:
            yield from mappings(value)


# -- commands ------------------------------------------------------------------------------------


def check_command(words: Sequence[str]) -> None:
    """Parse a command as its program would, without running it.

    Raises
    ------
    Exception
        Of the program's own parser, for an unknown subcommand or option or a missing argument.
    """
    program, *arguments = words
    program = Path(program).name
    if program == "clam-dist":
        from typer.main import get_command

        from clam_dist.cli import app

        _parse_click(get_command(app), arguments)
    elif program == "clam-dist-flow" or words[:3] == ["python", "-m", "pipelines.cluster"]:
        from pipelines.cluster import _parser

        _parser().parse_args(arguments if program == "clam-dist-flow" else words[3:])
    elif program == "dask":
        from distributed.cli import dask_scheduler, dask_worker

        kinds = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
        context = kinds[arguments[0]].make_context("dask", list(arguments[1:]))
        # Dask hands options that it does not know to preloaded modules.
        assert not context.params.get("preload_argv"), context.params["preload_argv"]
    elif program == "prefect":
        from prefect.cli._app import _app

        left = [word for word in arguments if word != "--no-prompt"]
        _app.parse_args(left, exit_on_error=False, print_error=False)
    elif program == "python" and arguments[:1] == ["-m"]:
        _check_module(*arguments[1:])
    else:
        raise AssertionError(f"{program} is not a program of ours, Dask's or Prefect's: {words}")


def _check_module(name: str, *arguments: str) -> None:
    module = importlib.import_module(name)
    assert callable(module.main)
    if hasattr(module, "_parser"):
        module._parser().parse_args(arguments)
    else:
        assert not arguments, f"{name} takes no arguments: {arguments}"


def _parse_click(command: Any, arguments: Sequence[str]) -> None:
    name, *rest = arguments
    if name.startswith("-"):
        command.make_context("clam-dist", list(arguments), resilient_parsing=True)
        return
    found = command.commands.get(name)
    assert found is not None, f"clam-dist has no command {name}; it has {sorted(command.commands)}"
    found.make_context(name, rest)


# -- settings ------------------------------------------------------------------------------------


def check_variable(name: str, value: str) -> None:
    """See that an environment variable of ours, Prefect's or Dask's says something to its reader.

    Raises
    ------
    AssertionError or ConfigError
        For a name that nobody reads, or a value that is refused.
    """
    if name.startswith("CLAM_DIST_") and "__" in name:
        from clam_dist.config import config_from_dict
        from clam_dist.config_layers import ENVIRONMENT_PREFIX

        values: dict[str, Any] = {"source": {"uri": "x"}, "model": {"n_clusters": 2}}
        section, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
        values[section] = {**values.get(section, {}), key: yaml.safe_load(value)}
        config_from_dict(values)
    elif name.startswith("PREFECT_INTEGRATIONS_"):
        pass  # of a package that is in another image
    elif name.startswith("PREFECT_"):
        assert name in prefect_variables(), f"Prefect reads no {name}"
    elif name.startswith("DASK_"):
        assert name == "DASK_CONFIG", f"a setting of Dask outside dask.yaml: {name}"


def prefect_variables() -> set[str]:
    """Every environment variable that Prefect reads a setting from."""
    from prefect.settings import Settings
    from prefect.settings.legacy import _get_settings_fields

    names = {field.name for field in _get_settings_fields(Settings).values()}
    return names | {"PREFECT_PROFILE"}


def python_requirement(constraint: str) -> str:
    """The version that constraints.txt pins a package to."""
    text = (DEPLOY / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", text, re.MULTILINE))
    return pins[constraint]
