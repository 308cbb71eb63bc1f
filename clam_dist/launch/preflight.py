"""Before any work: can every worker read the work folder, does it run the same software, and what
devices has it?"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clam_dist.errors import ConfigError
from clam_dist.launch.devices import Facts, visible

PACKAGES = ("clam_dist", "torch", "pyarrow", "distributed")
"""Distributions whose versions must agree, besides Python's major and minor version."""


@dataclass(frozen=True)
class Probe:
    """What one process says of itself.

    Attributes
    ----------
    host : str
        Name of the machine.
    versions : dict of str to str
        Version by name, ``"missing"`` for a package that is not installed.
    nonce : str or None
        Content of the file the driver wrote, None when it could not be read.
    problem : str
        Why it could not be read.
    facts : Facts
        Its devices.
    """

    host: str
    versions: dict[str, str]
    nonce: str | None = None
    problem: str = ""
    facts: Facts = field(default_factory=Facts)


def write_nonce(folder: str | Path) -> tuple[Path, str]:
    """Write a fresh random text into ``folder`` (made if absent); its path and the text.

    Raises
    ------
    ConfigError
        When the driver itself cannot write there.
    """
    path = Path(folder).absolute() / f"_preflight-{uuid.uuid4().hex}"
    nonce = uuid.uuid4().hex
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(nonce)
    except OSError as error:
        raise ConfigError(
            f"work.uri: cannot write to {path.parent} ({error.strerror}); "
            "set work.uri to a folder that this machine and every worker can write"
        ) from error
    return path, nonce


def probe(path: str | None = None) -> Probe:
    """Describe this process, and read the driver's nonce when a path is given."""
    facts = visible()
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        versions[name] = _version(name)
    if path is None:
        return Probe(facts.host, versions, facts=facts)
    try:
        nonce = Path(path).read_text()
    except OSError as error:
        return Probe(facts.host, versions, None, error.strerror or str(error), facts)
    writable = os.access(Path(path).parent, os.W_OK)
    return Probe(facts.host, versions, nonce, "" if writable else "not writable", facts)


def check(
    driver: Probe,
    workers: Mapping[str, Probe | BaseException],
    *,
    folder: str,
    nonce: str | None,
) -> None:
    """Refuse a cluster that cannot do the work.

    Parameters
    ----------
    driver : Probe
        The driver's own.
    workers : mapping of str to Probe or exception
        By worker address; an exception where the probe itself failed.
    folder : str
        The work folder, for the message.
    nonce : str, optional
        What was written there; None when there is no folder to check.

    Raises
    ------
    ConfigError
        Naming the workers, and the folder or the versions.
    """
    for address, answer in workers.items():
        if isinstance(answer, ModuleNotFoundError):
            raise ConfigError(
                f"worker {address} cannot import {answer.name}; "
                f"install clam_dist {driver.versions['clam_dist']} where the workers run"
            )
        if isinstance(answer, BaseException):
            raise ConfigError(
                f"worker {address} failed the preflight check: {type(answer).__name__}: {answer}"
            )
    probes = {key: value for key, value in workers.items() if isinstance(value, Probe)}
    blind = {a: p for a, p in probes.items() if nonce is not None and (p.nonce != nonce)}
    if blind:
        told = "; ".join(
            f"worker {address} on {p.host}: {p.problem or 'another file of that name is there'}"
            for address, p in blind.items()
        )
        raise ConfigError(
            f"work.uri: {len(blind)} of {len(probes)} workers cannot read {folder} ({told}); "
            "set work.uri to storage that this machine and every worker share"
        )
    readers = [a for a, p in probes.items() if nonce is not None and p.problem]
    if readers:
        raise ConfigError(
            f"work.uri: worker {readers[0]} may not write to {folder}; "
            "give the workers' user write access, or set work.uri to another folder"
        )
    unlike = [address for address, p in probes.items() if not same_versions(driver, p)]
    if unlike:
        raise ConfigError(
            f"{len(unlike)} of {len(probes)} workers run other versions than the driver; "
            "install the same ones everywhere:\n" + version_table(driver, probes)
        )


def same_versions(driver: Probe, worker: Probe) -> bool:
    """Whether both run the same Python (major.minor) and the same releases of every package.

    A local build tag (``2.13.0+cpu`` beside ``2.13.0+cu126``) makes no difference here.
    """
    return _comparable(driver) == _comparable(worker)


def version_table(driver: Probe, workers: Mapping[str, Probe]) -> str:
    """One line for the driver and each worker, one column for each package; ``<-`` marks others."""
    names = ["python", *PACKAGES]
    rows = [["", *names], ["driver", *(driver.versions.get(n, "missing") for n in names)]]
    for address, answer in workers.items():
        mark = "" if same_versions(driver, answer) else " <-"
        versions = [answer.versions.get(name, "missing") for name in names]
        rows.append([f"{address} ({answer.host})", *versions[:-1], versions[-1] + mark])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def _comparable(answer: Probe) -> dict[str, str]:
    versions = {name: version.split("+")[0] for name, version in answer.versions.items()}
    versions["python"] = ".".join(versions.get("python", "").split(".")[:2])
    return versions


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
