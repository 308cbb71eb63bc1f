"""Cluster classes named in a config, found lazily; and why a cluster would not have us."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from clam_dist.errors import ConfigError

KNOWN = {
    "LocalCUDACluster": "dask_cuda.LocalCUDACluster",
    "SLURMCluster": "dask_jobqueue.SLURMCluster",
    "KubeCluster": "dask_kubernetes.operator.KubeCluster",
    "GatewayCluster": "dask_gateway.GatewayCluster",
}
"""Cluster classes that may be named without their module."""


def find_class(path: str) -> Any:
    """The class at ``package.module.Class``, or of one of the known names.

    Raises
    ------
    ConfigError
        When its package is missing, with the line that installs it, or has no such class.
    """
    path = KNOWN.get(path, path)
    module, _, name = path.replace(":", ".").rpartition(".")
    unknown = (
        f"cluster.cluster_class: there is no class {path}; write package.module.Class, or one of "
        f"{', '.join(KNOWN)}"
    )
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        if error.name != package and importlib.util.find_spec(package):
            raise ConfigError(unknown) from error
        raise ConfigError(
            f"cluster.cluster_class: {path} needs the package {package}; "
            f"install it with: pip install {package.replace('_', '-')}"
        ) from error
    except (AttributeError, ValueError) as error:
        raise ConfigError(unknown) from error


def refused_connection(address: str, wait: float, error: BaseException) -> ConfigError:
    """The error for a scheduler that does not answer, or does not take our connection."""
    said = (str(error).splitlines() or [""])[0][:200]
    if address.startswith("tls://"):
        return ConfigError(
            f"cluster.address: no Dask scheduler took our connection to {address} "
            f"({type(error).__name__}: {said}); see that it runs, and give the certificate and key "
            "that it trusts in Dask's settings: distributed.comm.tls in its YAML files, or "
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__TLS__CLIENT__CERT and …__TLS__CLIENT__KEY"
        )
    return ConfigError(
        f"cluster.address: no Dask scheduler answers at {address} within {wait:.0f} s "
        f"({type(error).__name__}); start `dask scheduler` there, or correct the address "
        "(tls://… where it takes encrypted connections only)"
    )
