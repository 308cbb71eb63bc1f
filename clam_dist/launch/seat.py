"""What passes between the launcher and a rank: a seat to take, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal


class PeersLostError(RuntimeError):
    """A rank could not go on because of others: lost, too late, or called off by the driver."""


@dataclass(frozen=True)
class Network:
    """Where a rank listens for its peers.

    Attributes
    ----------
    host : str
        Address or name to bind; a network such as ``10.1.0.0/16``: the worker's own address in
        it. Empty: the address that Dask's peers reach the worker by.
    interface : str
        Name of a network interface of the worker, in place of an address.
    port : int
        Where rank 0 serves the store; 0 lets the system choose. Gloo itself takes no port: its
        connections use the system's ephemeral range.
    """

    host: str = ""
    interface: str = ""
    port: int = 0

    def at(self, host: str) -> Network:
        """The same for a worker whose peers reach it at ``host``."""
        return self if self.host or self.interface else replace(self, host=host)


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
    mark : str
        Of that worker's process: one that took its place at the address must not take the seat,
        which the scheduler would give it.
    network : Network
        Where to listen for the other ranks.
    threads : int
        Compute threads the rank may use side by side.
    rendezvous_seconds : float
        How long to wait for all ranks to come.
    collective_seconds : float
        How long an ``all_gather`` may take.
    patient_seconds : float
        How long the other collective calls may take.
    device : str
        Where the rank computes, ``cpu`` or ``cuda:N``.
    backend : str
        What device tensors travel over; ``nccl`` only where every rank has a GPU of its own.
    """

    attempt: str
    rank: int
    world_size: int
    worker: str
    mark: str
    network: Network
    threads: int
    rendezvous_seconds: float
    collective_seconds: float
    patient_seconds: float
    device: str = "cpu"
    backend: Literal["nccl", "gloo"] = "gloo"


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
