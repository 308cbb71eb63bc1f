"""What passes between the launcher and a rank: a seat to take, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


class PeersLostError(RuntimeError):
    """A rank could not go on because of others: lost, too late, or called off by the driver."""


@dataclass(frozen=True)
class Seat:
    """One rank's place in one attempt of a gang.

    Attributes
    ----------
    attempt : str
        Unique to the attempt; fences off ranks of earlier ones.
    rank, world_size : int
        This rank, and how many there are.
    worker : str
        Address of the Dask worker that must run it.
    host : str
        Address or name to bind connections to.
    threads : int
        Compute threads the rank may use side by side.
    rendezvous_seconds : float
        How long to wait for all ranks to come.
    collective_seconds : float
        How long an ``all_gather`` may take.
    patient_seconds : float
        How long the other collective calls may take.
    """

    attempt: str
    rank: int
    world_size: int
    worker: str
    host: str
    threads: int
    rendezvous_seconds: float
    collective_seconds: float
    patient_seconds: float


@dataclass(frozen=True)
class Outcome:
    """How a rank ended.

    Attributes
    ----------
    state : str
        ``done``; ``failed``: its own function raised; ``peers``: it stopped because of others;
        ``misplaced``: it was run by another worker than its seat says.
    value : object
        What the function returned.
    error : Exception or None
        What it raised.
    peak_rss_bytes : int
        Peak resident memory of the worker's process in bytes.
    """

    seat: Seat
    state: Literal["done", "failed", "peers", "misplaced"]
    value: Any = None
    error: BaseException | None = None
    peak_rss_bytes: int = 0
